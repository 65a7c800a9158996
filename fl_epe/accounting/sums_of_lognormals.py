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
            times its probability, which is finite where the value overflows, shape ``(2, n)``. If X
            is the likelihood ratio of two distributions, these are its probabilities under both.
        lost: the part of E[X] in values that were left out because they are too large.
    """

    first: int
    step: float
    masses: Floats
    lost: float = 0.0

    @property
    def null(self) -> Floats:
        """The probabilities, shape ``(n,)``; for a likelihood ratio, those without the client."""
        return np.asarray(self.masses[0])

    @property
    def mean(self) -> Floats:
        """The values times their probabilities, shape ``(n,)``, whose sum is E[X] − ``lost``."""
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
    highest_score = -float(scipy.special.ndtri(tail))
    high = float(np.max(signals * (signals / 2 + highest_score)))
    # The grid from −high to high has fewer than 2·_POINTS points, also after both ends are rounded
    # outwards.
    step = 2 * high / (2 * _POINTS - 4)
    first = math.floor(-high / step)
    last = math.ceil(high / step)
    logs = step * np.arange(first, last + 1.0)
    masses = np.zeros((2, len(logs)))
    for signal, share in zip(signals, shares, strict=True):
        edges = logs / signal + signal / 2
        log_null = _log_between(edges)
        log_mean = _log_between(edges - signal)
        # The parts of E[X] and of the probability in a cell that go to its upper end.
        excess = np.exp(log_mean) - np.exp(log_null + logs[:-1])
        upper_mean = np.clip(excess / -math.expm1(-step), 0.0, np.exp(log_mean))
        upper_null = upper_mean * np.exp(-np.maximum(logs[1:], _LOWEST_LOG))
        upper_null = np.minimum(upper_null, np.exp(log_null))
        upper = share * np.array([upper_null, upper_mean])
        masses[:, :-1] += share * np.exp([log_null, log_mean]) - upper
        masses[:, 1:] += upper
    # Values below the grid are raised to its first point.
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
    # The coarser grid is used if the finer one would need too many points.
    step = min(x.step, y.step)
    range_of_logs = max(x.step * len(x.null), y.step * len(y.null))
    if range_of_logs > 4 * _POINTS * step:
        step = max(x.step, y.step)
    x = on_grid(x, step)
    y = on_grid(y, step)
    # The range of the sum's logarithm, in steps, from coarser grids.
    points = len(x.null) + len(y.null)
    coarser = max(1.0, points / (2 * _COARSE_POINTS))
    coarse_x = on_grid(x, step * coarser)
    coarse_y = coarse_x if x is y else on_grid(y, step * coarser)
    coarse_places = _trimmed(_sum(coarse_x, coarse_y, 1), tail).places
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
        lost: the part of E[X] in values that were left out because they are too large.
    """
    places = np.floor(logs / step + _ROUNDING).astype(np.int64)
    up = _upward(np.clip(logs - places * step, 0.0, step), step)
    cells = places - places[0]
    points = int(cells[-1]) + 2
    lower = [np.bincount(cells, row, points) for row in (1 - up) * masses]
    upper = [np.bincount(cells + 1, row, points) for row in up * masses]
    split_masses = np.add(lower, upper, dtype=np.float64)
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

    ln(x + y) lies above the larger of ln x and ln y by an amount that depends only on their
    distance, so all pairs at one distance are added at once. If this amount is less than a step of
    the new grid, the pair is called far. Far pairs of all distances are added at once.
    """
    n = len(x.null)
    m = len(y.null)
    step = x.step / finer
    offset = x.first - y.first
    largest_distance = max(abs(offset + 1 - m), abs(offset + n - 1))
    # How far the sum lies above the larger value, for each distance of the logarithms.
    above = np.log1p(np.exp(-np.arange(largest_distance + 1.0) * x.step))
    cells = np.floor(above / step).astype(np.int64)
    up = _upward(above - cells * step, step)
    far = max(1, int(np.count_nonzero(cells)))  # least distance of a far pair
    origin = max(x.first, y.first) * finer + int(cells[-1])
    end = max(x.first + n, y.first + m) * finer
    masses = np.zeros((2, end + int(cells[0]) + 2 - origin))
    # With equal laws, each pair of different values counts twice, as x and y may be exchanged.
    is_same = x is y
    times = 2 if is_same else 1
    for larger, smaller in [(x, y)] if is_same else [(x, y), (y, x)]:
        start, lower, upper = _far_pairs(larger, smaller, far, up)
        begin = (larger.first + start) * finer - origin
        _add(masses, begin, finer, times * lower, times * upper)
    # The index in x minus the index in y.
    first_lag = 0 if is_same else max(1 - m, 1 - far - offset)
    for lag in range(first_lag, min(n, far - offset)):
        start = max(0, lag)
        stop = min(n, m + lag)
        x_part = slice(start, stop)
        y_part = slice(start - lag, stop - lag)
        pairs = x.masses[:, x_part] * y.null[y_part]
        pairs[1] += x.null[x_part] * y.mean[y_part]
        if lag:
            pairs *= times
        distance = abs(offset + lag)
        upper = up[:, distance, None] * pairs
        larger_first = max(x.first + start, y.first + start - lag)
        begin = larger_first * finer + int(cells[distance]) - origin
        _add(masses, begin, finer, pairs - upper, upper)
    return LogLaw(origin, step, masses, x.lost + y.lost)


def _add(
    masses: Floats, begin: int, finer: int, lower: Floats, upper: Floats
) -> None:
    """Add ``lower`` to every ``finer``-th point of ``masses``, ``upper`` to the next points."""
    if not lower.size:
        return
    end = begin + (lower.shape[1] - 1) * finer + 1
    masses[:, begin:end:finer] += lower
    masses[:, begin + 1 : end + 1 : finer] += upper


def _far_pairs(
    larger: LogLaw, smaller: LogLaw, far: int, up: Floats
) -> tuple[int, Floats, Floats]:
    """The sums of each value of ``larger`` and all values that are far below it.

    Args:
        larger: the law of the larger variable.
        smaller: the law of the smaller one.
        far: the least distance of a pair, in points.
        up: for each distance, the shares that go to the next point, see `_upward`.

    Returns:
        The index of the first value of ``larger`` with such pairs; the masses that stay at it and
        the values after it; and the masses that go to the points of the new grid after each of
        them. The masses have the shape ``(2, values)``.
    """
    offset = larger.first - smaller.first
    nearest = max(far, offset - len(smaller.null) + 1)
    stop = max(nearest, offset + len(larger.null))
    start = max(0, nearest - offset)
    if stop == nearest:
        return start, np.zeros((2, 0)), np.zeros((2, 0))
    null, mean = larger.masses[:, start:]
    part = slice(start + offset - nearest, stop - nearest)

    def masses_of(shares: Floats) -> Floats:
        """The masses, if each pair has the shares that belong to its distance."""
        null_shares, mean_shares = shares
        null_below = np.convolve(smaller.null, null_shares)[part]
        mean_below = np.convolve(smaller.null, mean_shares)[part]
        values_below = np.convolve(smaller.mean, mean_shares)[part]
        return np.array(
            [null * null_below, mean * mean_below + null * values_below]
        )

    upper = up[:, nearest:stop]
    return start, masses_of(1 - upper), masses_of(upper)


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
