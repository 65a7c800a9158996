"""Bounds for sums of independent privacy losses, by their exponential moments.

A Fourier transform gives a tighter bound, but its rounding errors hide probabilities below
about 10⁻¹⁵. The logarithms of moments add up, and are precise however small δ is.

Examples:
    >>> import numpy as np
    >>> coin = np.array([-0.5, 0.5]), np.array([0.4, 0.6]), 10  # ten losses of a half, either way
    >>> round(renyi_epsilon([coin], 1e-30), 2)
    5.0
"""

import bisect
import functools
import math
from collections.abc import Sequence

import numpy as np
import scipy

from fl_epe.checks import Floats

# With a smaller δ the rounding errors of a Fourier transform show in ε.
LEAST_DELTA = 1e-11
LOST = 1e-6  # part of δ in tails that no grid covers; they are added to δ

# The orders of the exponential moments that are tried.
_SLOPES = tuple(np.geomspace(1e-3, 1e5, 81).tolist())

Terms = Sequence[tuple[Floats, Floats, int]]


def log_sums(exponents: Floats, weights: Floats) -> Floats:
    """The logarithms of Σ_j w_j·exp(x_ij), ``(n,)``; −∞ where all weights are 0."""
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights)
    return np.logaddexp.reduce(exponents + log_weights, axis=1)


def largest_sum(terms: Terms, tail: float) -> float:
    """A value that a sum of independent terms exceeds with probability at most ``tail``.

    It is Chernoff's bound.

    Args:
        terms: for each distribution its values, ``(n,)``, their probabilities, ``(n,)``, and
            the number of terms with this distribution.
        tail: the probability.
    """

    @functools.cache
    def bound(place: int) -> float:
        slope = _SLOPES[place]
        return float((_log_moment(terms, slope) - math.log(tail)) / slope)

    def rises(place: int) -> bool:
        return bound(place + 1) >= bound(place)

    # The logarithm of a moment is convex, so that the bound falls and then rises.
    return bound(bisect.bisect_left(range(len(_SLOPES) - 1), True, key=rises))


def renyi_epsilon(terms: Terms, delta: float, lost: float = 0.0) -> float:
    """An ε ≥ 0 of a sum of independent privacy losses, by their Rényi divergences.

    It is never below the exact ε, and up to a third above it (Canonne, Kamath, Steinke 2020,
    "The Discrete Gaussian for Differential Privacy", Proposition 12).

    Args:
        terms: see `largest_sum`; the values are losses of the distribution that has the given
            probabilities, over the other distribution of the pair.
        delta: target δ in (0, 1).
        lost: probability of an infinite loss, which is subtracted from δ.

    Returns:
        ε, infinite if ``lost`` is δ or more.
    """
    finite_delta = delta - lost
    if finite_delta <= 0:
        return math.inf

    def bound(log_slope: float) -> float:
        slope = math.exp(log_slope)
        order = 1 + slope
        conversion = slope * math.log1p(-1 / order) - math.log(order)
        conversion -= math.log(finite_delta)
        return (_log_moment(terms, slope) + conversion) / slope

    places = np.log(_SLOPES)
    best = int(np.argmin([bound(place) for place in places]))
    bounds = (places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)])
    minimum = scipy.optimize.minimize_scalar(
        bound, bounds=bounds, method="bounded"
    )
    return max(float(minimum.fun), 0.0)


def _log_moment(terms: Terms, slope: float) -> float:
    """The logarithm of E[exp(slope · sum)]."""
    return sum(
        count * float(log_sums(slope * values[None], masses)[0])
        for values, masses, count in terms
    )
