"""Confidence sequences: intervals that hold after every round at once, to stop a run by.

A 95% interval that is computed anew after every round excludes the truth in some round far more
often than in 5% of runs. A confidence sequence does so in at most 5% of runs, over all rounds
together, and one may stop when it says enough. Scores must have variance 1 and come one after the
other; each has a mean of its own given those before, so that their sum less its mean is a random
walk. `boundary` says how far the walk strays. Derivation and cost: docs/notes/watching.md.

Examples:
    >>> round(widening(share=0.5, confidence=0.95), 2)  # of a run that ended halfway
    1.52
"""

import functools
import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fl_epe.checks import Floats, check_positive, check_probability, raise_invalid

SHAPE = 0.2  # exponent Δ of the boundary c·t^Δ; 0 is tightest at the end, ½ is too wide
PLAN_MARGIN = (
    1.1  # of the planned information, as rounds differ a little in what they show
)
_BEYOND = 0.04  # share of the error that is left for what comes after the planned end
_STEPS = 400  # of the integral equation for c
_INEXACT = 1e-3  # its relative error, which is taken off the error that is asked for
_NEVER = 9.0  # standard deviations that a walk is not above before the first step


def crossing_probability(
    height: float, steps: int = _STEPS, shape: float = SHAPE
) -> float:
    """How likely it is that a Brownian motion is ever above ``height · t^Δ`` for t in (0, 1].

    Solves the integral equation of the first crossing's density (Buonocore, Nobile and Ricciardi
    1987) on a grid of times. Error: below `_INEXACT` of the result, which a test shows.

    Args:
        height: c.
        steps: of the grid.
        shape: Δ, below ½.
    """
    first = min((_NEVER / height) ** (1 / (shape - 0.5)), 0.01)  # no crossing before
    logs, gap = np.linspace(math.log(first), 0.0, steps + 1, retstep=True)
    times = np.exp(logs)
    tops = height * times**shape
    slopes = shape * tops / times
    found = (tops / times - slopes) * _density(tops, times)
    for now in range(1, steps + 1):
        left = times[now] - times[:now]
        rise = tops[now] - tops[:now]
        again = (slopes[now] - rise / left) * _density(rise, left)
        found[now] += gap * np.sum(again * found[:now] * times[:now])
    return float(gap * (np.sum(found * times) - found[-1] / 2))


def _density(values: Floats, variances: Floats) -> Floats:
    return np.exp(-(values**2) / (2 * variances)) / np.sqrt(2 * math.pi * variances)


@functools.cache
def boundary_height(error: float) -> float:
    """The c for which c·t^Δ is crossed with probability at most ``error``, from above.

    Raises:
        ValueError: if ``error`` is not in [1e-9, 0.4].
    """
    if not 1e-9 <= error <= 0.4:
        raise_invalid("error", error, "in [1e-9, 0.4]")
    wanted = error * (1 - _INEXACT)
    low = max(0.5, -float(scipy.special.ndtri(error)))
    high = 8.0
    found = scipy.optimize.brentq(
        lambda c: crossing_probability(c) - wanted, low, high, xtol=1e-6
    )
    return float(found) + 1e-6


def boundary(
    information: ArrayLike, error: float, horizon: float, planned: bool = True
) -> Floats:
    """How far above its mean a sum of scores may be, once there is so much ``information``.

    It is exceeded at any information > 0, with any number of looks, with probability at most
    ``error``, whatever ``horizon`` is. That decides where the boundary is tight, and must be chosen
    before the scores are seen. It is infinite where nothing is known.

    Args:
        information: the number of scores so far, or the sum of squared weights.
        error: probability, one-sided.
        horizon: information at the planned end, after which the boundary is wider.
        planned: whether the end is planned; else ``horizon`` is where the boundary is tightest,
            and there is no end.
    """
    check_probability("error", error)
    check_positive("horizon", horizon)
    known = np.asarray(information, np.float64)
    if not planned:
        return np.where(known > 0, _mixture(known, error, horizon), np.inf)
    share = known / horizon
    height = boundary_height((1 - _BEYOND) * error)
    until = height * math.sqrt(horizon) * np.minimum(share, 1.0) ** SHAPE
    after = _mixture(known, _BEYOND * error, horizon)
    return np.where(known > 0, np.where(share <= 1, until, after), np.inf)


def _mixture(known: Floats, error: float, horizon: float) -> Floats:
    """Valid for ever: Robbins' mixture over a half-normal law, from above."""
    log = 2 * math.log(1 / (2 * error))
    rho = horizon / (log + math.log1p(log))
    odds = np.sqrt((known + rho) / rho) / (2 * error)
    return np.sqrt(2 * (known + rho) * np.log(odds + 0.5))


def widening(share: float, confidence: float) -> float:
    """How many times as wide as an interval for one look one is that holds after every round.

    Args:
        share: of the planned rounds that are done, in (0, 1].
        confidence: of both intervals, two-sided.
    """
    error = (1 - confidence) / 2
    once = -float(scipy.special.ndtri(error)) * math.sqrt(share)
    return float(boundary(share, error, PLAN_MARGIN)) / once
