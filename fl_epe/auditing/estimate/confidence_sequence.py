"""Confidence sequences: intervals that hold after all rounds at once, for a stopping rule.

If a 95% interval is computed after every round, at least one of them excludes the truth in far more
than 5% of runs. All intervals of a 95% confidence sequence contain the truth in at least 95% of
runs, so a run may be stopped by it. Scores must arrive one after the other and have variance 1,
and a mean that the previous scores determine. Their sum minus the sum of these means is then a
random walk, which `boundary` bounds. Derivation and cost: docs/notes/watching.md.

Examples:
    >>> round(widening(share=0.5, confidence=0.95), 2)  # of a run that ended halfway
    1.52
"""

import functools
import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fl_epe.checks import (
    Floats,
    check_positive,
    check_probability,
    raise_invalid,
)

# Exponent Δ of the boundary c·t^Δ. It is tightest at the end for 0; from ½ on no c is large enough.
EXPONENT = 0.2

# Factor on the planned information, as rounds differ a little in their information.
PLAN_MARGIN = 1.1

_ERROR_AFTER_END = 0.04  # share of the error for the time after the planned end
_STEPS = 400  # steps of the integral equation for c

# Relative error of the integral equation, which is subtracted from the requested error.
_RELATIVE_ERROR = 1e-3

# At the first time of the grid, the boundary is at least this many standard deviations high.
_MIN_FIRST_HEIGHT = 9.0
_MAX_FIRST_TIME = 0.01

# The range of errors for which c is computed, and an upper bound on that c.
_MIN_ERROR = 1e-9
_MAX_ERROR = 0.4
_MAX_HEIGHT = 8.0
_HEIGHT_TOLERANCE = 1e-6


def crossing_probability(
    height: float, steps: int = _STEPS, exponent: float = EXPONENT
) -> float:
    """The probability that a Brownian motion is ever above ``height · t^Δ`` for t in (0, 1].

    It is the solution of the integral equation of the first crossing's density (Buonocore,
    Nobile and Ricciardi 1987) on a grid of times. A test shows that its relative error is below
    `_RELATIVE_ERROR`.

    Args:
        height: the height c of the boundary.
        steps: number of steps of the grid.
        exponent: the exponent Δ of the boundary, below ½.
    """
    # Crossings before this time are negligible.
    first = (_MIN_FIRST_HEIGHT / height) ** (1 / (exponent - 0.5))
    first = min(first, _MAX_FIRST_TIME)
    log_times, step = np.linspace(math.log(first), 0.0, steps + 1, retstep=True)
    times = np.exp(log_times)
    heights = height * times**exponent
    slopes = exponent * heights / times
    density = (heights / times - slopes) * _density(heights, times)
    for t in range(1, steps + 1):
        elapsed = times[t] - times[:t]
        rise = heights[t] - heights[:t]
        crossing_rate = (slopes[t] - rise / elapsed) * _density(rise, elapsed)
        density[t] += step * np.sum(crossing_rate * density[:t] * times[:t])
    return float(step * (np.sum(density * times) - density[-1] / 2))


def _density(values: Floats, variances: Floats) -> Floats:
    """The density of N(0, variance) at each value."""
    exponentials = np.exp(-(values**2) / (2 * variances))
    return exponentials / np.sqrt(2 * math.pi * variances)


@functools.cache
def boundary_height(error: float) -> float:
    """The smallest c for which c·t^Δ is crossed with probability at most ``error``, rounded up.

    Raises:
        ValueError: if ``error`` is not in [1e-9, 0.4].
    """
    if not _MIN_ERROR <= error <= _MAX_ERROR:
        raise_invalid("error", error, f"in [{_MIN_ERROR}, {_MAX_ERROR}]")
    target = error * (1 - _RELATIVE_ERROR)
    # At t = 1 alone, the motion is above its quantile with probability ``error``, so c is larger.
    # It is also larger than 0.5, for errors up to 0.4.
    low = max(0.5, -float(scipy.special.ndtri(error)))
    height = scipy.optimize.brentq(
        lambda c: crossing_probability(c) - target,
        low,
        _MAX_HEIGHT,
        xtol=_HEIGHT_TOLERANCE,
    )
    return float(height) + _HEIGHT_TOLERANCE


def boundary(
    information: ArrayLike, error: float, horizon: float, planned: bool = True
) -> Floats:
    """An upper bound for a sum of scores minus its mean, after ``information``.

    The sum exceeds the boundary at any information > 0, with any number of looks, with
    probability at most ``error``, whatever ``horizon`` is. The horizon determines where the
    boundary is tight, and must be chosen before the scores are seen. The boundary is infinite
    without information.

    Args:
        information: the number of scores so far, or the sum of squared weights.
        error: probability of an error, one-sided.
        horizon: information at the planned end, after which the boundary is wider.
        planned: whether the end is planned; otherwise there is no end, and the boundary is
            tightest at ``horizon``.
    """
    check_probability("error", error)
    check_positive("horizon", horizon)
    information = np.asarray(information, np.float64)
    if planned:
        share = information / horizon
        height = boundary_height((1 - _ERROR_AFTER_END) * error)
        height *= math.sqrt(horizon)
        until_end = height * np.minimum(share, 1.0) ** EXPONENT
        after_end = _mixture(information, _ERROR_AFTER_END * error, horizon)
        bound = np.where(share <= 1, until_end, after_end)
    else:
        bound = _mixture(information, error, horizon)
    return np.where(information > 0, bound, np.inf)


def _mixture(information: Floats, error: float, horizon: float) -> Floats:
    """An upper bound on Robbins' mixture boundary with a half-normal law, valid without an end.

    The parameter ρ of the law is that with which the boundary is about tightest at ``horizon``.
    """
    log_term = 2 * math.log(1 / (2 * error))
    rho = horizon / (log_term + math.log1p(log_term))
    ratios = np.sqrt((information + rho) / rho) / (2 * error)
    return np.sqrt(2 * (information + rho) * np.log(ratios + 0.5))


def widening(share: float, confidence: float) -> float:
    """Width of an interval that holds after all rounds, divided by that for a single look.

    Args:
        share: share of the planned rounds that are done, in (0, 1].
        confidence: confidence of both intervals, two-sided.
    """
    error = (1 - confidence) / 2
    single_look = -float(scipy.special.ndtri(error)) * math.sqrt(share)
    return float(boundary(share, error, PLAN_MARGIN)) / single_look
