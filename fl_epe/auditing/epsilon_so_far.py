"""ε after each round of a run, for an adversary who sees every round's model and knows the rounds.

`EpsilonSoFar` is the only implementation. A `RunAuditor` adds each round's scores to one during the
run and keeps them in the record, from which `epsilon_by_round` says the same numbers again.

Its intervals are a confidence sequence. A 95% interval that is computed anew after every round
excludes the truth in some round far more often than in 5% of runs. A confidence sequence does so in
at most 5% of runs, over all rounds together, and one may stop when it says enough. Scores must have
variance 1 and come one after the other; each has a mean of its own given those before, so that
their sum less its mean is a random walk. `boundary` says how far the walk strays. Derivation and
cost: docs/notes/watching.md.

Examples:
    >>> so_far = EpsilonSoFar(dim=10_000, count=2, planned=4.0)
    >>> so_far.add([0, 1], np.array([3.0, 2.5]), np.ones(2))
    >>> so_far.estimate(1e-5).epsilon < so_far.estimate(1e-9).epsilon
    True
"""

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Collection

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fl_epe.accounting import ExpectedScoreLaw, known_expected_score_epsilon
from fl_epe.auditing.epsilon_estimate import EVERY_ROUND, EpsilonEstimate
from fl_epe.auditing.measured import NotMeasured, check_measured
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.view import seen_by
from fl_epe.auditing.whitening import SKETCH_PARTS, Precision, energy_of_pairs, reach_of
from fl_epe.checks import Floats, check_count, check_positive, check_probability, raise_invalid

METHOD = "matched filter so far, average-case canary, interval valid at every round at once"

SHAPE = 0.2  # exponent Δ of the boundary c·t^Δ; 0 is tightest at the end, ½ is too wide
UNPLANNED = 100.0  # scores after which it is tightest, where nobody said how many there will be

_PLAN_MARGIN = 1.1  # of the planned information, as rounds differ a little in what they show
_BEYOND = 0.04  # share of the error that is left for what comes after the planned end
_STEPS = 400  # of the integral equation for c
_INEXACT = 1e-3  # its relative error, which is taken off the error that is asked for
_NEVER = 9.0  # standard deviations that a walk is not above before the first step


def crossing_probability(height: float, steps: int = _STEPS, shape: float = SHAPE) -> float:
    """How likely it is that a Brownian motion is ever above ``height · t^Δ`` for t in (0, 1].

    Solves the integral equation of the first crossing's density (Buonocore, Nobile and Ricciardi
    1987) on a grid of times. Error: below `_INEXACT` of the result, which a test shows.

    Args:
        height: c.
        steps: of the grid.
        shape: Δ, below ½.
    """
    first = min((_NEVER / height) ** (1 / (shape - 0.5)), 0.01)  # no crossing before
    logs, gap = np.linspace(math.log(first), 0.0, steps + 1, retstep=True)
    times = np.exp(logs)
    tops = height * times**shape
    slopes = shape * tops / times
    found = (tops / times - slopes) * _density(tops, times)
    for now in range(1, steps + 1):
        left, rise = times[now] - times[:now], tops[now] - tops[:now]
        again = (slopes[now] - rise / left) * _density(rise, left)
        found[now] += gap * np.sum(again * found[:now] * times[:now])
    return float(gap * (np.sum(found * times) - found[-1] / 2))


def _density(values: Floats, variances: Floats) -> Floats:
    return np.asarray(np.exp(-(values**2) / (2 * variances)) / np.sqrt(2 * math.pi * variances))


@functools.cache
def boundary_height(error: float) -> float:
    """The c for which c·t^Δ is crossed with probability at most ``error``, from above.

    Raises:
        ValueError: if ``error`` is not in [1e-9, 0.4].
    """
    if not 1e-9 <= error <= 0.4:
        raise_invalid("error", error, "in [1e-9, 0.4]")
    wanted = error * (1 - _INEXACT)
    low, high = max(0.5, -float(scipy.special.ndtri(error))), 8.0
    found = scipy.optimize.brentq(lambda c: crossing_probability(c) - wanted, low, high, xtol=1e-6)
    return float(found) + 1e-6


