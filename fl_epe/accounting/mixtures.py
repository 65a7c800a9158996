"""ε of an average-case client, where clients have different expected scores.

The score of a client with expected score m ≥ 0 is N(m, 1), and N(0, 1) without the client. Where
expected scores differ, the ε of the mean expected score is not that of the attack on an
average-case client, because the few clients with large expected scores decide δ. There are two
adversaries:

- one who knows the client's expected score (for example from the client's rounds):
  δ(ε) is the mean of δ(m; ε) over the clients;
- one who does not: δ(ε) is that of the mixture Σ w_i N(m_i, 1) against N(0, 1), in both directions.

The first is never weaker than the second. Derivation: docs/notes/unknown-rounds.md.

Examples:
    >>> from fl_epe.accounting import epsilon_two_gaussians
    >>> round(known_expected_score_epsilon([1.0, 1.0], delta=1e-5), 3)  # equal expected scores
    4.377
    >>> round(known_expected_score_epsilon([0.0, 2.0], delta=1e-5), 3)  # also a mean of 1
    9.675
    >>> round(unknown_expected_score_epsilon([0.0, 2.0], delta=1e-5), 3)
    8.981
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fl_epe.accounting.two_gaussians import LARGEST_SHIFT, SHORT_GAP, quadrature
from fl_epe.checks import Floats, check_probability, raise_invalid

_MAX_VALUES = 50_000  # more distinct expected scores are rounded up to a grid
_GRID_DISTANCE = 5e-5  # relative distance of that grid's points
# At lower arguments the logarithm of Mills' ratio is computed by log_ndtr instead of erfcx, which
# overflows.
_LOWEST_FOR_ERFCX = -5.0
# Error of a computed ln δ, by which the target ln δ is lowered.
_ROUNDING = 1e-12
# Values count as the largest one if their relative difference from it is below this.
_AS_LARGE = 1e-6
# A smaller excess of ln δ over its target is cut off, as brentq needs finite values.
_LOWEST_EXCESS = -1e3
_ROOT_ERROR = 1e-15  # relative error of a root
# Roots have a relative error only; brentq does not accept 0.
_NO_ABSOLUTE_ERROR = 1e-300
# Bisection from 1e140 down to this error would take 1,500 steps, and brentq may take more.
_MAX_STEPS = 5000
_MIN_SIZE = 1e-3  # a root nearer to 0 may have the absolute error of a root of this size


def known_expected_score_epsilon(
    expected_scores: ArrayLike,
    delta: float,
    *,
    weights: ArrayLike | None = None,
) -> float:
    """ε of an average-case client whose expected score the adversary knows.

    It is the ε at which the mean of δ(m_i; ε) over the clients is δ.

    Args:
        expected_scores: m_i ≥ 0, any shape; infinity is allowed.
        delta: target δ in (0, 1).
        weights: the weight of each expected score, ≥ 0, in their shape; by default all are
            equal.

    Returns:
        The smallest ε ≥ 0, rounded up; infinite if the share of expected scores above 1e140 is at
        least δ. If there are more than 50,000 distinct expected scores, each is first rounded up,
        by at most a factor of 1.00005.

    Raises:
        ValueError: for negative or NaN expected scores, weights that cannot be normalised, or a
            ``delta`` outside (0, 1).
    """
    return _epsilon(_solve_known, expected_scores, delta, weights)


def unknown_expected_score_epsilon(
    expected_scores: ArrayLike,
    delta: float,
    *,
    weights: ArrayLike | None = None,
) -> float:
    """ε of an average-case client whose expected score the adversary does not know.

    It is the exact ε between Σ w_i N(m_i, 1) and N(0, 1), the larger one of the two directions.
    Arguments and errors are as in `known_expected_score_epsilon`.
    """
    return _epsilon(_solve_unknown, expected_scores, delta, weights)


@dataclasses.dataclass(frozen=True, eq=False)
class _Clients:
    """Distinct expected scores in (0, 1e140] with their shares, and the shares outside that range.

    Attributes:
        expected_scores: m, ascending.
        log_shares: ln of the share of all clients with each of them.
        log_zero_share: ln of the share of clients whose expected score is 0.
        infinite_share: the share of clients whose expected score is above 1e140, so that their ε
            is infinite.
    """

    expected_scores: Floats
    log_shares: Floats
    log_zero_share: float
    infinite_share: float

    @classmethod
    def of(
        cls, expected_scores: ArrayLike, weights: ArrayLike | None
    ) -> _Clients:
        """Clients from the arguments of `known_expected_score_epsilon`."""
        scores = np.asarray(expected_scores, np.float64).ravel()
        if not len(scores):
            raise_invalid("expected_scores", expected_scores, "to have values")
        is_valid = scores >= 0
        if not np.all(is_valid):
            raise_invalid("expected_scores", scores[~is_valid][0], ">= 0")
        if weights is None:
            weights = np.ones(len(scores))
        shares = np.asarray(weights, np.float64).ravel()
        if len(shares) != len(scores):
            raise_invalid(
                "weights",
                shares,
                f"to be {len(scores)}, one for each expected score",
            )
        total = shares.sum()
        if not (np.all(shares >= 0) and 0 < total < np.inf):
            raise_invalid("weights", shares, ">= 0 with a finite sum > 0")
        values, places = np.unique(scores, return_inverse=True)
        if len(values) > _MAX_VALUES:
            values, places = np.unique(rounded_up(scores), return_inverse=True)
        summed = np.bincount(places, shares / total, minlength=len(values))
        is_regular = (values > 0) & (values <= LARGEST_SHIFT) & (summed > 0)
        zero_share = float(summed[values == 0].sum())
        infinite_share = float(summed[values > LARGEST_SHIFT].sum())
        return cls(
            values[is_regular],
            np.log(summed[is_regular]),
            math.log(zero_share) if zero_share > 0 else -math.inf,
            min(infinite_share, 1.0),
        )

    def log_delta_known(self, epsilon: float) -> float:
        """Logarithm of the mean of δ(m; ε)."""
        # The score at which the log ratio of N(m, 1) to N(0, 1) is ε.
        scores = self.expected_scores / 2 + epsilon / self.expected_scores
        return self._log_mean_delta(scores)

    def log_delta_removed(self, score: float) -> float:
        """Logarithm of P[x > s] − e^ε Q[x > s], with P the mixture and ε its log ratio at s."""
        return self._log_mean_delta(score)

    def log_delta_added(self, score: float) -> float:
        """Logarithm of Q[x < s] − e^ε P[x < s], with −ε the log ratio at s."""
        # For each m, the logarithm of Φ(s) e^(ms − m²/2) − Φ(s − m), without cancellation.
        starts = np.full_like(self.expected_scores, -score)
        fall = _fall_of_log_mills(starts, self.expected_scores)
        gains = scipy.special.log_ndtr(score) + self._log_ratios(score)
        gains += _log_one_minus_exp(fall)
        log_gain = np.logaddexp.reduce(self.log_shares + gains)
        return float(log_gain - self.log_ratio(score))

    def _log_mean_delta(self, scores: Floats | float) -> float:
        """Logarithm of the mean of Φ(m − s) − e^(ms − m²/2) Φ(−s), without cancellation.

        Args:
            scores: s for each m, or one for all.
        """
        distances = scores - self.expected_scores
        fall = _fall_of_log_mills(distances, self.expected_scores)
        log_deltas = scipy.special.log_ndtr(-distances)
        log_deltas += _log_one_minus_exp(fall)
        return float(np.logaddexp.reduce(self.log_shares + log_deltas))

    def log_ratio(self, score: float) -> float:
        """Logarithm of the mixture's density over that of N(0, 1); it rises with the score."""
        terms = self.log_shares + self._log_ratios(score)
        return float(np.logaddexp.reduce(np.append(terms, self.log_zero_share)))

    def _log_ratios(self, score: float) -> Floats:
        """Logarithm of the density of N(m, 1) over that of N(0, 1) for each m."""
        return self.expected_scores * (score - self.expected_scores / 2)

    def score_of(self, log_ratio: float) -> float:
        """The score at which the mixture has this log ratio."""
        low = -1.0
        high = 1.0
        while self.log_ratio(high) < log_ratio:
            high *= 2
        while self.log_ratio(low) > log_ratio:
            low *= 2
        return _root(lambda score: self.log_ratio(score) - log_ratio, low, high)


