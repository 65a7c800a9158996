"""Bounds for sums of independent privacy losses, by their exponential moments.

A Fourier transform gives a tighter bound, but its rounding errors hide probabilities below
about 10⁻¹⁵. The logarithms of moments add up, and are precise however small δ is.

Examples:
    >>> import numpy as np
    >>> losses = np.array([-0.5, 0.5])
    >>> probabilities = np.array([0.4, 0.6])
    >>> round(renyi_epsilon([(losses, probabilities, 10)], 1e-30), 2)  # 10 independent losses
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
# Fraction of the target δ in the tails that accountants with a grid may truncate. The truncated
# probability counts towards δ, so that ε is an upper bound.
TAIL_SHARE = 1e-6

# The arguments λ of the moments E[exp(λ · sum)] that are tried, ten a decade. In Rényi
# divergences λ is the order minus 1.
_MGF_ARGUMENTS = tuple(np.geomspace(1e-3, 1e5, 81).tolist())
# Replaces the largest of no exponents; −∞ would give NaN for exponents of −∞.
_LOWEST_EXPONENT = -1e300

Terms = Sequence[tuple[Floats, Floats, int]]
"""Distributions of the terms of a sum, see `chernoff_bound`."""


def log_sums(exponents: Floats, weights: Floats) -> Floats:
    """The logarithms of Σ_j w_j·exp(x_ij), ``(n,)``; −∞ if all weights are 0.

    `scipy.special.logsumexp` takes five times as long.
    """
    is_used = weights > 0
    used = exponents[:, is_used]
    largest = used.max(axis=1, initial=_LOWEST_EXPONENT)
    sums = np.exp(used - largest[:, None]) @ weights[is_used]
    with np.errstate(divide="ignore"):  # −∞ where all weights are 0
        return np.asarray(largest + np.log(sums))


def chernoff_bound(terms: Terms, tail: float) -> float:
    """Chernoff's bound: a value that the sum reaches with probability at most ``tail``.

    Args:
        terms: the independent terms: for each distribution its values, ``(n,)``, their
            probabilities, ``(n,)``, and the number of terms with this distribution.
        tail: the largest probability that the sum reaches the value.
    """

    @functools.cache
    def bound(index: int) -> float:
        argument = _MGF_ARGUMENTS[index]
        return float((_log_moment(terms, argument) - math.log(tail)) / argument)

    def rises(index: int) -> bool:
        return bound(index + 1) >= bound(index)

    # The logarithm of a moment is convex, so the bound falls and then rises. Bisection computes
    # few of the moments, each of which is a sum over all values of the terms.
    last = len(_MGF_ARGUMENTS) - 1
    lowest = bisect.bisect_left(range(last), True, key=rises)
    return bound(lowest)


def renyi_epsilon(
    terms: Terms, delta: float, infinity_mass: float = 0.0
) -> float:
    """An ε ≥ 0 of a sum of independent privacy losses, by their Rényi divergences.

    Divergences are converted by Proposition 12 of Canonne, Kamath and Steinke 2020, "The Discrete
    Gaussian for Differential Privacy". The result is never below the exact ε. In the tests it is up
    to a third above it.

    Args:
        terms: see `chernoff_bound`. For a pair of distributions P and Q, the values are the losses
            ln(P/Q), and the probabilities are those under P.
        delta: target δ in (0, 1).
        infinity_mass: probability that the sum is infinite, which is subtracted from δ.

    Returns:
        ε; infinite if ``infinity_mass`` is at least δ.
    """
    finite_delta = delta - infinity_mass
    if finite_delta <= 0:
        return math.inf

    def bound(log_argument: float) -> float:
        argument = math.exp(log_argument)
        order = 1 + argument
        conversion = argument * math.log1p(-1 / order) - math.log(order)
        conversion -= math.log(finite_delta)
        return (_log_moment(terms, argument) + conversion) / argument

    log_arguments = np.log(_MGF_ARGUMENTS)
    bounds = [bound(log_argument) for log_argument in log_arguments]
    best = int(np.argmin(bounds))
    neighbours = log_arguments[max(best - 1, 0) : best + 2]
    minimum = scipy.optimize.minimize_scalar(
        bound, bounds=(neighbours[0], neighbours[-1]), method="bounded"
    )
    return max(float(minimum.fun), 0.0)


def _log_moment(terms: Terms, argument: float) -> float:
    """The logarithm of E[exp(argument · sum)]."""
    return sum(
        count * float(log_sums(argument * values[None], masses)[0])
        for values, masses, count in terms
    )
