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
"""What an adversary sees, as words in a sentence."""


def what_is_seen(answer: Answer, record: AuditRecord | None) -> str:
    """What the adversary sees, in words; the last recorded model if the run was not finished."""
    sees = answer.adversary.sees
    if sees == "all":
        return SEES[sees]
    return f"the {view_name(sees, record)}"


CODES: dict[str, Status] = {
    # The model or its loss is not finite, or no better than chance at the end.
    "diverged": "diverged",
    # There is no estimate of ε for an adversary.
    "not-measured": "not measured",
    # Clipping, sampling or noise of a step is not what the accounting assumes.
    "steps": "faulty",
    # ε is above the theory, at a confidence of 99% or more.
    "exceeds-theory": "faulty",
    # The lower bound is above the theory, but only at the confidence of the report.
    "above-theory": "unreliable",
    # The model has too few parameters for the law of the scores.
    "size": "unreliable",
    # The lower bound is above the interval of the estimate.
    "contradicted": "unreliable",
    # The record says why its numbers may be wrong (`Findings.doubts`).
    "doubts": "unreliable",
    # Most updates were lost.
    "lost": "unreliable",
    # Canaries are a large share of a round.
    "load": "unreliable",
    # Scores of canaries that took no part are not N(0, 1).
    "null": "unreliable",
    # Scores vary more about the fitted ones than assumed.
    "width": "unreliable",
    # Scores are not proportional to the expected ones: they depend otherwise on the number of
    # participations.
    "number": "unreliable",
    # Scores depend on the rounds in which canaries took part.
    "time": "unreliable",
    # Scores are much smaller or larger than the expected ones: κ is far from 1.
    "strength": "unreliable",
    # The model is no better than a constant prediction.
    "learning": "unreliable",
    # The run was ended early, because of its scores.
    "stopped": "ok",
    # An explanation of an answer that is reliable.
    "caveat": "ok",
}
"""Kinds of warnings, the most important first, and the status of a report for each of them."""

# If the model has fewer parameters and scores do not follow their law, the size is named as the
# reason: random directions overlap.
_MISFIT_BY_SIZE_BELOW = 100

# With fewer parameters, an estimate is always unreliable. With 12, the 95% interval for the
# adversary who sees every round's model covers ε in only 80% of the runs.
_UNRELIABLE_BELOW = 20

