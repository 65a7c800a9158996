"""ε after each round of a run, for an adversary who sees every round's model and knows the rounds.

`EpsilonSoFar` is the only implementation. A `RunAuditor` adds each round's scores to one during the
run and keeps them in the record, from which `epsilon_by_round` says the same numbers again.

Examples:
    >>> so_far = EpsilonSoFar(dim=10_000, count=2, planned=4.0)
    >>> so_far.add([0, 1], np.array([3.0, 2.5]), np.ones(2))
    >>> so_far.estimate(1e-5).epsilon < so_far.estimate(1e-9).epsilon
    True
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Collection

import numpy as np

from fl_epe.accounting import ExpectedScoreLaw, known_expected_score_epsilon
from fl_epe.auditing.epsilon_estimate import EVERY_ROUND, EpsilonEstimate
from fl_epe.auditing.measured import NotMeasured, check_measured
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.record_parts import Floats
from fl_epe.auditing.sequential import UNPLANNED, WatchedMean
from fl_epe.auditing.view import seen_by
from fl_epe.auditing.whitening import SKETCH_PARTS, Precision, energy_of_pairs
from fl_epe.checks import check_count, check_probability

METHOD = "matched filter so far, average-case canary, interval valid at every round at once"
"""The method of an estimate after a round."""

_PLAN_MARGIN = 1.1  # of the planned information, as rounds differ a little in what they show


class EpsilonSoFar:
    """ε of an average-case canary of those that took part so far.

    The scores are those of the matched filter of `epsilon_from_record`: each canary's is κ times
    its expected score plus N(0, 1). κ is fitted over all canaries, and ε is that of
    `average_case_client` for one of them, drawn at random.

    The interval is a confidence sequence: with the stated probability those of *all* rounds hold.
    It is for κ, which in a round of weight a moves the expected score to κ·a; if κ changes, for its
    mean over the participations so far. See docs/notes/watching.md.

    Args:
        dim: dimension d of the model.
        count: number of canaries.
        planned: participations of all canaries together that the run is planned for, at which the
            intervals are tightest; ``None`` if nobody knows. It is no promise.
        window: rounds back to which correlations are followed, see `Whitener`.
    """

    def __init__(self, dim: int, count: int, planned: float | None = None, window: int = 1) -> None:
        self._dim, self._planned, self._window = dim, planned, window
        self._totals, self._energies, self._fourths = np.zeros((3, count))
        self._variance = self._first = 0.0  # of the sum of totals, and of its first participation
        self._rounds, self._pairs = 0, 0.0
        self._signals: deque[Floats] = deque(maxlen=window - 1)

    def add(self, present: Collection[int], scores: Floats, signals: Floats) -> None:
        """Note a round.

        All scores of a round share the random norm of its residual, so they are correlated. The
        norm's relative variance is at most 1/(2d), as of noise alone (`scores.mean_spread`).

        Args:
            present: numbers of the canaries that took part.
            scores: whitened score of each canary, ``(count,)``.
            signals: what it added to that, ``(count,)``.
        """
        self._rounds += 1
        gains, energies = signals * scores, signals**2
        before = np.array(self._signals).reshape(-1, len(signals))
        self._pairs += energy_of_pairs(signals, before)
        self._signals.append(signals)
        if not energies.any():
            return
        energy = math.fsum(energies)  # exact sums do not depend on the canaries' order
        variance = energy + math.fsum(gains) ** 2 / (2 * self._dim)
        self._totals += gains
        self._energies += energies
        self._fourths += energies**2
        self._variance += variance
        self._first = self._first or variance / max(len(present), 1)

    @property
    def energy(self) -> float:
        """Sum of all squared signals so far."""
        return math.fsum(self._energies)

    @property
    def _precision(self) -> Precision:
        return Precision.of(min(self._rounds, self._window), self._dim, SKETCH_PARTS)

    def scale(self, confidence: float = 0.95) -> WatchedMean | None:
        """κ with its confidence sequence; ``None`` before two canaries took part."""
        if np.count_nonzero(self._energies) < 2:
            return None
        length = UNPLANNED if self._planned is None else _PLAN_MARGIN * self._planned
        precision = self._precision
        return WatchedMean(
            math.fsum(self._totals),
            self.energy,
            length * self._first,
            planned=self._planned is not None,
            confidence=confidence,
            variance=self._variance * precision.width**2,
            unit_error=precision.unit_error(self._pairs, self.energy),
        )

    def estimate(self, delta: float, confidence: float = 0.95) -> EpsilonEstimate | None:
        """ε at ``delta``; ``None`` before two canaries took part."""
        scale = self.scale(confidence)
        if scale is None:
            return None
        sizes = self._precision.sizes(self._energies, self._fourths, scale.unit_error)
        law = ExpectedScoreLaw.of(sizes[self._energies > 0])
        epsilon, low, high = (
            known_expected_score_epsilon(
                max(value, 0.0) * law.expected_scores, delta, weights=law.shares
            )
            for value in (scale.mean, *scale.interval())
        )
        return EpsilonEstimate(epsilon, low, high, delta, confidence, METHOD, EVERY_ROUND)


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
    """ε so far after each round: what `RunAuditor.epsilon_so_far` said during the run.

    Of a record that nobody watched, such as that of independent canaries without a rule to stop,
    it is what would have been said, from the scores of `epsilon_from_record`.

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
        check_measured(record, EVERY_ROUND)
    except NotMeasured:
        return []
    view, planned = seen_by(record, EVERY_ROUND), record.running.planned
    if record.running.scores is None and record.mechanism.participation != "deployment":
        planned = record.num_canaries * record.mechanism.canary_participations
    chosen = set(np.unique(np.linspace(1, record.rounds, min(most, record.rounds)).round()))
    window = record.correlation.window
    so_far = EpsilonSoFar(record.dim, record.num_canaries, planned, window)
    counts, found = np.zeros(record.num_canaries, np.int64), []
    for t, (scores, signals) in enumerate(
        zip(view.whitened_scores, view.whitened_signals, strict=True)
    ):
        present = np.flatnonzero(record.presence[t])
        so_far.add(present, scores, signals)
        counts[present] += 1
        if t + 1 in chosen and (estimate := so_far.estimate(delta, confidence)) is not None:
            found.append(RoundEstimate(t + 1, estimate, int(counts.max())))
    return found
