"""Confidence sequences: intervals that hold at every look at once, however often one looks.

A 95% interval that is computed anew after every round excludes the truth in some round far more
often than in 5% of runs. A confidence sequence does so in at most 5% of runs, over all rounds
together, and one may stop when it says enough. Scores must have variance 1 and come one after the
other; each has a mean of its own given those before, so that their sum less its mean is a random
walk. `Boundary` says how far the walk strays. Derivation and cost: docs/notes/watching.md.

Examples:
    >>> low, high = WatchedMean(total=12.5, information=4, horizon=4).interval()
    >>> low < 3 < high
    True
    >>> bool(high - low < 1.25 * 1.96)  # one for a single look has 2·1.96/√4
    True
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from fl_epe.checks import check_positive, check_probability, raise_invalid

Floats = NDArray[np.float64]

SHAPE = 0.2
"""Exponent Δ of the boundary c·t^Δ; 0 stops late and is tightest at the end, ½ is too wide."""

UNPLANNED = 100.0
"""Scores after which a sequence is tightest, where nobody said how many there will be."""

_BEYOND = 0.04  # share of the error that is left for what comes after the planned end
_STEPS = 400  # of the integral equation for c
_INEXACT = 1e-3  # its relative error, which is taken off the error that is asked for
_NEVER = 9.0  # standard deviations that a walk is not above before the first step


def crossing_probability(height: float, steps: int = _STEPS, shape: float = SHAPE) -> float:
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
    alone = (tops / times - slopes) * _density(tops, times)
    found = alone.copy()
    for now in range(1, steps + 1):
        left, rise = times[now] - times[:now], tops[now] - tops[:now]
        again = (slopes[now] - rise / left) * _density(rise, left)
        found[now] += gap * np.sum(again * found[:now] * times[:now])
    return float(gap * (np.sum(found * times) - found[-1] / 2))


def _density(values: Floats, variances: Floats) -> Floats:
    return np.asarray(np.exp(-(values**2) / (2 * variances)) / np.sqrt(2 * math.pi * variances))


@functools.cache
def boundary_height(error: float) -> float:
    """The c for which c·t^Δ is crossed with probability at most ``error``, from above.

    Raises:
        ValueError: if ``error`` is not in [1e-9, 0.4].
    """
    if not 1e-9 <= error <= 0.4:
        raise_invalid("error", error, "in [1e-9, 0.4]")
    wanted = error * (1 - _INEXACT)
    low, high = max(0.5, -float(scipy.special.ndtri(error))), 8.0
    found = scipy.optimize.brentq(lambda c: crossing_probability(c) - wanted, low, high, xtol=1e-6)
    return float(found) + 1e-6


@dataclasses.dataclass(frozen=True)
class Boundary:
    """How far above its mean a sum of scores may ever be.

    ``at(I)`` is exceeded at any I > 0, with any number of looks, with probability at most
    ``error``. I is the information: the number of scores, or the sum of squared weights. That
    holds whatever ``horizon`` is; it decides where the boundary is tight, and must be chosen before
    the scores are seen.

    Attributes:
        error: probability, one-sided.
        horizon: information at the planned end, after which the boundary is wider.
        planned: whether the end is planned; else ``horizon`` is where the boundary is tightest,
            and there is no end.
    """

    error: float
    horizon: float
    planned: bool = True

    def __post_init__(self) -> None:
        check_probability("error", self.error)
        check_positive("horizon", self.horizon)

    def at(self, information: ArrayLike) -> Floats:
        """The height at each ``information``; infinite where it is 0."""
        known = np.asarray(information, np.float64)
        if not self.planned:
            return np.where(known > 0, self._mixture(known, self.error), np.inf)
        share = known / self.horizon
        height = boundary_height((1 - _BEYOND) * self.error)
        until = height * math.sqrt(self.horizon) * np.minimum(share, 1.0) ** SHAPE
        after = self._mixture(known, _BEYOND * self.error)
        return np.where(known > 0, np.where(share <= 1, until, after), np.inf)

    def _mixture(self, known: Floats, error: float) -> Floats:
        """Valid for ever: Robbins' mixture over a half-normal law, from above."""
        log = 2 * math.log(1 / (2 * error))
        rho = self.horizon / (log + math.log1p(log))
        odds = np.sqrt((known + rho) / rho) / (2 * error)
        return np.asarray(np.sqrt(2 * (known + rho) * np.log(odds + 0.5)))


@dataclasses.dataclass(frozen=True)
class WatchedMean:
    """A mean of scores that may be watched: its value so far, and an interval for it.

    Attributes:
        total: sum of the weights times the scores.
        information: sum of the squared weights; with weights of 1 the number of scores.
        horizon: as in `Boundary`.
        planned: as in `Boundary`.
        confidence: coverage of the two-sided interval, over all looks.
        variance: of the total, in which ``horizon`` is then counted; the information by default.
        unit_error: relative standard error of the weights' unit; the interval allows for three.
    """

    total: float
    information: float
    horizon: float
    planned: bool = True
    confidence: float = 0.95
    variance: float | None = None
    unit_error: float = 0.0

    @property
    def mean(self) -> float:
        """The weighted mean of the scores over their weights; NaN before the first."""
        return self.total / self.information if self.information > 0 else math.nan

    def interval(self) -> tuple[float, float]:
        """The lower and the upper end, infinite before the first score."""
        if not self.information > 0:
            return -math.inf, math.inf
        check_probability("confidence", self.confidence)
        boundary = Boundary((1 - self.confidence) / 2, self.horizon, self.planned)
        ratio = 1.0 if self.variance is None else self.variance / self.information
        half = float(boundary.at(ratio * self.information)) / self.information
        half = math.hypot(half, 3 * self.unit_error * self.mean)
        return self.mean - half, self.mean + half
