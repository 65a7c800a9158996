"""The distribution of a sum of independent lognormals of mean 1, on a logarithmic grid.

A value between two points of a grid is split between them so that its probability and its mean
do not change. That spreads the sum, so the mean of every convex function of it, such as δ at
any ε, is rounded up, by an amount that falls with the square of the grid's step. Only positive
numbers are added, so that small probabilities keep their relative precision.
"""

import dataclasses
import functools
import math

import numpy as np
import scipy

from fl_epe.checks import Floats, Integers, tail_sums

_POINTS = 512  # least number of points of a grid; there are up to twice as many
_COARSE_POINTS = 200  # points of the grid on which the range of a sum is found
_LOWEST_LOG = -700.0  # below it the inverse of a value would overflow
# A value that rounding moved below a point by this share of a step counts as the point.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class LogLaw:
    """The distribution of a variable X > 0 whose logarithm is ``step`` times a whole number.

    Attributes:
        first: the smallest of the whole numbers.
        step: distance of the logarithms.
        masses: the probability of each value, from the smallest to the largest, and the value
            times its probability, which is finite where the value overflows, shape ``(2, n)``.
        lost: the part of E[X] in values that were left out as too large.
    """

    first: int
    step: float
    masses: Floats
    lost: float = 0.0

    @property
    def null(self) -> Floats:
        """The probabilities, shape ``(n,)``."""
        return np.asarray(self.masses[0])

    @property
    def mean(self) -> Floats:
        """The values times their probabilities, shape ``(n,)``."""
        return np.asarray(self.masses[1])

    @property
    def places(self) -> Integers:
        """The logarithms of the values, in steps, shape ``(n,)``."""
        return np.arange(self.first, self.first + self.masses.shape[1])

    def logs(self) -> Floats:
        """Logarithms of the values, shape ``(n,)``."""
        return np.asarray(self.step * self.places)


def lognormal(signals: Floats, shares: Floats, tail: float) -> LogLaw:
    """The law of X = exp(a·s − a²/2) for a standard normal s and an ``a`` drawn from ``signals``.

    Args:
        signals: the values of ``a`` > 0, shape ``(g,)``.
        shares: their probabilities, shape ``(g,)``.
        tail: the part of E[X] that may be left out.
    """
    high = float(
        np.max(signals * (signals / 2 - float(scipy.special.ndtri(tail))))
    )
    step = 2 * high / (2 * _POINTS - 4)
    first = math.floor(-high / step)
    last = math.ceil(high / step)
    logs = step * np.arange(first, last + 1.0)
    masses = np.zeros((2, len(logs)))
    for a, share in zip(signals, shares, strict=True):
        edges = logs / a + a / 2
        log_null = _log_between(edges)
        log_mean = _log_between(edges - a)
        # The parts of E[X] and of the probability in a cell that go to its upper end.
        up = (np.exp(log_mean) - np.exp(log_null + logs[:-1])) / -math.expm1(
            -step
        )
        up = np.clip(up, 0.0, np.exp(log_mean))
        up_null = up * np.exp(-np.maximum(logs[1:], _LOWEST_LOG))
        up_null = np.minimum(up_null, np.exp(log_null))
        upper = share * np.array([up_null, up])
        masses[:, :-1] += share * np.exp([log_null, log_mean]) - upper
        masses[:, 1:] += upper
    masses[0, 0] += max(0.0, 1 - float(masses[0].sum()))
    return LogLaw(first, step, masses, tail)