# Warnings that scores do not follow the law that the estimate assumes.
_SCORE_LAW_CODES = (
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

# The same for the adversary who sees the final model. The accounting is for every round's model,
# and bounds the final model only by post-processing. A violation there is much less plausible, so
# more evidence is required.
_FINAL_MODEL_FAULT_CONFIDENCE = 0.999

# Confidence of the interval of κ by which `_scale_warnings` decides.
_SCALE_CONFIDENCE = 0.99

# Training partly reverses a client's contribution. In correct runs of small models κ and 1/κ stay
# below this ratio.
_MAX_SCALE_RATIO = 1.5
_CAUSES = (
    "the server's learning rate decays, its momentum or optimizer is not the one that was given to "
    "the audit, or updates are clipped again after averaging"
)
_REVERSAL = (
    "training reverses a part of each update, as is usual in small models,"
)
_REMEDY = (
    "to find out whether ε is right, run again with more canaries that take part as often as a "
    "client (--num-canaries)"
)

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


def after_first_sentence(
    warnings: Sequence[ReportWarning],
) -> Sequence[ReportWarning]:
    """The warnings that the first sentence of a report does not have."""
    if status_of(warnings) == "ok":
        return warnings
    return warnings[1:]


def warnings_of(
    record: AuditRecord, answers: Sequence[Answer]
) -> tuple[ReportWarning, ...]:
    """All warnings of a run, the most important first.

    Args:
        record: the audit record of a run.
        answers: its answers.
    """
    findings = record.findings
    divergence_texts = divergence(record)
    warnings = [ReportWarning("diverged", text) for text in divergence_texts]
    for answer in answers:
        if answer.estimate is None:
            warnings.append(ReportWarning("not-measured", answer.reason))
    warnings += [
        ReportWarning("steps", text) for text in findings.mechanism_faults
    ]
    warnings += [ReportWarning("doubts", text) for text in findings.doubts]
    lost_updates_text = updates_lost(record)
    if lost_updates_text is not None:
        text = f"{lost_updates_text}, so that ε is that of the clients that answered"
        warnings.append(ReportWarning("lost", text))
    for answer in answers:
        warnings += _bound_warnings(record, answer)
        warnings += _score_warnings(record, answer)
        warnings += _scale_warnings(answer)
    warnings += _proportionality_warnings(record, answers)
    warnings += _training_warnings(record, diverged=bool(divergence_texts))
    has_misfit = any(warning.code in _SCORE_LAW_CODES for warning in warnings)
    is_measured = any(answer.estimate is not None for answer in answers)
    if (has_misfit and record.dim < _MISFIT_BY_SIZE_BELOW) or (
        is_measured and record.dim < _UNRELIABLE_BELOW
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
    canary_weight = float(record.shares().sum())
    total = _total_weight(record, canary_weight)
    if not canary_weight or total <= 0 or not math.isfinite(total):
        return None
    return canary_weight / total


def _total_weight(record: AuditRecord, canary_weight: float) -> float:
    """The weight of all clients and canaries in all rounds; NaN if it is not known."""
    offsets = record.clients.offsets
    if offsets is not None and offsets[-1]:
        num_client_participations = float(offsets[-1])
        return canary_weight + num_client_participations
    cohort_sizes = record.rounds * record.mechanism.cohort_size
    if record.mechanism.participation.unit == "example":
        # The cohort size of a batch does not include its canaries.
        return cohort_sizes + canary_weight
    return cohort_sizes


def _bound_warnings(
    record: AuditRecord, answer: Answer
) -> Iterator[ReportWarning]:
    """Warnings if ε is above the theory, or the lower bound above the estimate's interval."""
    estimate = answer.estimate
    if answer.proved is None or estimate is None:
        return
    view = what_is_seen(answer, record)
    limit = number(answer.analytical.epsilon)
    lower_bound = (
        f"the least ε that is proved of {view} ({number(answer.proved)})"
    )
    confidence = _FAULT_CONFIDENCE
    if answer.adversary.sees_final:
        confidence = _FINAL_MODEL_FAULT_CONFIDENCE
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
            f"{lower_bound} is more than theory allows ({limit}), which happens by chance in up to "
            f"{chance}",
        )
    if answer.contradicted:
        yield ReportWarning(
            "contradicted",
            f"{lower_bound} is above the interval of its estimate ({interval(estimate)})",
        )


def refutation(evidence: Evidence) -> str:
    """The evidence that refutes a claim, in words."""
    estimate = evidence.estimate
    if estimate is not None and not evidence.refuted_by_bound:
        return f"ε ≥ {number(estimate.low)} if its noise is Gaussian"
    return f"proved ε ≥ {number(evidence.lower_bound)}"


def _score_warnings(
    record: AuditRecord, answer: Answer
) -> Iterator[ReportWarning]:
    """Warnings if scores do not have the law that the estimate assumes."""
    if answer.scores is None or answer.fit is None:
        return
    view = what_is_seen(answer, record)
    if null_misfit(answer.scores):
        null = np.asarray(answer.scores.unobserved)
        yield ReportWarning(
            "null",
            f"canaries that took no part have scores against {view} with mean {null.mean():.2f} "
            f"and root mean square {np.sqrt(np.mean(null**2)):.2f}, where 0 and 1 are assumed",
        )
    if answer.fit.wide:
        width = answer.fit.width
        yield ReportWarning(
            "width",
            f"scores against {view} vary {width:.2f} times as much as assumed",
        )


def _scale_warnings(answer: Answer) -> Iterator[ReportWarning]:
    """A warning if the interval of κ excludes 1: scores are not as large as expected.

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
    fit = ladder_fit(view, None, _SCALE_CONFIDENCE)
    if fit.low <= 1 <= fit.high:
        return
    scale = max(fit.scale, 0.0)  # a negative factor has no meaning
    text = (
        f"scores against {SEES['all']} are {scale:.2f} times the expected ones "
        f"({fit.low:.2f} – {fit.high:.2f}), possibly as "
    )
    if 1 / _MAX_SCALE_RATIO <= fit.scale <= _MAX_SCALE_RATIO:
        yield ReportWarning("caveat", f"{text}{_REVERSAL} {_CAUSES}")
    else:
        yield ReportWarning("strength", f"{text}{_CAUSES}")


def _proportionality_warnings(
    record: AuditRecord, answers: Sequence[Answer]
) -> Iterator[ReportWarning]:
    """Warnings if scores are not a single κ times the expected ones, at a joint level of 1%."""
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
            is_adjusted = fit.ratio != 1
            if not is_adjusted:
                yield ReportWarning("number", f"{text}; {_REMEDY}")
            else:
                # ε is that of the canaries that took part as often as the client, so that its
                # interval is valid.
                yield ReportWarning(
                    "caveat",
                    f"{text}: for canaries that took part as often as a client, κ is "
                    f"{fit.ratio:.2f} times that of all, and ε is computed from theirs",
                )
        trend_test = fit.trend_test
        if trend_test is not None and trend_test.rejects(level):
            text = f"{scores} depend on when canaries took part {_by_chance(trend_test)}"
            yield ReportWarning("time", f"{text}; {_REMEDY}")


def _by_chance(test: LadderTest) -> str:
    return f"(by chance with probability {test.p_value:.1g})"


def _training_warnings(
    record: AuditRecord, *, diverged: bool
) -> Iterator[ReportWarning]:
    """Warnings about the canaries' share, the model's quality, an early end, and the caveat.

    If the run has diverged, the model's quality is not mentioned again.
    """
    share = canary_share(record)
    if share is not None and share > MAX_CANARY_SHARE:
        yield ReportWarning(
            "load",
            f"canaries are {share:.0%} of a round's weight, so that the measured training is not "
            "that without them",
        )
    no_learning_text = no_better_than_constant(record)
    if no_learning_text and not diverged:
        if tells_apart(record):
            yield ReportWarning(
                "caveat",
                f"{no_learning_text}, but the model tells examples apart: its predictions are too "
                "extreme",
            )
        else:
            yield ReportWarning("learning", no_learning_text)
    stop = record.findings.stopped
    if stop is not None:
        yield ReportWarning(
            "stopped",
            f"the run ended after round {stop.after} because of its scores "
            f"({record.design.stop_when}): intervals are valid whenever a run ends, but lower "
            "bounds have their confidence only for a fixed number of rounds",
        )
    if record.design.caveat:
        yield ReportWarning("caveat", record.design.caveat.rstrip("."))
