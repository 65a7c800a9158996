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
MIN_FFT_DELTA = 1e-11
# Share of δ in tails that no grid covers; they are added to δ.
TAIL_SHARE = 1e-6

# The slopes s of the moments E[exp(s · sum)] that are tried.
_SLOPES = tuple(np.geomspace(1e-3, 1e5, 81).tolist())

Terms = Sequence[tuple[Floats, Floats, int]]
"""Distributions of the terms of a sum, see `chernoff_bound`."""


def log_sums(exponents: Floats, weights: Floats) -> Floats:
    """The logarithms of Σ_j w_j·exp(x_ij), ``(n,)``; scipy's takes five times as long."""
    is_used = weights > 0
    used = exponents[:, is_used]
    largest = used.max(axis=1, initial=-1e300)
    sums = np.exp(used - largest[:, None]) @ weights[is_used]
    with np.errstate(divide="ignore"):  # −∞ where all weights are 0
        return np.asarray(largest + np.log(sums))


def chernoff_bound(terms: Terms, tail: float) -> float:
    """Chernoff's bound: a value that a sum of terms exceeds with probability at most ``tail``.

    Args:
        terms: the independent terms: for each distribution its values, ``(n,)``, their
            probabilities, ``(n,)``, and the number of terms with this distribution.
        tail: the probability.
    """

    @functools.cache
    def bound(index: int) -> float:
        slope = _SLOPES[index]
        return float((_log_moment(terms, slope) - math.log(tail)) / slope)

    def rises(index: int) -> bool:
        return bound(index + 1) >= bound(index)

    # The logarithm of a moment is convex, so that the bound falls and then rises.
    return bound(bisect.bisect_left(range(len(_SLOPES) - 1), True, key=rises))


def renyi_epsilon(terms: Terms, delta: float, lost: float = 0.0) -> float:
    """An ε ≥ 0 of a sum of independent privacy losses, by their Rényi divergences.

    It is never below the exact ε, and up to a third above it (Canonne, Kamath, Steinke 2020,
    "The Discrete Gaussian for Differential Privacy", Proposition 12).

    Args:
        terms: see `chernoff_bound`; the values are losses of the distribution that has the given
            probabilities, over the other distribution of the pair.
        delta: target δ in (0, 1).
        lost: probability of an infinite loss, which is subtracted from δ.

    Returns:
        ε; infinite if ``lost`` is at least δ.
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

    log_slopes = np.log(_SLOPES)
    best = int(np.argmin([bound(log_slope) for log_slope in log_slopes]))
    neighbours = log_slopes[max(best - 1, 0) : best + 2]
    minimum = scipy.optimize.minimize_scalar(
        bound, bounds=(neighbours[0], neighbours[-1]), method="bounded"
    )
    return max(float(minimum.fun), 0.0)


def _log_moment(terms: Terms, slope: float) -> float:
    """The logarithm of E[exp(slope · sum)]."""
    return sum(
        count * float(log_sums(slope * values[None], masses)[0])
        for values, masses, count in terms
    )