def total_of(law: LogLaw, count: int, tail: float) -> LogLaw:
    """The law of a sum of ``count`` independent variables of one law, by repeated halving."""

    @functools.cache
    def total(n: int) -> LogLaw:
        if n == 1:
            return law
        return plus(total(n // 2), total(n - n // 2), tail)

    return total(count)


def plus(x: LogLaw, y: LogLaw, tail: float) -> LogLaw:
    """The law of the sum of two independent variables.

    Args:
        x: the law of one variable.
        y: the law of the other; if its step differs, the ratio of the steps is a power of 2.
        tail: the part of the sum's mean, and of its probability, that may be outside the grid.
    """
    points_x = len(x.null)
    points_y = len(y.null)
    step = min(x.step, y.step)
    if max(x.step * points_x, y.step * points_y) > 4 * _POINTS * step:
        step = max(x.step, y.step)
    x = on_grid(x, step)
    y = on_grid(y, step)
    # The range of the sum's logarithm, in steps, from coarser grids.
    points = len(x.null) + len(y.null)
    coarser = max(1.0, points / (2 * _COARSE_POINTS))
    coarse = _sum(on_grid(x, step * coarser), on_grid(y, step * coarser), 1)
    coarse_places = _trimmed(coarse, tail).places
    first = math.floor((coarse_places[0] - 1) * coarser)
    last = math.ceil((coarse_places[-1] + 2) * coarser)
    finer = 1
    while (last - first + 2) * finer < _POINTS:
        finer *= 2
    return _trimmed(_sum(x, y, finer), tail)


def on_grid(law: LogLaw, step: float) -> LogLaw:
    """The law of the same variable on another grid."""
    if step == law.step:
        return law
    return split(law.logs(), law.masses, step, law.lost)


def split(
    logs: Floats, masses: Floats, step: float, lost: float = 0.0
) -> LogLaw:
    """A law on the grid of ``step``, from values between its points.

    Args:
        logs: logarithms of the values, increasing, shape ``(n,)``.
        masses: the probabilities of the values, and values times probabilities, ``(2, n)``.
        step: the distance of the grid's points.
        lost: the part of E[X] in values that were left out as too large.
    """
    places = np.floor(logs / step + _ROUNDING).astype(np.int64)
    above = np.clip(logs - places * step, 0.0, step)
    upper = _upward(above, step) * masses
    cells = places - places[0]
    points = int(cells[-1]) + 2
    lower = [np.bincount(cells, row, points) for row in masses - upper]
    raised = [np.bincount(cells + 1, row, points) for row in upper]
    split_masses = np.array(lower) + np.array(raised)
    return LogLaw(int(places[0]), step, split_masses, lost)


def _upward(above: Floats, step: float) -> Floats:
    """The shares of a value that go to the next point of a grid.

    Args:
        above: how far the values lie above points of the grid, shape ``(n,)``.
        step: the distance of the grid's points.

    Returns:
        The share of the probability and the share of the mean, shape ``(2, n)``.
    """
    mean = np.expm1(-above) / math.expm1(-step)
    return np.array([mean * np.exp(above - step), mean])


def _sum(x: LogLaw, y: LogLaw, finer: int) -> LogLaw:
    """The law of the sum of two variables on one grid, on a grid that is ``finer`` times as fine.

    ln(x + y) lies above the larger of ln x and ln y by an amount that depends on their distance
    alone, so all pairs at one distance are added at once. In pairs that are far apart this amount
    is less than a step of the new grid. They are added at once for all distances: the share of
    the probability that goes to the next point is linear in the smaller value.
    """
    step = x.step / finer
    lowest = min(x.first, y.first)
    end = max(x.first + len(x.null), y.first + len(y.null))
    # How far the sum lies above the larger value, at each distance of the two logarithms.
    above = np.log1p(np.exp(-x.step * np.arange(end - lowest)))
    cells = np.floor(above / step).astype(np.int64)
    up = _upward(above - cells * step, step)
    far = max(1, int(np.count_nonzero(cells)))  # least distance of a far pair
    origin = max(x.first, y.first) * finer + int(cells[-1])
    masses = np.zeros((2, end * finer + int(cells[0]) + 2 - origin))
    # Pairs of equal values are counted in the first case.
    for larger, smaller, nearest in ((x, y, 0), (y, x, 1)):
        offset = larger.first - smaller.first
        for distance in range(nearest, far):
            start = max(0, distance - offset)
            stop = min(len(larger.null), len(smaller.null) + distance - offset)
            if start >= stop:
                continue
            part = slice(start + offset - distance, stop + offset - distance)
            pairs = larger.masses[:, start:stop] * smaller.null[part]
            pairs[1] += larger.null[start:stop] * smaller.mean[part]
            upper = up[:, distance, None] * pairs
            begin = (larger.first + start) * finer + int(cells[distance])
            _add(masses, begin - origin, finer, pairs - upper, upper)
        # For each value of the larger variable, the number of values far below it.
        counts = np.arange(len(larger.null)) + offset - far + 1
        start = max(0, far - offset)
        if start < len(larger.null):
            far_sums = np.cumsum(smaller.masses, axis=1)
            below = far_sums[
                :, np.minimum(counts[start:], len(smaller.null)) - 1
            ]
            pairs = larger.masses[:, start:] * below[0]
            pairs[1] += larger.null[start:] * below[1]
            upper_mean = larger.null[start:] * below[1] / -math.expm1(-step)
            next_logs = larger.logs()[start:] + step
            upper = np.array(
                [
                    upper_mean * np.exp(-np.maximum(next_logs, _LOWEST_LOG)),
                    upper_mean,
                ]
            )
            begin = (larger.first + start) * finer
            _add(masses, begin - origin, finer, pairs - upper, upper)
    return LogLaw(origin, step, masses, x.lost + y.lost)


def _add(
    masses: Floats, begin: int, finer: int, lower: Floats, upper: Floats
) -> None:
    """Add ``lower`` to every ``finer``-th point of ``masses``, ``upper`` to the next points."""
    end = begin + (lower.shape[1] - 1) * finer + 1
    masses[:, begin:end:finer] += lower
    masses[:, begin + 1 : end + 1 : finer] += upper


def _trimmed(law: LogLaw, tail: float) -> LogLaw:
    """The law without its largest values; its smallest ones are raised to a common value."""
    below = np.cumsum(law.null)
    upper_tails = tail_sums(law.mean)
    start = int(np.searchsorted(below, tail))
    # The first value that may be left out.
    stop = int(np.searchsorted(-upper_tails, -tail * upper_tails[0]))
    masses = law.masses[:, start:stop].copy()
    if start:
        smallest = math.exp(law.step * (law.first + start))
        masses[:, 0] += below[start - 1] * np.array([1.0, smallest])
    lost = law.lost + float(upper_tails[stop])
    return LogLaw(law.first + start, law.step, masses, lost)


def _log_between(edges: Floats) -> Floats:
    """The logarithm of P[e_i < s ≤ e_(i+1)] for a standard normal s, to full relative precision."""
    is_upper = edges[:-1] > 0
    log_small = scipy.special.log_ndtr(
        np.where(is_upper, -edges[1:], edges[:-1])
    )
    log_large = scipy.special.log_ndtr(
        np.where(is_upper, -edges[:-1], edges[1:])
    )
    return np.asarray(log_large + np.log(-np.expm1(log_small - log_large)))
