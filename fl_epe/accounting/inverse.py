"""The noise, or the scale of a signal, that has a given ε, for any ε that falls as noise grows.

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

_CLOSE = 1e-7  # relative error of the noise
# The search for the noise's logarithm ends at twice this bound.
_FARTHEST = 256.0
_LEAST = 1e-300  # ε of 0 counts as this much
_MOST = 1e300  # a larger ratio counts as this much
_ROUNDING = 4 * np.finfo(float).eps  # the smallest rtol that brentq takes


def noise_at(
    epsilon_of: Callable[[float], float],
    epsilon: float,
    *,
    close: float = _CLOSE,
) -> float:
    """The least noise, up to rounding, at which ε is at most ``epsilon``.

    Args:
        epsilon_of: ε as a function of noise, which does not rise as noise grows.
        epsilon: the target ε, >= 0.
        close: relative error of the noise.

    Returns:
        The noise, positive and finite; 0 if every noise is enough, infinity if none is.
    """

    def miss(log_noise: float) -> float:
        ratio = epsilon_of(math.exp(log_noise)) / max(epsilon, _LEAST)
        return math.log1p(min(ratio, _MOST)) - math.log(2)

    low = -1.0
    high = 1.0
    while miss(low) < 0:
        if low < -_FARTHEST:
            return 0.0
        high = low
        low *= 2
    while miss(high) > 0:
        if high > _FARTHEST:
            return math.inf
        low = high
        high *= 2
    noise = math.exp(
        scipy.optimize.brentq(miss, low, high, xtol=close, rtol=_ROUNDING)
    )
    while epsilon_of(noise) > epsilon:
        noise *= 1 + close
    return noise


def scale_at(
    epsilon_of: Callable[[float], float],
    epsilon: float,
    *,
    close: float = _CLOSE,
) -> float:
    """The largest scale of a signal at which ε is at most ``epsilon``, see `noise_at`.

    Args:
        epsilon_of: ε as a function of the scale, which does not fall as the scale grows.
        epsilon: the target ε, >= 0.
        close: relative error of the scale.
    """
    noise = noise_at(lambda noise: epsilon_of(1 / noise), epsilon, close=close)
    if noise:
        return 1 / noise
    return math.inf


def shift_of_epsilon(epsilon: float, delta: float) -> float:
    """The shift at which `epsilon_of_shift` is ``epsilon``, which may be infinite."""
    return scale_at(
        lambda shift: float(epsilon_of_shift(shift, delta)), epsilon
    )