def _epsilon(
    solve: Callable[[_Clients, float], float],
    expected_scores: ArrayLike,
    delta: float,
    weights: ArrayLike | None,
) -> float:
    """The result of ``solve`` for the logarithm of the δ that finite expected scores may use."""
    clients = _Clients.of(expected_scores, weights)
    check_probability("delta", delta)
    finite_delta = delta - clients.infinite_share
    if finite_delta <= 0:
        return math.inf
    if not len(clients.expected_scores):
        return 0.0
    return solve(clients, math.log(finite_delta) - _ROUNDING)


def _solve_known(clients: _Clients, log_delta: float) -> float:
    """The smallest ε if the adversary knows the expected scores."""
    return _first_at_most(clients.log_delta_known, log_delta, 0.0, 1.0)


def _solve_unknown(clients: _Clients, log_delta: float) -> float:
    """The smallest ε if the adversary does not know the expected scores.

    The search is over scores, because the ε at each score has a closed form.
    """
    # At this score ε is 0, and δ is the same in both directions.
    start = clients.score_of(0.0)
    if clients.log_delta_removed(start) <= log_delta:
        return 0.0
    removed = _first_at_most(clients.log_delta_removed, log_delta, start, 1.0)
    added = _first_at_most(clients.log_delta_added, log_delta, start, -1.0)
    return max(clients.log_ratio(removed), -clients.log_ratio(added), 0.0)


