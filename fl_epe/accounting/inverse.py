"""The inverse of ε as a function of the noise, or of the scale of a signal.

Examples:
    >>> from fl_epe.accounting import gaussian_epsilon
    >>> round(noise_at(lambda z: gaussian_epsilon(z, 1e-5), gaussian_epsilon(2.0, 1e-5)), 5)
    2.0
"""

import math
from collections.abc import Callable

import numpy as np
import scipy

from fl_epe.accounting.two_gaussians import epsilon_of_shift

_NOISE_ERROR = 1e-7  # relative error of the noise
# The search doubles the logarithm of the noise until it is above this bound, so it ends at ±512.
_MAX_LOG_NOISE = 256.0
_MIN_EPSILON = 1e-300  # a target of 0 counts as this much
_MAX_RATIO = 1e300  # a larger ratio of ε to its target counts as this much
_MIN_RTOL = 4 * np.finfo(float).eps  # the smallest rtol that brentq accepts


def noise_at(
    epsilon_of: Callable[[float], float],
    epsilon: float,
    *,
    close: float = _NOISE_ERROR,
) -> float:
    """The least noise, up to rounding, at which ε is at most ``epsilon``.

    Args:
        epsilon_of: ε as a function of noise, which must not rise as noise grows.
        epsilon: the target ε, >= 0.
        close: relative error of the noise.

    Returns:
        The noise, in [e^−512, e^512]; 0 if even e^−512 is enough, infinity if e^512 is not.
    """

    def excess(log_noise: float) -> float:
        """A finite value that is 0 where ε is its target, and falls as noise grows."""
        ratio = epsilon_of(math.exp(log_noise)) / max(epsilon, _MIN_EPSILON)
        return math.log1p(min(ratio, _MAX_RATIO)) - math.log(2)

    low = -1.0
    high = 1.0
    while excess(low) < 0:
        if low < -_MAX_LOG_NOISE:
            return 0.0
        high = low
        low *= 2
    while excess(high) > 0:
        if high > _MAX_LOG_NOISE:
            return math.inf
        low = high
        high *= 2
    noise = math.exp(
        scipy.optimize.brentq(excess, low, high, xtol=close, rtol=_MIN_RTOL)
    )
    # The root may lie on the wrong side by its error.
    while epsilon_of(noise) > epsilon:
        noise *= 1 + close
    return noise


def scale_at(
    epsilon_of: Callable[[float], float],
    epsilon: float,
    *,
    close: float = _NOISE_ERROR,
) -> float:
    """The largest scale of a signal at which ε is at most ``epsilon``, see `noise_at`.

    Args:
        epsilon_of: ε as a function of the scale, which must not fall as the scale grows.
        epsilon: the target ε, >= 0.
        close: relative error of the scale.
    """
    noise = noise_at(lambda noise: epsilon_of(1 / noise), epsilon, close=close)
    if noise:
        return 1 / noise
    return math.inf


def shift_of_epsilon(epsilon: float, delta: float) -> float:
    """The largest shift at which `epsilon_of_shift` is at most ``epsilon``; it may be infinite."""
    return scale_at(
        lambda shift: float(epsilon_of_shift(shift, delta)), epsilon
    )
