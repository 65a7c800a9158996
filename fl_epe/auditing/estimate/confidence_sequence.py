"""Confidence sequences: intervals that hold after all rounds at once, for a stopping rule.

A 95% interval that is computed after every round excludes the truth in some round far more often
than in 5% of runs. A confidence sequence does so in at most 5% of runs, over all rounds together,
so a run may be stopped by it. Scores must arrive one after the other and have variance 1; each
has a conditional mean given the previous scores, so their sum minus its mean is a random walk.
`boundary` bounds that walk. Derivation and cost: docs/notes/watching.md.

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

SHAPE = 0.2  # exponent Δ of the boundary c·t^Δ; 0 is tightest at the end, ½ is too wide

# Factor on the planned information, as rounds differ a little in their information.
PLAN_MARGIN = 1.1

_AFTER_END = 0.04  # share of the error for the time after the planned end
_STEPS = 400  # steps of the integral equation for c

# Relative error of the integral equation, which is subtracted from the requested error.
_INEXACT = 1e-3

# Standard deviations that a walk does not exceed before the first step.
_NEVER = 9.0


def crossing_probability(
    height: float, steps: int = _STEPS, shape: float = SHAPE
) -> float:
    """The probability that a Brownian motion is ever above ``height · t^Δ`` for t in (0, 1].

    It is the solution of the integral equation of the first crossing's density (Buonocore,
    Nobile and Ricciardi 1987) on a grid of times. A test shows that its relative error is below
    `_INEXACT`.

    Args:
        height: the height c of the boundary.
        steps: number of steps of the grid.
        shape: the exponent Δ of the boundary, below ½.
    """
    # Before this time there is no crossing.
    first = min((_NEVER / height) ** (1 / (shape - 0.5)), 0.01)
    log_times, step = np.linspace(math.log(first), 0.0, steps + 1, retstep=True)
    times = np.exp(log_times)
    heights = height * times**shape
    slopes = shape * heights / times
    density = (heights / times - slopes) * _density(heights, times)
    for t in range(1, steps + 1):
        elapsed = times[t] - times[:t]
        rise = heights[t] - heights[:t]
        crossing_rate = (slopes[t] - rise / elapsed) * _density(rise, elapsed)
        density[t] += step * np.sum(crossing_rate * density[:t] * times[:t])
    return float(step * (np.sum(density * times) - density[-1] / 2))


def _density(values: Floats, variances: Floats) -> Floats:
    """The density of N(0, variance) at each value."""
    return np.exp(-(values**2) / (2 * variances)) / np.sqrt(
        2 * math.pi * variances
    )


@functools.cache
def boundary_height(error: float) -> float:
    """The smallest c for which c·t^Δ is crossed with probability at most ``error``, rounded up.

    Raises:
        ValueError: if ``error`` is not in [1e-9, 0.4].
    """
    if not 1e-9 <= error <= 0.4:
        raise_invalid("error", error, "in [1e-9, 0.4]")
    target = error * (1 - _INEXACT)
    low = max(0.5, -float(scipy.special.ndtri(error)))
    tolerance = 1e-6
    height = scipy.optimize.brentq(
        lambda c: crossing_probability(c) - target, low, 8.0, xtol=tolerance
    )
    return float(height) + tolerance


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
    seen_information = np.asarray(information, np.float64)
    if planned:
        share = seen_information / horizon
        height = boundary_height((1 - _AFTER_END) * error) * math.sqrt(horizon)
        until_end = height * np.minimum(share, 1.0) ** SHAPE
        after_end = _mixture(seen_information, _AFTER_END * error, horizon)
        bound = np.where(share <= 1, until_end, after_end)
    else:
        bound = _mixture(seen_information, error, horizon)
    return np.where(seen_information > 0, bound, np.inf)


def _mixture(information: Floats, error: float, horizon: float) -> Floats:
    """An upper bound on Robbins' mixture boundary with a half-normal law, valid without an end."""
    log = 2 * math.log(1 / (2 * error))
    rho = horizon / (log + math.log1p(log))
    odds = np.sqrt((information + rho) / rho) / (2 * error)
    return np.sqrt(2 * (information + rho) * np.log(odds + 0.5))


def widening(share: float, confidence: float) -> float:
    """Width of an interval that holds after all rounds, over that of one for a single look.

    Args:
        share: share of the planned rounds that are done, in (0, 1].
        confidence: confidence of both intervals, two-sided.
    """
    error = (1 - confidence) / 2
    single_look = -float(scipy.special.ndtri(error)) * math.sqrt(share)
    return float(boundary(share, error, PLAN_MARGIN)) / single_look