def _first_at_most(
    value: Callable[[float], float], goal: float, start: float, step: float
) -> float:
    """The first place from ``start`` on, in the direction of ``step``, where the value is ≤ goal.

    Args:
        value: a function that falls from ``start`` on in this direction.
        goal: the value to reach.
        start: where the search begins.
        step: the search's first step; the steps double.
    """
    if value(start) <= goal:
        return start
    near = start
    far = start + step
    while value(far) > goal:
        step *= 2
        near = far
        far += step

    def excess(place: float) -> float:
        return max(value(place) - goal, _LOWEST_EXCESS)

    place = _root(excess, near, far)
    # Rounding may leave the value slightly above the goal.
    nudge = math.copysign(max(abs(place), _MIN_SIZE) * _ROOT_ERROR, step)
    while value(place) > goal:
        place += nudge
        nudge *= 2
    return place


def _root(value: Callable[[float], float], low: float, high: float) -> float:
    """The root of a function between two places, to the precision of a float64."""
    root = scipy.optimize.brentq(
        value,
        low,
        high,
        xtol=_NO_ABSOLUTE_ERROR,
        rtol=_ROOT_ERROR,
        maxiter=_MAX_STEPS,
    )
    return float(root)


def rounded_up(
    expected_scores: Floats, distance: float = _GRID_DISTANCE
) -> Floats:
    """Expected scores rounded up to powers of 1 + ``distance``; 0 and infinity do not change."""
    inside = (expected_scores > 0) & (expected_scores <= LARGEST_SHIFT)
    step = math.log1p(distance)
    logs = np.log(
        expected_scores, out=np.zeros_like(expected_scores), where=inside
    )
    return np.where(
        inside, np.exp(np.ceil(logs / step) * step), expected_scores
    )


def raised_to_largest(values: Floats, largest: float) -> Floats:
    """Values less than a millionth below ``largest`` count as ``largest``.

    So rounds with the same weight have the same value, although it was measured or rounded.
    """
    return np.where(values > largest * (1 - _AS_LARGE), largest, values)


def _log_one_minus_exp(fall: Floats) -> Floats:
    """The logarithm of 1 − exp(−fall); −∞ where an expected score is too small to matter."""
    with np.errstate(divide="ignore"):
        return np.log(-np.expm1(-fall))


def _fall_of_log_mills(start: Floats, gap: Floats) -> Floats:
    """Difference ln M(start) − ln M(start + gap), for Mills' ratio M, free of cancellation."""
    is_short = gap < SHORT_GAP
    fall = _log_mills(start) - _log_mills(start + gap)
    if np.any(is_short):
        # The integral of −(ln M)′(u) = 1/M(u) − u over the gap, by quadrature.
        half = gap[is_short] / 2
        total = np.zeros_like(half)
        for node, weight in zip(*quadrature(), strict=True):
            u = start[is_short] + half * (1 + node)
            total += half * weight * np.maximum(np.exp(-_log_mills(u)) - u, 0.0)
        fall[is_short] = total
    return fall


def _log_mills(v: Floats) -> Floats:
    """Logarithm of Mills' ratio (1 − Φ(v))/φ(v)."""
    scaled = np.maximum(v, _LOWEST_FOR_ERFCX) / math.sqrt(2)
    by_erfcx = np.log(scipy.special.erfcx(scaled)) + math.log(math.pi / 2) / 2
    by_tail = scipy.special.log_ndtr(-v) + v * v / 2 + math.log(2 * math.pi) / 2
    return np.asarray(np.where(v >= _LOWEST_FOR_ERFCX, by_erfcx, by_tail))