def boundary(information: ArrayLike, error: float, horizon: float, planned: bool = True) -> Floats:
    """How far above its mean a sum of scores may be, once there is so much ``information``.

    It is exceeded at any information > 0, with any number of looks, with probability at most
    ``error``, whatever ``horizon`` is. That decides where the boundary is tight, and must be chosen
    before the scores are seen. It is infinite where nothing is known.

    Args:
        information: the number of scores so far, or the sum of squared weights.
        error: probability, one-sided.
        horizon: information at the planned end, after which the boundary is wider.
        planned: whether the end is planned; else ``horizon`` is where the boundary is tightest,
            and there is no end.
    """
    check_probability("error", error)
    check_positive("horizon", horizon)
    known = np.asarray(information, np.float64)
    if not planned:
        return np.where(known > 0, _mixture(known, error, horizon), np.inf)
    share = known / horizon
    height = boundary_height((1 - _BEYOND) * error)
    until = height * math.sqrt(horizon) * np.minimum(share, 1.0) ** SHAPE
    after = _mixture(known, _BEYOND * error, horizon)
    return np.where(known > 0, np.where(share <= 1, until, after), np.inf)


def _mixture(known: Floats, error: float, horizon: float) -> Floats:
    """Valid for ever: Robbins' mixture over a half-normal law, from above."""
    log = 2 * math.log(1 / (2 * error))
    rho = horizon / (log + math.log1p(log))
    odds = np.sqrt((known + rho) / rho) / (2 * error)
    return np.asarray(np.sqrt(2 * (known + rho) * np.log(odds + 0.5)))


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
        self._rounds, self._pairs, self._by_round = 0, 0.0, 0.0
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
        self._pairs += energy_of_pairs(signals, np.array(self._signals).reshape(-1, len(signals)))
        self._signals.append(signals)
        if not energies.any():
            return
        energy = math.fsum(energies)  # exact sums do not depend on the canaries' order
        variance = energy + math.fsum(gains) ** 2 / (2 * self._dim)
        self._totals += gains
        self._energies += energies
        self._fourths += energies**2
        self._variance += variance
        self._by_round += energy**2
        self._first = self._first or variance / max(len(present), 1)

    def estimate(self, delta: float, confidence: float = 0.95) -> EpsilonEstimate | None:
        """ε at ``delta``; ``None`` before two canaries took part."""
        check_probability("confidence", confidence)
        if np.count_nonzero(self._energies) < 2:
            return None
        reach = reach_of(self._rounds, self._window)
        precision = Precision.of(reach, self._dim, SKETCH_PARTS)
        energy = math.fsum(self._energies)
        unit_error = precision.unit_error(self._pairs, self._by_round, energy)
        sizes = precision.sizes(self._energies, self._fourths, unit_error)
        law = ExpectedScoreLaw.of(sizes[self._energies > 0])
        epsilon, low, high = (
            known_expected_score_epsilon(
                max(value, 0.0) * law.expected_scores, delta, weights=law.shares
            )
            for value in self._scale(confidence, energy, precision.own, unit_error)
        )
        return EpsilonEstimate(epsilon, low, high, delta, confidence, METHOD, EVERY_ROUND)

    def _scale(
        self, confidence: float, energy: float, width: float, unit_error: float
    ) -> tuple[float, float, float]:
        """κ with both ends of its interval, which allows for three times the error of its unit."""
        length = UNPLANNED if self._planned is None else _PLAN_MARGIN * self._planned
        known = self._variance * width**2
        error, planned = (1 - confidence) / 2, self._planned is not None
        half = float(boundary(known, error, length * self._first, planned)) / energy
        mean = math.fsum(self._totals) / energy
        half = math.hypot(half, 3 * unit_error * mean)
        return mean, mean - half, mean + half


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
    try:
        check_measured(record, EVERY_ROUND)
    except NotMeasured:
        return []
    view, planned = seen_by(record, EVERY_ROUND), record.running.planned
    if record.running.scores is None and record.mechanism.participation != "deployment":
        planned = record.num_canaries * record.mechanism.canary_participations
    chosen = set(np.unique(np.linspace(1, record.rounds, min(most, record.rounds)).round()))
    so_far = EpsilonSoFar(
        record.dim, record.num_canaries, planned, window=record.correlation.window
    )
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
