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
    >>> round(known_expected_score_epsilon([1.0, 1.0], delta=1e-5), 3)  # equal expected_scores
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

from fl_epe.accounting.two_gaussians import quadrature
from fl_epe.checks import Floats, check_probability, raise_invalid

# As in two_gaussians: larger expected scores have an infinite ε.
_LARGEST = 1e140
_MANY = 50_000  # more distinct expected scores are rounded up to a grid
_COARSE = 5e-5  # relative distance of the grid's points
_SHORT = 0.25  # log M(v) − log M(v + gap) cancels for smaller gaps
# Below it Mills' ratio would overflow, so it is computed from log_ndtr.
_FAR = -5.0
_ROUNDING = 1e-12  # error of a computed ln δ; the target is lowered by it
_AS_LARGE = 1e-6  # relative difference of values that count as the largest one


def known_expected_score_epsilon(
    expected_scores: ArrayLike,
    delta: float,
    *,
    weights: ArrayLike | None = None,
) -> float:
    """ε of an average-case client whose expected score the adversary knows: mean of δ(m_i; ε) = δ.

    Args:
        expected_scores: m_i ≥ 0, any shape; infinity is allowed.
        delta: target δ in (0, 1).
        weights: the weight of each expected score, ≥ 0, in their shape; by default all are
            equal.

    Returns:
        The smallest ε ≥ 0, rounded up; infinite if expected scores above 1e140 weigh more than δ.
        If there are more than 50,000 distinct expected scores, each is first rounded up, by at
        most a factor of 1.00005.

    Raises:
        ValueError: for negative or NaN expected scores, weights that cannot be normalised, or a
            ``delta`` outside (0, 1).
    """

    def solve(clients: _Clients, goal: float) -> float:
        return _first_at_most(clients.log_delta_known, goal, 0.0, 1.0)

    return _epsilon(solve, expected_scores, delta, weights)


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
        sizes: the expected scores m, ascending.
        log_shares: ln of the share of all clients with each of them.
        log_silent: ln of the share of clients whose expected score is 0.
        exposed: the share of the clients whose expected score is too large for any finite ε.
    """

    sizes: Floats
    log_shares: Floats
    log_silent: float
    exposed: float

    @classmethod
    def of(
        cls, expected_scores: ArrayLike, weights: ArrayLike | None
    ) -> _Clients:
        scores = np.asarray(expected_scores, np.float64).ravel()
        if not len(scores) or not np.all(scores >= 0):
            bad = scores[~(scores >= 0)][0] if len(scores) else expected_scores
            raise_invalid("expected_scores", bad, ">= 0, and at least one")
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
        sizes, places = np.unique(scores, return_inverse=True)
        if len(sizes) > _MANY:
            sizes, places = np.unique(rounded_up(scores), return_inverse=True)
        summed = np.bincount(places, shares / total, minlength=len(sizes))
        regular = (sizes > 0) & (sizes <= _LARGEST) & (summed > 0)
        silent = float(summed[sizes == 0].sum())
        exposed = float(summed[sizes > _LARGEST].sum())
        return cls(
            sizes[regular],
            np.log(summed[regular]),
            math.log(silent) if silent > 0 else -math.inf,
            min(exposed, 1.0),
        )

    def log_delta_known(self, epsilon: float) -> float:
        """Logarithm of the mean of δ(m; ε); each client is detected at a threshold of its own."""
        scores = self.sizes / 2 + epsilon / self.sizes
        return _log_sum(self.log_shares + self._removed(scores))

    def log_delta_removed(self, score: float) -> float:
        """Logarithm of P[x > s] − e^ε Q[x > s], with P the mixture and ε its log ratio at s."""
        return _log_sum(self.log_shares + self._removed(score))

    def log_delta_added(self, score: float) -> float:
        """Logarithm of Q[x < s] − e^ε P[x < s], with −ε the log ratio at s."""
        gains = scipy.special.log_ndtr(score) + self.sizes * (
            score - self.sizes / 2
        )
        gains += _log_one_minus_exp(
            _log_mills_ratio(np.full_like(self.sizes, -score), self.sizes)
        )
        return _log_sum(self.log_shares + gains) - self.log_ratio(score)

    def _removed(self, scores: Floats | float) -> Floats:
        """Logarithm of Φ(m − s) − e^(ms − m²/2) Φ(−s) for each m, without cancellation."""
        distances = scores - self.sizes
        fall = _log_one_minus_exp(_log_mills_ratio(distances, self.sizes))
        return np.asarray(scipy.special.log_ndtr(-distances) + fall)

    def log_ratio(self, score: float) -> float:
        """Logarithm of the mixture's density over that of N(0, 1); it rises with the score."""
        terms = self.log_shares + self.sizes * (score - self.sizes / 2)
        return _log_sum(np.append(terms, self.log_silent))

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
    finite_delta = delta - clients.exposed
    if finite_delta <= 0:
        return math.inf
    if not len(clients.sizes):
        return 0.0
    return solve(clients, math.log(finite_delta) - _ROUNDING)


