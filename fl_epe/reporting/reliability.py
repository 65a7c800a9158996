"""What makes an answer unreliable, or changes how it is to be read: warnings, by their rank.

Examples:
    >>> ReportWarning("load", "canaries are 40% of a round's weight").status
    'unreliable'
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import scipy

from fl_epe.auditing import Answer, AuditRecord, answer, divergence, null_misfit
from fl_epe.reporting.numbers import number

Status = Literal["ok", "unreliable", "faulty", "diverged", "not measured"]

SEES = {"final": "the final model", "all": "every round's model"}
"""What an adversary sees, in words of a sentence."""

CODES: dict[str, Status] = {
    "diverged": "diverged",
    "not-measured": "not measured",
    "steps": "faulty",
    "exceeds-theory": "faulty",
    "above-theory": "unreliable",
    "contradicted": "unreliable",
    "doubts": "unreliable",
    "load": "unreliable",
    "null": "unreliable",
    "width": "unreliable",
    "number": "unreliable",
    "time": "unreliable",
    "learning": "unreliable",
    "stopped": "ok",
    "caveat": "ok",
}
"""Kinds of warnings, the most important first, with what a report with such a warning is worth."""

MOST_SHARE = 1 / 6
"""Of a round's weight that canaries may have."""

_SURE = 0.999  # confidence of a proof that accuses an implementation
_LEVEL = 0.01  # of the tests of κ of a report together
_EARLY = 10  # rounds that a model has to leave chance


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


def warnings_of(record: AuditRecord, answers: Sequence[Answer]) -> tuple[ReportWarning, ...]:
    """All warnings of a run, the most important first.

    Args:
        record: the audit record of a run.
        answers: its answers.
    """
    found = [ReportWarning("diverged", text) for text in divergence(record)]
    reasons = dict.fromkeys(one.reason for one in answers if one.estimate is None)
    found += [ReportWarning("not-measured", reason) for reason in reasons]
    found += [ReportWarning("steps", text) for text in record.findings.step_faults]
    found += [ReportWarning("doubts", text) for text in record.findings.doubts]
    for one in answers:
        found += _of_proof(record, one)
        found += _of_scores(one)
    found += _of_tests(answers)
    found += _of_run(record, diverged=bool(found) and found[0].code == "diverged")
    order = list(CODES)
    return tuple(sorted(found, key=lambda one: order.index(one.code)))


def canary_share(record: AuditRecord) -> float | None:
    """Share of the canaries in the weight of a round, on average; ``None`` if it is not known."""
    own, offsets = float(record.shares().sum()), record.clients.offsets
    whole = record.rounds * record.mechanism.cohort_size
    if offsets is not None and offsets[-1]:
        whole = own + float(offsets[-1])
    return own / whole if own and whole > 0 and math.isfinite(whole) else None


def _of_proof(record: AuditRecord, one: Answer) -> Iterator[ReportWarning]:
    if one.proved is None or one.estimate is None:
        return
    seen, proved, limit = SEES[one.adversary.sees], number(one.proved), one.analytical.epsilon
    if one.exceeds_theory and limit is not None:
        sure = answer(record, one.adversary, one.estimate.delta, _SURE)
        if sure.exceeds_theory:
            yield ReportWarning(
                "exceeds-theory",
                f"with {_SURE:.1%} confidence {seen} leaks more than theory allows (proved "
                f"ε ≥ {number(sure.proved)}, allowed {number(limit)}): the training does not do "
                "what its privacy accounting assumes",
            )
        else:
            yield ReportWarning(
                "above-theory",
                f"what is proved of {seen} (ε ≥ {proved}) is more than theory allows "
                f"({number(limit)}), which happens by chance in up to "
                f"{1 - one.estimate.confidence:.0%} of runs",
            )
    if one.contradicted:
        ends = f"{number(one.estimate.low)} – {number(one.estimate.high)}"
        yield ReportWarning(
            "contradicted",
            f"what is proved of {seen} (ε ≥ {proved}) is above the interval of its estimate "
            f"({ends})",
        )


def _of_scores(one: Answer) -> Iterator[ReportWarning]:
    if one.scores is None or one.fit is None:
        return
    seen = SEES[one.adversary.sees]
    if null_misfit(one.scores):
        null = np.asarray(one.scores.unobserved)
        yield ReportWarning(
            "null",
            f"canaries that took no part have scores against {seen} of mean {null.mean():.2f} and "
            f"width {np.sqrt(np.mean(null**2)):.2f}, where 0 and 1 are assumed",
        )
    freedom = max(len(one.scores.observed) - 1, 1)
    if scipy.stats.chi2.sf(one.fit.width**2 * freedom, freedom) < 1 - _SURE:
        yield ReportWarning(
            "width", f"scores against {seen} vary {one.fit.width:.2f} times as much as is assumed"
        )


def _of_tests(answers: Sequence[Answer]) -> Iterator[ReportWarning]:
    """The tests of κ, which have their level together."""
    fits = [(one, one.fit) for one in answers if one.fit is not None]
    tests = [(one, "number", fit.number) for one, fit in fits]
    tests += [(one, "time", fit.time) for one, fit in fits]
    count = sum(test is not None for _, _, test in tests)
    words = {
        "number": "do not grow with the number of participations as is assumed",
        "time": "depend on when a canary took part, which is assumed not to matter",
    }
    for one, code, test in tests:
        if test is not None and test.p_value < _LEVEL / count:
            yield ReportWarning(
                code,
                f"scores against {SEES[one.adversary.sees]} {words[code]} (p = {test.p_value:.1g})",
            )


def _of_run(record: AuditRecord, *, diverged: bool) -> Iterator[ReportWarning]:
    share = canary_share(record)
    if share is not None and share > MOST_SHARE:
        yield ReportWarning(
            "load",
            f"canaries are {share:.0%} of a round's weight, so that another training than that of "
            "the clients alone was measured",
        )
    if not diverged and (text := _not_learned(record)):
        yield ReportWarning("learning", text)
    if (stop := record.findings.stopped) is not None:
        yield ReportWarning(
            "stopped",
            f"the run ended after round {stop.after} because of its scores "
            f"({record.design.stop_when}): intervals and proofs hold less often than they say",
        )
    if record.design.caveat:
        yield ReportWarning("caveat", record.design.caveat.rstrip("."))


def _not_learned(record: AuditRecord) -> str | None:
    """Why the model has learned nothing by the last evaluation, if that was not early."""
    design, metrics = record.design, record.metrics
    rounds = np.asarray(metrics.get("eval_round", ()))
    if not len(rounds) or rounds[-1] < _EARLY:
        return None
    name, chance, loss = design.metric, design.chance_accuracy, design.chance_loss
    value = float(metrics["eval_accuracy"][-1]) if len(metrics.get("eval_accuracy", ())) else None
    if name == "accuracy" and chance is not None and value is not None and value <= chance:
        return f"accuracy on held-out data is {value:.1%}, no better than a guess ({chance:.1%})"
    if name.lower().replace("_", "") in ("r2", "r2score") and value is not None and value <= 0:
        return f"R² on held-out data is {value:.2f}, no better than predicting the mean"
    last = float(metrics["eval_loss"][-1]) if len(metrics.get("eval_loss", ())) else None
    if loss is not None and last is not None and name != "accuracy" and last >= loss:
        return (
            f"the loss on held-out data is {last:.3g}, no better than predicting the mean "
            f"({loss:.3g})"
        )
    return None
