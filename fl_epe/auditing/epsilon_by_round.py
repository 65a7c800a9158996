"""ε after each round of a finished run, from its record: what a watcher would have seen.

`RunningEstimate` follows ε during a run. A record that has every round's scores holds the same
numbers, so that a report can draw them afterwards. The intervals are a confidence sequence: with
the stated confidence those of all rounds hold at once.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.auditing.epsilon_estimate import EpsilonEstimate
from fl_epe.auditing.estimators import shift_estimate
from fl_epe.auditing.measured import NotMeasured, check_measured
from fl_epe.auditing.other_canaries import without_others
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.round_agreement import EXACT, Width
from fl_epe.auditing.run_auditor import PLAN_MARGIN, WATCHED
from fl_epe.auditing.score_spread import LEAST_CERTAINTY, LEAST_FOR_NULL, null_interval
from fl_epe.auditing.sequential import UNPLANNED, WatchedMean
from fl_epe.auditing.shifted_cosines import shift_scores
from fl_epe.auditing.statistics import participant_signals
from fl_epe.checks import check_count, check_probability

Floats = NDArray[np.float64]

_WIDTH_CONFIDENCE = 0.9973  # of three standard errors, as `RoundAgreement` allows for


@dataclasses.dataclass(frozen=True)
class RoundEstimate:
    """ε so far, after one of a run's rounds.

    Attributes:
        round: counted from 1.
        estimate: its interval is one of a confidence sequence.
        participations: most rounds so far in which one observed canary took part.
    """

    round: int
    estimate: EpsilonEstimate
    participations: int


def epsilon_by_round(
    record: AuditRecord, delta: float | None = None, *, confidence: float = 0.95, most: int = 200
) -> list[RoundEstimate]:
    """ε so far of the matched filter, for an adversary who sees every round's model.

    As `RunningEstimate` shows it during a run, but for scores that are wider than N(0, 1): a record
    keeps no sketches of the rounds, so that their width is the one of the unobserved canaries so
    far, where it is certainly above 1. Then the interval is a little narrower than the one that was
    shown, which allowed for the error of the sketches.

    Args:
        record: the audit record of a run.
        delta: target δ; the record's by default.
        confidence: of all intervals together.
        most: number of rounds to return at most; of longer runs they are evenly spread, with the
            last one.

    Returns:
        In the order of the rounds, from the first after which two canaries had taken part; empty if
        nothing was measured.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count("most", most)
    delta = record.delta if delta is None else delta
    check_probability("delta", delta)
    check_probability("confidence", confidence)
    try:
        check_measured(record, "all")
    except NotMeasured:
        return []
    sums = _Sums(record, confidence)
    chosen = set(np.unique(np.linspace(1, record.rounds, min(most, record.rounds)).round()))
    found = []
    for t in range(record.rounds):
        sums.add(t)
        if t + 1 in chosen and (estimate := sums.estimate(delta)) is not None:
            found.append(RoundEstimate(t + 1, estimate, int(sums.counts.max())))
    return found


class _Sums:
    """Sums of weighted scores of each canary, and what the confidence sequence needs."""

    def __init__(self, record: AuditRecord, confidence: float) -> None:
        known = record.signal_known()
        self._signals = participant_signals(record) if known else record.presence * 1.0
        alone = without_others(record)
        self._cosines, self._presence = alone.observed.means, record.presence
        self._dim, self._confidence = record.dim, confidence
        run = record.mechanism
        planned = run.participation != "deployment"  # else nobody knew how often
        self._planned = record.num_canaries * run.canary_participations if planned else None
        self._others = alone.unobserved.means
        self._borrowed = np.resize(np.arange(record.num_canaries), record.unobserved.count)
        self._null, self._null_energy = np.zeros((2, record.unobserved.count))
        self._total, self._energy = np.zeros(record.num_canaries), np.zeros(record.num_canaries)
        self._variance = self._first = 0.0
        self.counts = np.zeros(record.num_canaries, np.int64)

    def add(self, t: int) -> None:
        here, signals = self._presence[t], self._signals[t]
        self.counts += here
        if not signals.any():
            return
        theirs = signals[self._borrowed]  # as if each had the rounds of one that took part
        self._null += theirs * shift_scores(self._others[t], self._dim)
        self._null_energy += theirs**2
        gains = signals[here] * shift_scores(self._cosines[t, here], self._dim)
        self._total[here] += gains
        self._energy += signals**2
        variance = float(np.sum(signals**2)) + float(gains.sum()) ** 2 / (2 * self._dim)
        self._variance += variance
        self._first = self._first or variance / len(gains)

    def estimate(self, delta: float) -> EpsilonEstimate | None:
        seen = self._energy > 0
        if np.count_nonzero(seen) < 2:
            return None
        length = UNPLANNED if self._planned is None else PLAN_MARGIN * self._planned
        width = self._width()
        watched = WatchedMean(
            float(self._total.sum()) / width.value,
            float(self._energy.sum()),
            length * self._first,
            planned=self._planned is not None,
            confidence=self._confidence,
            variance=self._variance,
            width=width,
        )
        roots = np.sqrt(self._energy[seen])
        shift = float(np.mean(self._total[seen] / roots)) / width.value
        low, high = (end * float(roots.mean()) for end in watched.interval())
        ends = min(low, shift), max(high, shift)  # footprints may differ
        method = WATCHED if width is EXACT else f"{WATCHED}, measured width"
        return shift_estimate(shift, ends, delta, self._confidence, method)

    def _width(self) -> Width:
        """Of the unobserved canaries' scores, where it is certainly above 1."""
        seen = self._null_energy > 0
        count = int(np.count_nonzero(seen))
        if count < LEAST_FOR_NULL:
            return EXACT
        square = float(np.mean(self._null[seen] ** 2 / self._null_energy[seen]))
        if count * square <= scipy.stats.chi2.ppf(LEAST_CERTAINTY, count):
            return EXACT
        width = math.sqrt(square)
        low, high = null_interval(width, count, _WIDTH_CONFIDENCE)
        return Width(width, max(low, 1.0), high)