def _solve_unknown(clients: _Clients, goal: float) -> float:
    """The smallest ε, by a search over scores: the ε at each score has a closed form."""
    start = clients.score_of(0.0)
    # This is δ(0), which is the same in both directions.
    if clients.log_delta_removed(start) <= goal:
        return 0.0
    removed = clients.log_ratio(
        _first_at_most(clients.log_delta_removed, goal, start, 1.0)
    )
    added = -clients.log_ratio(
        _first_at_most(clients.log_delta_added, goal, start, -1.0)
    )
    return max(removed, added, 0.0)


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

    # brentq needs finite values, so a large surplus below the goal is cut off.
    def surplus(place: float) -> float:
        return max(value(place), goal - 1e3) - goal

    place = _root(surplus, near, far)
    nudge = math.copysign(max(abs(place), 1e-3) * 1e-15, step)
    while value(place) > goal:
        place += nudge
        nudge *= 2
    return place


def _root(value: Callable[[float], float], low: float, high: float) -> float:
    """The root of a function between two places, to the precision of a float64."""
    root = scipy.optimize.brentq(
        value, low, high, xtol=1e-300, rtol=1e-15, maxiter=5000
    )
    return float(root)


def rounded_up(expected_scores: Floats, distance: float = _COARSE) -> Floats:
    """Expected scores rounded up to powers of 1 + ``distance``; 0 and infinity do not change."""
    inside = (expected_scores > 0) & (expected_scores <= _LARGEST)
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


def _log_sum(terms: Floats) -> float:
    """The logarithm of Σ exp(terms); scipy's takes ten times as long."""
    largest = float(terms.max())
    if largest == -math.inf:
        return largest
    return largest + math.log(float(np.exp(terms - largest).sum()))


def _log_one_minus_exp(fall: Floats) -> Floats:
    """The logarithm of 1 − exp(−fall); −∞ where an expected score is too small to matter."""
    with np.errstate(divide="ignore"):
        return np.log(-np.expm1(-fall))


def _log_mills_ratio(start: Floats, gap: Floats) -> Floats:
    """Difference ln M(start) − ln M(start + gap), for Mills' ratio M, free of cancellation."""
    is_short = gap < _SHORT
    is_long = ~is_short
    fall = np.empty_like(start)
    fall[is_long] = _log_mills(start[is_long])
    fall[is_long] -= _log_mills(start[is_long] + gap[is_long])
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
    """Logarithm of (1 − Φ(v))/φ(v)."""
    scaled = np.log(scipy.special.erfcx(np.maximum(v, _FAR) / math.sqrt(2)))
    near = scaled + math.log(math.pi / 2) / 2
    far = scipy.special.log_ndtr(-v) + v * v / 2 + math.log(2 * math.pi) / 2
    return np.asarray(np.where(v >= _FAR, near, far))
