"""Canaries of one release, known by their cosines alone: how far one would stand out by itself.

If k canaries take part in the same release, each hides the others, and the mean score m in units of
√d·cosine tends to a limit of √(d/k) however little noise there is. One canary alone would have

    μ = m / √(1 − m²·k/d).

The interval is exact up to the normal approximation of a noncentral t distribution: the sum S of
the canaries' directions has an angle with the release whose cotangent is such a variable. Bare
cosines do not tell how long S is; they know only that ``‖S‖²/k`` is 1 with a deviation of √(2/d).
Where m²·k/d is close to 1 that is most of the interval, and giving ‖S‖ makes it short.
Derivation and measurements: docs/notes/other-canaries.md.

Examples:
    >>> round(shift_of_one(5.0, count=300, dim=10_000), 4)  # 5 / √(1 − 25·0.03)
    10.0
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.accounting import epsilon_of_shift
from fl_epe.auditing.estimate.epsilon_estimate import EpsilonEstimate
from fl_epe.auditing.scoring.assumptions import check_known_variance, check_sign
from fl_epe.auditing.scoring.scores import Scores
from fl_epe.checks import check_probability, raise_invalid

Floats = NDArray[np.float64]

_STEPS = np.linspace(
    -8.0, 8.0, 161
)  # of a standard normal, for sums over the length of S
_WEIGHTS = np.exp(-(_STEPS**2) / 2) / np.sum(np.exp(-(_STEPS**2) / 2))
_LARGEST = 1e12


def epsilon_together(
    scores: Scores,
    delta: float,
    confidence: float = 0.95,
    *,
    sum_norm: float | None = None,
) -> EpsilonEstimate:
    """ε of one canary alone, from k canaries that took part in one release with equal norms.

    With the mean score m it is ε between N(0, 1) and N(μ, 1), ``μ = m/√(1 − m²k/d)``. Each of the
    canaries hides the others; this takes them out. The interval allows for the noise along the
    canaries, for the length of all that hides them (as of Gaussian noise), and for the length of
    the canaries' sum unless it is given. Without it ε may be infinite where the canaries are
    nearly all of the release: bare cosines do not tell how little else there is.

    Args:
        scores: from `Scores.from_cosines`, of all canaries of the release.
        delta: target δ in (0, 1).
        confidence: coverage of the interval.
        sum_norm: length of the sum of the canaries' directions, such as
            ``np.linalg.norm(canaries.combine(np.ones((1, k))))`` for a `CanarySet`.

    Raises:
        ValueError: if the scores are not cosines, or an argument is out of range.
    """
    check_probability("confidence", confidence)
    count, dim = len(scores.observed), scores.dim
    if dim is None:
        raise_invalid(
            "dim", dim, "to be set: only cosines say how much canaries overlap"
        )
    check_sign(scores)
    check_known_variance(scores)
    if sum_norm is not None and not 0 < sum_norm <= count * (1 + 1e-6):
        raise_invalid(
            "sum_norm", sum_norm, f"in (0, {count}], the number of canaries"
        )
    mean = float(scores.observed.mean())
    if sum_norm is not None and not possible(mean, count, dim, sum_norm):
        cosine = mean / np.sqrt(dim)
        raise_invalid(
            "sum_norm",
            sum_norm,
            f">= {cosine * count:.4g}, as {count} cosines of {cosine:.3g} on average need",
        )
    if not possible(mean, count, dim, sum_norm):
        raise ValueError(
            f"Expected cosines of canaries that share one release, got a mean of "
            f"{mean / np.sqrt(dim):.3g} for {count} of them in {dim} dimensions, which is too "
            "large; each was in a release of its own."
        )
    low, high = shift_interval(mean, count, dim, confidence, sum_norm)
    shift = min(max(shift_of_one(mean, count, dim, sum_norm), low), high)
    method = f"{scores.statistic}, known variance, other canaries projected out"
    epsilon, low, high = (
        float(epsilon_of_shift(s, delta)) for s in (shift, low, high)
    )
    return EpsilonEstimate(epsilon, low, high, delta, confidence, method)


def possible(
    mean: float, count: int, dim: int, sum_norm: float | None = None
) -> bool:
    """Whether canaries that share a release can have that mean score.

    The sum of their directions then has a cosine above 1 with it, or had to be longer than the sum
    of random directions is: by six standard deviations.
    """
    if sum_norm is not None:
        return mean * count <= math.sqrt(dim) * sum_norm * (1 + 1e-6)
    return (
        max(mean, 0.0) ** 2 * count / dim <= (1 + 6 / math.sqrt(2 * dim)) ** 2
    )


def shift_of_one(
    mean: float, count: int, dim: int, sum_norm: float | None = None
) -> float:
    """μ, the mean score of one canary alone; infinite if the canaries are all of the release.

    Args:
        mean: mean of √dim·cosine over all canaries of one release.
        count: number of these canaries, k.
        dim: their dimension d.
        sum_norm: length of the sum of their directions; √k if it is not known.
    """
    square = count if sum_norm is None else sum_norm**2
    cosine = (
        mean * count / math.sqrt(dim * square)
    )  # of the sum with what was released
    if cosine >= 1:
        return math.inf
    return cosine * math.sqrt(
        dim / (square * (1 - max(cosine, -1 + 1e-12) ** 2))
    )


def shift_interval(
    mean: float,
    count: int,
    dim: int,
    confidence: float,
    sum_norm: float | None = None,
) -> tuple[float, float]:
    """Interval for `shift_of_one`'s μ ≥ 0; its upper end is infinite if no μ is too large.

    The other arguments are as there; ``confidence`` is two-sided.
    """
    squares, weights = _sum_squares(count, dim, sum_norm)
    tail = (1 - confidence) / 2

    def below(shift: float) -> float:
        """Probability of a mean score that is no larger."""
        return float(weights @ _below(mean, shift, count, dim, squares))

    return _solve(below, 1 - tail), _solve(below, tail)


def _sum_squares(
    count: int, dim: int, sum_norm: float | None
) -> tuple[Floats, Floats]:
    """Values of ``‖S‖²/k`` and their weights: a gamma law of variance ``2·(k − 1)/(k·d)``."""
    if sum_norm is not None:
        return np.array([sum_norm**2 / count]), np.ones(1)
    third = 2 * (count - 1) / (count * dim) / 9  # Wilson and Hilferty (1931)
    return np.maximum(
        1 - third + _STEPS * math.sqrt(third), 1e-6
    ) ** 3, _WEIGHTS


def _below(
    mean: float, shift: float, count: int, dim: int, squares: Floats
) -> Floats:
    """Probability of a mean score up to ``mean``, for each ``‖S‖²/k`` in ``squares``."""
    cosine = mean * math.sqrt(count / dim) / np.sqrt(squares)
    inside = np.clip(cosine, -1 + 1e-12, 1 - 1e-12)
    freedom = max(dim - 1, 1)
    t = math.sqrt(freedom) * inside / np.sqrt(1 - inside**2)
    distance = t * (1 - 1 / (4 * freedom)) - shift * np.sqrt(count * squares)
    chance = scipy.special.ndtr(distance / np.sqrt(1 + t**2 / (2 * freedom)))
    return np.where(cosine >= 1, 1.0, chance)


def _solve(below: Callable[[float], float], level: float) -> float:
    """The μ ≥ 0 at which the falling function ``below`` is ``level``."""
    if below(0.0) <= level:
        return 0.0
    high = 1.0
    while below(high) > level:
        high *= 2
        if high > _LARGEST:
            return math.inf
    return float(
        scipy.optimize.brentq(lambda shift: below(shift) - level, 0.0, high)
    )
