"""What makes an answer unreliable, or changes how it is to be read: warnings, by their rank.

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
    MOST_SHARE,
    Answer,
    AuditRecord,
    Evidence,
    divergence,
    evidence_against_theory,
    ladder_fit,
    no_better_than_constant,
    null_misfit,
    tells_apart,
    updates_lost,
)
from fl_epe.reporting import charts
from fl_epe.reporting.numbers import interval
from fl_epe.wording import number

Status = Literal["ok", "unreliable", "faulty", "diverged", "not measured"]

SEES = {"final": "the final model", "all": "every round's model"}
"""What an adversary sees, in words of a sentence."""


def what_is_seen(one: Answer, record: AuditRecord | None) -> str:
    """As `SEES`, for a record after which there may be more rounds."""
    sees = one.adversary.sees
    return SEES[sees] if sees == "all" else f"the {charts.seen(sees, record)}"


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
"""Kinds of warnings, the most important first, with what a report with such a warning is worth."""

LEAST_PARAMETERS = 100
"""Where there are fewer, and scores do not follow their law, that is why."""

_TOO_FEW_PARAMETERS = 20  # 95% intervals of every round hold in 80% of runs with 12
_OF_LAW = ("doubts", "contradicted", "null", "width", "number", "time", "strength")
_FEW = "the model has {} parameters, in which random directions overlap more than scores assume"

SURE = 0.99  # confidence of a verdict that accuses an implementation, as of `assert_private`
_SURER = 0.999  # the same against an adversary for whom nothing is claimed
_FAR = 1.5  # of κ or its inverse: more than training takes back in sound runs of small models
_CAUSES = (
    "the server's learning rate decays or its momentum or optimizer is another one than the audit "
    "was told, or updates are clipped again after averaging"
)
_TAKEN_BACK = (
    "training takes back a part of what a client adds, "
    "most of all in a small model, or where"
)
_NEXT = (
    "more canaries (--num-canaries), each as often as a client, tell whether ε is right"
)
_LEVEL = 0.01  # of the tests of κ of a report together


@dataclasses.dataclass(frozen=True)
class ReportWarning:
    """One warning.

    Attributes:
        code: its kind, one of `CODES`.
        text: what is wrong, as a clause without its full stop.
    """

    code: str
    text: str

    @property
    def status(self) -> Status:
        """What a report with it is worth."""
        return CODES[self.code]


def warnings_of(
    record: AuditRecord, answers: Sequence[Answer]
) -> tuple[ReportWarning, ...]:
    """All warnings of a run, the most important first.

    Args:
        record: the audit record of a run.
        answers: its answers.
    """
    diverged = divergence(record)
    found = [("diverged", text) for text in diverged]
    found += [("not-measured", one.reason) for one in answers if one.estimate is None]
    found += [("steps", text) for text in record.findings.step_faults]
    found += [("doubts", text) for text in record.findings.doubts]
    if (lost := updates_lost(record)) is not None:
        found.append(
            ("lost", f"{lost}, so that ε is that of the clients that answered")
        )
    for one in answers:
        found += [
            *_of_proof(record, one),
            *_of_scores(record, one),
            *_of_strength(record, one),
        ]
    found += [*_of_tests(record, answers), *_of_run(record, diverged=bool(diverged))]
    measured = any(one.estimate is not None for one in answers)
    is_off = record.dim < LEAST_PARAMETERS and any(code in _OF_LAW for code, _ in found)
    if is_off or (measured and record.dim < _TOO_FEW_PARAMETERS):
        found.append(("size", _FEW.format(record.dim)))
    order = list(CODES)
    ranked = sorted(dict.fromkeys(found), key=lambda one: order.index(one[0]))
    return tuple(ReportWarning(*one) for one in ranked)


def canary_share(record: AuditRecord) -> float | None:
    """Share of the canaries in the weight of a round, on average; ``None`` if it is not known."""
    own, offsets = float(record.shares().sum()), record.clients.offsets
    whole = record.rounds * record.mechanism.cohort_size
    if (
        record.mechanism.participation.unit == "example"
    ):  # a batch is counted without them
        whole += own
    if offsets is not None and offsets[-1]:
        whole = own + float(offsets[-1])
    return own / whole if own and whole > 0 and math.isfinite(whole) else None


def _of_proof(record: AuditRecord, one: Answer) -> Iterator[tuple[str, str]]:
    if one.proved is None or one.estimate is None:
        return
    seen, limit = what_is_seen(one, record), number(one.analytical.epsilon)
    proved = f"the least ε that is proved of {seen} ({number(one.proved)})"
    # For the adversary of the accounting, the confidence of `assert_private`.
    level = _SURER if one.adversary.sees_final else SURE
    sure = evidence_against_theory(record, one.adversary, one.estimate.delta, level)
    if sure is not None and sure.violated:
        text = (
            f"with {sure.confidence:.1%} confidence {seen} leaks more than theory allows ("
            f"{against(sure)}, allowed {number(sure.claimed)}), so that the training does not do "
            "what its privacy accounting assumes"
        )
        yield "exceeds-theory", text
    elif one.exceeds_theory:
        chance = f"{1 - one.estimate.confidence:.0%} of runs"
        text = f"{proved} is more than theory allows ({limit}), by chance in up to {chance}"
        yield "above-theory", text
    if one.contradicted:
        text = (
            f"{proved} is above the interval of its estimate ({interval(one.estimate)})"
        )
        yield "contradicted", text


def against(found: Evidence) -> str:
    """What refutes a claim, in words."""
    if found.estimate is not None and not found.proved:
        return f"ε ≥ {number(found.estimate.low)} if its noise is Gaussian"
    return f"proved ε ≥ {number(found.lower_bound)}"


def _of_scores(record: AuditRecord, one: Answer) -> Iterator[tuple[str, str]]:
    if one.scores is None or one.fit is None:
        return
    seen, width = what_is_seen(one, record), one.fit.width
    if null_misfit(one.scores):
        null = np.asarray(one.scores.unobserved)
        text = (
            f"canaries that took no part have scores against {seen} of mean {null.mean():.2f} and "
            f"width {np.sqrt(np.mean(null**2)):.2f}, where 0 and 1 are assumed"
        )
        yield "null", text
    if one.fit.wide:
        yield (
            "width",
            f"scores against {seen} vary {width:.2f} times as much as is assumed",
        )


def _of_strength(record: AuditRecord, one: Answer) -> Iterator[tuple[str, str]]:
    """κ's interval without 1: canaries do not show up as strongly as what they added.

    Training that forgets does that to a final model without any mistake.
    """
    if one.view is None or one.adversary.sees_final or not one.view.sizes.known:
        return
    fit = ladder_fit(one.view, None, SURE)
    if fit.low <= 1 <= fit.high:
        return
    text = (
        f"canaries show up {max(fit.scale, 0.0):.2f} times as strongly in {SEES['all']} as what "
        f"they added should ({fit.low:.2f} – {fit.high:.2f}), as where "
    )
    if 1 / _FAR <= fit.scale <= _FAR:
        yield "caveat", f"{text}{_TAKEN_BACK} {_CAUSES}"
    else:
        yield "strength", f"{text}{_CAUSES}"


def _of_tests(
    record: AuditRecord, answers: Sequence[Answer]
) -> Iterator[tuple[str, str]]:
    """The tests of κ, which have their level together.

    Where scores do not grow as assumed and the answer has followed canaries that took part as often
    as its client (`LadderFit.ratio`), its interval is right, and this is a caveat.
    """
    fits = [
        (what_is_seen(one, record), one.fit) for one in answers if one.fit is not None
    ]
    number_ = "do not grow with the number of participations as is assumed"
    time = "depend on when canaries took part"
    tests = [
        ("number", fit.number, f"{seen} {number_}", fit.ratio) for seen, fit in fits
    ]
    tests += [("time", fit.time, f"{seen} {time}", 1.0) for seen, fit in fits]
    level = _LEVEL / max(sum(test is not None for _, test, *_ in tests), 1)
    for code, test, what, ratio in tests:
        if test is None or not test.found(level):
            continue
        text = f"scores against {what} (by chance with probability {test.p_value:.1g})"
        if ratio != 1:
            told = f"took part as often as a client show up {ratio:.2f} times as strongly as all"
            yield "caveat", f"{text}: canaries that {told}, and ε follows them"
        else:
            yield code, f"{text}; {_NEXT}"


def _of_run(record: AuditRecord, *, diverged: bool) -> Iterator[tuple[str, str]]:
    share = canary_share(record)
    if share is not None and share > MOST_SHARE:
        text = f"canaries are {share:.0%} of a round's weight, so that the measured training"
        yield "load", f"{text} is not that without them"
    if not diverged and (why := no_better_than_constant(record)):
        sure = f"{why}, but it tells examples apart: its predictions are too extreme"
        yield ("caveat", sure) if tells_apart(record) else ("learning", why)
    if (stop := record.findings.stopped) is not None:
        text = (
            f"the run ended after round {stop.after} because of its scores "
            f"({record.design.stop_when}): intervals hold at every round at once, but proofs less "
            "often than they say"
        )
        yield "stopped", text
    if record.design.caveat:
        yield "caveat", record.design.caveat.rstrip(".")
