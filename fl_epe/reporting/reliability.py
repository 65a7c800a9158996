"""Warnings: reasons why an answer is unreliable or needs an explanation, in order of importance.

Examples:
    >>> ReportWarning("load", "canaries are 40% of a round's weight").status
    'unreliable'
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from fl_epe.auditing import (
    MAX_CANARY_SHARE,
    Answer,
    AuditRecord,
    Evidence,
    LadderTest,
    Sees,
    divergence,
    evidence_against_theory,
    ladder_fit,
    no_better_than_constant,
    null_misfit,
    tells_apart,
    updates_lost,
)
from fl_epe.reporting.charts import view_name
from fl_epe.reporting.numbers import interval
from fl_epe.wording import number

Status = Literal["ok", "unreliable", "faulty", "diverged", "not measured"]

SEES: dict[Sees, str] = {
    "final": "the final model",
    "all": "every round's model",
}
"""What an adversary sees, in words of a sentence."""


def what_is_seen(answer: Answer, record: AuditRecord | None) -> str:
    """What the adversary sees, in words; the last recorded model if the run was not finished."""
    sees = answer.adversary.sees
    if sees == "all":
        return SEES[sees]
    return f"the {view_name(sees, record)}"


CODES: dict[str, Status] = {
    "diverged": "diverged",
    "not-measured": "not measured",
    "steps": "faulty",
    "exceeds-theory": "faulty",
    "above-theory": "unreliable",
    "size": "unreliable",
    "contradicted": "unreliable",
    "doubts": "unreliable",
    "lost": "unreliable",
    "load": "unreliable",
    "null": "unreliable",
    "width": "unreliable",
    "number": "unreliable",
    "time": "unreliable",
    "strength": "unreliable",
    "learning": "unreliable",
    "stopped": "ok",
    "caveat": "ok",
}
"""Kinds of warnings, the most important first, and the status of a report for each of them."""

LEAST_PARAMETERS = 100
"""With fewer parameters, random directions overlap, and scores need not follow their model."""

# With 12 parameters the 95% intervals of every round cover in only 80% of the runs.
_TOO_FEW_PARAMETERS = 20

# Warnings that scores do not follow their model.
_SCORE_MODEL_CODES = (
    "doubts",
    "contradicted",
    "null",
    "width",
    "number",
    "time",
    "strength",
)

# Confidence of the result that an implementation is wrong, as in `assert_private`.
_FAULT_CONFIDENCE = 0.99

# The same for an adversary for whom the accounting makes no claim.
_UNCLAIMED_CONFIDENCE = 0.999

# Training partly reverses a client's contribution. In correct runs of small models κ and 1/κ stay
# below this ratio.
_MAX_SCALE_RATIO = 1.5
_CAUSES = (
    "the server's learning rate decays or its momentum or optimizer is another one than the audit "
    "was told, or updates are clipped again after averaging"
)
_COUNTERACTION = (
    "training takes back a part of what a client adds, most of all in a small model, "
    "or where"
)
_REMEDY = "more canaries (--num-canaries), each as often as a client, tell whether ε is right"

# Joint level of all tests of κ in a report.
_LEVEL = 0.01


@dataclasses.dataclass(frozen=True)
class ReportWarning:
    """One warning.

    Attributes:
        code: its kind, one of `CODES`.
        text: what is wrong, as a clause without a full stop.
    """

    code: str
    text: str

    @property
    def status(self) -> Status:
        """The status of a report with this warning as its most important one."""
        return CODES[self.code]


def status_of(warnings: Sequence[ReportWarning]) -> Status:
    """The status of the most important warning, which is the first; "ok" without warnings."""
    if warnings:
        return warnings[0].status
    return "ok"


def warnings_of(
    record: AuditRecord, answers: Sequence[Answer]
) -> tuple[ReportWarning, ...]:
    """All warnings of a run, the most important first.

    Args:
        record: the audit record of a run.
        answers: its answers.
    """
    findings = record.findings
    diverged = divergence(record)
    warnings = [ReportWarning("diverged", text) for text in diverged]
    for answer in answers:
        if answer.estimate is None:
            warnings.append(ReportWarning("not-measured", answer.reason))
    warnings += [
        ReportWarning("steps", text) for text in findings.mechanism_faults
    ]
    warnings += [ReportWarning("doubts", text) for text in findings.doubts]
    lost = updates_lost(record)
    if lost is not None:
        text = f"{lost}, so that ε is that of the clients that answered"
        warnings.append(ReportWarning("lost", text))
    for answer in answers:
        warnings += _of_proof(record, answer)
        warnings += _of_scores(record, answer)
        warnings += _of_strength(answer)
    warnings += _of_tests(record, answers)
    warnings += _of_run(record, diverged=bool(diverged))
    misfits = any(warning.code in _SCORE_MODEL_CODES for warning in warnings)
    is_measured = any(answer.estimate is not None for answer in answers)
    if (misfits and record.dim < LEAST_PARAMETERS) or (
        is_measured and record.dim < _TOO_FEW_PARAMETERS
    ):
        text = (
            f"the model has {record.dim} parameters, in which random directions overlap more than "
            "scores assume"
        )
        warnings.append(ReportWarning("size", text))
    order = list(CODES)
    unique = dict.fromkeys(warnings)
    return tuple(sorted(unique, key=lambda warning: order.index(warning.code)))


def canary_share(record: AuditRecord) -> float | None:
    """Share of the canaries in the weight of a round, on average; ``None`` if it is not known."""
    canaries = float(record.shares().sum())
    total = record.rounds * record.mechanism.cohort_size
    if record.mechanism.participation.unit == "example":
        # The cohort size of a batch does not include its canaries.
        total += canaries
    offsets = record.clients.offsets
    if offsets is not None and offsets[-1]:
        total = canaries + float(offsets[-1])
    if not canaries or total <= 0 or not math.isfinite(total):
        return None
    return canaries / total


def _of_proof(record: AuditRecord, answer: Answer) -> Iterator[ReportWarning]:
    estimate = answer.estimate
    if answer.proved is None or estimate is None:
        return
    view = what_is_seen(answer, record)
    limit = number(answer.analytical.epsilon)
    proved = f"the least ε that is proved of {view} ({number(answer.proved)})"
    confidence = _FAULT_CONFIDENCE
    if answer.adversary.sees_final:
        # The accounting is for every round's model.
        confidence = _UNCLAIMED_CONFIDENCE
    evidence = evidence_against_theory(
        record, answer.adversary, estimate.delta, confidence
    )
    if evidence is not None and evidence.violated:
        yield ReportWarning(
            "exceeds-theory",
            f"with {evidence.confidence:.1%} confidence {view} leaks more than theory allows ("
            f"{refutation(evidence)}, allowed {number(evidence.claimed)}), so that the training "
            "does not do what its privacy accounting assumes",
        )
    elif answer.exceeds_theory:
        chance = f"{1 - estimate.confidence:.0%} of runs"
        yield ReportWarning(
            "above-theory",
            f"{proved} is more than theory allows ({limit}), by chance in up to {chance}",
        )
    if answer.contradicted:
        yield ReportWarning(
            "contradicted",
            f"{proved} is above the interval of its estimate ({interval(estimate)})",
        )


def refutation(evidence: Evidence) -> str:
    """The evidence that refutes a claim, in words."""
    estimate = evidence.estimate
    if estimate is not None and not evidence.refuted_by_bound:
        return f"ε ≥ {number(estimate.low)} if its noise is Gaussian"
    return f"proved ε ≥ {number(evidence.lower_bound)}"


def _of_scores(record: AuditRecord, answer: Answer) -> Iterator[ReportWarning]:
    if answer.scores is None or answer.fit is None:
        return
    view = what_is_seen(answer, record)
    if null_misfit(answer.scores):
        null = np.asarray(answer.scores.unobserved)
        yield ReportWarning(
            "null",
            f"canaries that took no part have scores against {view} of mean {null.mean():.2f} and "
            f"width {np.sqrt(np.mean(null**2)):.2f}, where 0 and 1 are assumed",
        )
    if answer.fit.wide:
        width = answer.fit.width
        yield ReportWarning(
            "width",
            f"scores against {view} vary {width:.2f} times as much as assumed",
        )


def _of_strength(answer: Answer) -> Iterator[ReportWarning]:
    """A warning if the interval of κ excludes 1: scores are not as large as what canaries added.

    The final model is not tested, because training that forgets has the same effect in correct
    implementations.
    """
    view = answer.view
    if (
        view is None
        or answer.adversary.sees_final
        or not view.expected_scores.scale_is_known
    ):
        return
    fit = ladder_fit(view, None, _FAULT_CONFIDENCE)
    if fit.low <= 1 <= fit.high:
        return
    text = (
        f"canaries show up {max(fit.scale, 0.0):.2f} times as strongly in {SEES['all']} as what "
        f"they added should ({fit.low:.2f} – {fit.high:.2f}), as where "
    )
    if 1 / _MAX_SCALE_RATIO <= fit.scale <= _MAX_SCALE_RATIO:
        yield ReportWarning("caveat", f"{text}{_COUNTERACTION} {_CAUSES}")
    else:
        yield ReportWarning("strength", f"{text}{_CAUSES}")


def _of_tests(
    record: AuditRecord, answers: Sequence[Answer]
) -> Iterator[ReportWarning]:
    """Warnings if the tests of κ are significant, at a joint level of 1%."""
    tests = [
        test
        for answer in answers
        if answer.fit is not None
        for test in (answer.fit.intercept_test, answer.fit.trend_test)
        if test is not None
    ]
    level = _LEVEL / max(len(tests), 1)
    for answer in answers:
        fit = answer.fit
        if fit is None:
            continue
        scores = f"scores against {what_is_seen(answer, record)}"
        intercept_test = fit.intercept_test
        if intercept_test is not None and intercept_test.rejects(level):
            text = (
                f"{scores} do not grow with the number of participations as assumed "
                f"{_by_chance(intercept_test)}"
            )
            if fit.ratio == 1:
                yield ReportWarning("number", f"{text}; {_REMEDY}")
            else:
                # ε is that of the canaries that took part as often as the client, so that its
                # interval is valid.
                yield ReportWarning(
                    "caveat",
                    f"{text}: canaries that took part as often as a client show up "
                    f"{fit.ratio:.2f} times as strongly as all, and ε follows them",
                )
        trend_test = fit.trend_test
        if trend_test is not None and trend_test.rejects(level):
            text = f"{scores} depend on when canaries took part {_by_chance(trend_test)}"
            yield ReportWarning("time", f"{text}; {_REMEDY}")


def _by_chance(test: LadderTest) -> str:
    return f"(by chance with probability {test.p_value:.1g})"


def _of_run(record: AuditRecord, *, diverged: bool) -> Iterator[ReportWarning]:
    share = canary_share(record)
    if share is not None and share > MAX_CANARY_SHARE:
        yield ReportWarning(
            "load",
            f"canaries are {share:.0%} of a round's weight, so that the measured training is not "
            "that without them",
        )
    unlearned = no_better_than_constant(record)
    if unlearned and not diverged:
        if tells_apart(record):
            yield ReportWarning(
                "caveat",
                f"{unlearned}, but it tells examples apart: its predictions are too extreme",
            )
        else:
            yield ReportWarning("learning", unlearned)
    stop = record.findings.stopped
    if stop is not None:
        yield ReportWarning(
            "stopped",
            f"the run ended after round {stop.after} because of its scores "
            f"({record.design.stop_when}): intervals hold at every round at once, but proofs less "
            "often than they say",
        )
    if record.design.caveat:
        yield ReportWarning("caveat", record.design.caveat.rstrip("."))
