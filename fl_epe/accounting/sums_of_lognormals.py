"""The distribution of a sum of independent lognormals of mean 1, on a logarithmic grid.

A value between two points of a grid is split between them so that its probability and its mean
stay. That spreads the sum, so the mean of every convex function of it, such as δ at any ε, is
rounded up, by an amount that falls with the square of the grid's step. Only positive numbers are
added, so that small probabilities keep their relative precision.
"""

import dataclasses
import functools
import math

import numpy as np
import scipy

from fl_epe.checks import Floats, tail_sums

_POINTS = 512  # of a grid, about: up to twice as many
_LOOK = 200  # points of the coarse grid on which the range of a sum is found


@dataclasses.dataclass(frozen=True)
class LogLaw:
    """The distribution of a variable X > 0 whose logarithm is ``step`` times a whole number.

    Attributes:
        first: the smallest of the whole numbers.
        step: distance of the logarithms.
        masses: probability of each value, from the smallest to the largest, and the value times
            that, which is finite where the value overflows, shape ``(2, n)``.
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

    def logs(self) -> Floats:
        """Logarithms of the values."""
        return np.asarray(
            self.step * np.arange(self.first, self.first + len(self.null))
        )


def lognormal(signals: Floats, shares: Floats, tail: float) -> LogLaw:
    """exp(a·s − a²/2) of a standard normal s, for an ``a`` drawn from ``signals``.

    Args:
        signals: every ``a`` > 0, shape ``(g,)``.
        shares: their probabilities, shape ``(g,)``.
        tail: part of E[X] that may be left out.
    """
    high = float(np.max(signals * (signals / 2 - float(scipy.special.ndtri(tail)))))
    step = 2 * high / (2 * _POINTS - 4)
    first = math.floor(-high / step)
    last = math.ceil(high / step)
    logs = step * np.arange(first, last + 1.0)
    masses = np.zeros((2, len(logs)))  # probabilities, and values times these
    for a, share in zip(signals, shares, strict=True):
        edges = logs / a + a / 2
        inside = _log_between(edges)
        part = _log_between(edges - a)
        # Of E[X] in a cell, what goes to its upper end; and of the probability.
        up = (np.exp(part) - np.exp(inside + logs[:-1])) / -math.expm1(-step)
        up = np.clip(up, 0.0, np.exp(part))
        up_null = np.minimum(up * np.exp(-np.maximum(logs[1:], -700.0)), np.exp(inside))
        upper = share * np.array([up_null, up])
        _add(masses, 0, 1, share * np.exp([inside, part]) - upper, upper)
    masses[0, 0] += max(0.0, 1 - float(masses[0].sum()))
    return LogLaw(first, step, masses, tail)


def total_of(law: LogLaw, count: int, tail: float) -> LogLaw:
    """The sum of ``count`` independent variables of one law, from the sums of half as many."""

    @functools.cache
    def total(n: int) -> LogLaw:
        if n == 1:
            return law
        half = total(n // 2)
        return plus(half, total(n // 2 + 1) if n % 2 else half, tail)

    return total(count)


def plus(one: LogLaw, other: LogLaw, tail: float) -> LogLaw:
    """The sum of two independent variables.

    Args:
        one: a law.
        other: a law; if its step differs, the two steps' ratio is a power of 2.
        tail: part of the sum's mean, and of its probability, outside the grid.
    """
    if one is not other:
        step = min(one.step, other.step)
        if max(law.step * len(law.null) for law in (one, other)) > 4 * _POINTS * step:
            step = max(one.step, other.step)
        one = on_grid(one, step)
        other = on_grid(other, step)
    first, last = _range(one, other, tail)
    finer = 1
    while (last - first + 2) * finer < _POINTS:
        finer *= 2
    return _trimmed(_sum(one, other, finer), tail)


def on_grid(law: LogLaw, step: float) -> LogLaw:
    """The same variable on another grid."""
    return (
        law
        if step == law.step
        else split(law.logs(), law.null, law.mean, step, law.lost)
    )


def split(
    logs: Floats, null: Floats, mean: Floats, step: float, lost: float = 0.0
) -> LogLaw:
    """A law on the grid of ``step``, from values between its points.

    Args:
        logs: logarithms of the values, increasing, shape ``(n,)``.
        null: their probabilities, shape ``(n,)``.
        mean: values times probabilities, shape ``(n,)``.
        step: of the grid.
        lost: the part of E[X] in values that were left out as too large.
    """
    places = np.floor(logs / step + 1e-9)
    cells = (places - places[0]).astype(np.int64)
    shares = _upward(np.clip(logs - places * step, 0.0, step), step)
    masses = np.array([null, mean])
    out = np.zeros((2, cells[-1] + 2))
    lower, upper = (
        np.array([np.bincount(cells, each) for each in part])
        for part in ((1 - shares) * masses, shares * masses)
    )
    _add(out, 0, 1, lower, upper)
    return LogLaw(int(places[0]), step, out, lost)


def _upward(above: Floats, step: float) -> Floats:
    """Shares that go to the next point of a grid, of what is so far above a point of it.

    Returns:
        Of probability and of mean, shape ``(2, n)``.
    """
    mean = np.expm1(-above) / math.expm1(-step)
    return np.array([mean * np.exp(above - step), mean])


def _sum(one: LogLaw, other: LogLaw, finer: int) -> LogLaw:
    """The sum of two variables on one grid, on a grid that is ``finer`` times as fine.

    ln(x + y) lies above the larger of ln x and ln y by an amount that depends on their distance
    alone, so all pairs at one distance are added at once. Where that amount is less than a step of
    the new grid, all distances are.
    """
    n = len(one.null)
    m = len(other.null)
    step = one.step / finer
    end = max(one.first + n, other.first + m)
    apart = one.first - other.first
    most = max(abs(apart + lag) for lag in (1 - m, n - 1))
    above = np.log1p(np.exp(-np.arange(most + 1.0) * one.step))  # at each distance
    cells = np.floor(above / step).astype(np.int64)
    up = _upward(above - cells * step, step)
    far = max(1, int(np.count_nonzero(cells)))  # from here on it is less than a step
    origin = max(one.first, other.first) * finer + int(cells[-1])
    out = np.zeros((2, end * finer + int(cells[0]) + 2 - origin))
    times = 2 if one is other else 1  # each pair of different values, and it exchanged
    for larger, smaller in ((one, other), (other, one))[::times]:
        begin, lower, upper = _of_far_pairs(larger, smaller, far, up)
        if lower.size:
            _add(out, begin * finer - origin, finer, times * lower, times * upper)
    for lag in range(
        0 if one is other else max(1 - m, 1 - far - apart), min(n, far - apart)
    ):
        start, stop, distance = max(0, lag), min(n, m + lag), abs(apart + lag)
        a = slice(start, stop)
        b = slice(start - lag, stop - lag)
        pairs = one.masses[:, a] * other.null[b]
        pairs[1] += one.null[a] * other.mean[b]
        if lag:
            pairs *= times
        upper = up[:, distance, None] * pairs
        begin = max(one.first + start, other.first + start - lag) * finer + int(
            cells[distance]
        )
        _add(out, begin - origin, finer, pairs - upper, upper)
    return LogLaw(origin, step, out, one.lost + other.lost)


def _add(out: Floats, begin: int, finer: int, lower: Floats, upper: Floats) -> None:
    """Add masses to every ``finer``-th point of ``out``, and others to the points after these."""
    end = begin + (lower.shape[1] - 1) * finer + 1
    out[:, begin:end:finer] += lower
    out[:, begin + 1 : end + 1 : finer] += upper


def _of_far_pairs(
    larger: LogLaw, smaller: LogLaw, far: int, up: Floats
) -> tuple[int, Floats, Floats]:
    """The sums of each value of ``larger`` and all those at least ``far`` points below it.

    Returns:
        The first value with such pairs, and what falls on it and those after it, and on the points
        of the new grid that follow them: probabilities and means, each of shape ``(2, values)``.
    """
    apart = larger.first - smaller.first
    nearest = max(far, apart - len(smaller.null) + 1)
    stop = max(nearest, apart + len(larger.null))
    start = max(0, nearest - apart)
    null, mean = larger.masses[:, start:]

    def fallen(of_null: Floats, of_mean: Floats) -> Floats:
        met = [
            np.convolve(values, shares)[start + apart - nearest : stop - nearest]
            for values, shares in (
                (smaller.null, of_null),
                (smaller.null, of_mean),
                (smaller.mean, of_mean),
            )
        ]
        return np.array([null * met[0], mean * met[1] + null * met[2]])

    if stop == nearest:
        return larger.first + start, np.zeros((2, 0)), np.zeros((2, 0))
    shares = up[:, nearest:stop]
    return larger.first + start, fallen(*(1 - shares)), fallen(*shares)


def _range(one: LogLaw, other: LogLaw, tail: float) -> tuple[int, int]:
    """The range of the sum's logarithm in steps, from coarser grids."""
    coarser = max(1.0, (len(one.null) + len(other.null)) / (2 * _LOOK))
    step = one.step * coarser
    a = on_grid(one, step)
    law = _trimmed(_sum(a, a if one is other else on_grid(other, step), 1), tail)
    low = (law.first - 1) * coarser
    high = (law.first + len(law.null) + 1) * coarser
    return math.floor(low), math.ceil(high)


def _trimmed(law: LogLaw, tail: float) -> LogLaw:
    """Without the largest values, and with the smallest raised to the smallest that is kept."""
    below = np.cumsum(law.null)
    beyond = tail_sums(law.mean)
    start = int(np.searchsorted(below, tail))
    stop = int(
        np.searchsorted(-beyond, -tail * beyond[0])
    )  # the first that may be left out
    masses = law.masses[:, start:stop].copy()
    if start:
        smallest = math.exp(law.step * (law.first + start))
        masses[:, 0] += below[start - 1] * np.array([1.0, smallest])
    lost = law.lost + float(beyond[stop])
    return LogLaw(law.first + start, law.step, masses, lost)


def _log_between(edges: Floats) -> Floats:
    """The logarithm of P[e_i < s ≤ e_(i+1)], s standard normal, with full relative precision."""
    upper = edges[:-1] > 0
    small = np.where(upper, -edges[1:], edges[:-1])
    top = scipy.special.log_ndtr(np.where(upper, -edges[:-1], edges[1:]))
    return np.asarray(top + np.log(-np.expm1(scipy.special.log_ndtr(small) - top)))
