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

from fl_epe.checks import Floats

_POINTS = 512  # of a grid, about: up to twice as many
_LOOK = 200  # points of the coarse grid on which the range of a sum is found


@dataclasses.dataclass(frozen=True)
class LogLaw:
    """The distribution of a variable X > 0 whose logarithm is ``step`` times a whole number.

    Attributes:
        first: the smallest of the whole numbers.
        step: distance of the logarithms.
        null: probability of each value, from the smallest to the largest, shape ``(n,)``.
        mean: the value times its probability, shape ``(n,)``; finite where the value overflows.
        lost: the part of E[X] in values that were left out as too large.
    """

    first: int
    step: float
    null: Floats
    mean: Floats
    lost: float = 0.0

    def logs(self) -> Floats:
        """Logarithms of the values."""
        return np.asarray(self.step * np.arange(self.first, self.first + len(self.null)))


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
        upper = np.array([up_null, up])
        masses[:, :-1] += share * (np.exp([inside, part]) - upper)
        masses[:, 1:] += share * upper
    null, mean = masses
    null[0] += max(0.0, 1 - float(null.sum()))
    return LogLaw(first, step, null, mean, tail)


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
    return law if step == law.step else split(law.logs(), law.null, law.mean, step, law.lost)


def split(logs: Floats, null: Floats, mean: Floats, step: float, lost: float = 0.0) -> LogLaw:
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
    up = np.expm1(-np.clip(logs - places * step, 0.0, step)) / math.expm1(-step)
    shares = np.array([up * np.exp(np.clip(logs - places * step, 0.0, step) - step), up])
    masses = np.array([null, mean])
    out = np.zeros((2, cells[-1] + 2))
    for row, share, mass in zip(out, shares, masses, strict=True):
        row[:-1] += np.bincount(cells, (1 - share) * mass)
        row[1:] += np.bincount(cells, share * mass)
    return LogLaw(int(places[0]), step, out[0], out[1], lost)


def _sum(one: LogLaw, other: LogLaw, finer: int) -> LogLaw:
    """The sum of two variables on one grid, on a grid that is ``finer`` times as fine.

    ln(x + y) lies above the larger of ln x and ln y by an amount that depends on their distance
    alone, so all pairs at one distance are added at once. Where that amount is less than a step of
    the new grid, all distances are.
    """
    n = len(one.null)
    m = len(other.null)
    step = one.step / finer
    first, end = max(one.first, other.first), max(one.first + n, other.first + m)
    apart = one.first - other.first
    most = max(abs(apart + lag) for lag in (1 - m, n - 1))
    lowest = math.floor(math.log1p(math.exp(-most * one.step)) / step)
    far = 1  # from here on it is less than a step
    if step < 1:
        far = max(1, math.ceil(1 - math.log(math.expm1(step)) / one.step))
    size = (end - first) * finer + math.ceil(math.log(2) / step) - lowest
    out = np.zeros((2, size + 2))
    for larger, smaller in ((one, other), (other, one))[: 1 if one is other else 2]:
        start, below, above = _of_far_pairs(larger, smaller, far, step)
        if one is other:  # and the same with the two exchanged
            below = 2 * below
            above = 2 * above
        begin = (larger.first + start - first) * finer - lowest
        end = begin + (below.shape[1] - 1) * finer + 1
        if below.size:
            out[:, begin:end:finer] += below
            out[:, begin + 1 : end + 1 : finer] += above
    lags = range(max(1 - m, 1 - far - apart), min(n, far - apart))
    for lag in range(lags.stop) if one is other else lags:
        _add_pairs(out, one, other, lag, finer, first * finer + lowest)
    return LogLaw(first * finer + lowest, step, out[0], out[1], one.lost + other.lost)


def _of_far_pairs(
    larger: LogLaw, smaller: LogLaw, far: int, step: float
) -> tuple[int, Floats, Floats]:
    """The sums of each value of ``larger`` and all those at least ``far`` points below it.

    Returns:
        The first value with such pairs, and what falls on it and those after it, and on the points
        of the new grid that follow them: probabilities and means, each of shape ``(2, values)``.
    """
    apart = larger.first - smaller.first
    nearest = max(far, apart - len(smaller.null) + 1)
    distances = np.arange(nearest, apart + len(larger.null))
    start = max(0, nearest - apart)
    if not len(distances):
        return start, np.zeros((2, 0)), np.zeros((2, 0))
    excess = np.log1p(np.exp(-distances * larger.step))
    up = np.expm1(-excess) / np.expm1(-step)
    up_null = up * np.exp(excess - step)
    null = larger.null[start:]
    mean = larger.mean[start:]

    def met(values: Floats, shares: Floats) -> Floats:
        return np.convolve(values, shares)[start + apart - nearest : len(distances)]

    def fallen(of_null: Floats, of_mean: Floats) -> Floats:
        means = mean * met(smaller.null, of_mean) + null * met(smaller.mean, of_mean)
        return np.array([null * met(smaller.null, of_null), means])

    return start, fallen(1 - up_null, 1 - up), fallen(up_null, up)


def _add_pairs(out: Floats, one: LogLaw, other: LogLaw, lag: int, finer: int, origin: int) -> None:
    """Add the sums of all pairs at one distance to ``out``, which begins at ``origin``."""
    step = one.step / finer
    above = math.log1p(math.exp(-abs(one.first - other.first + lag) * one.step))
    cell = math.floor(above / step)
    up = math.expm1(cell * step - above) / math.expm1(-step)
    share = np.array([[up * math.exp(above - (cell + 1) * step)], [up]])
    start = max(0, lag)
    stop = min(len(one.null), len(other.null) + lag)
    a = slice(start, stop)
    b = slice(start - lag, stop - lag)
    pairs = np.empty((2, stop - start))
    np.multiply(one.null[a], other.null[b], out=pairs[0])
    np.multiply(one.mean[a], other.null[b], out=pairs[1])
    pairs[1] += one.null[a] * other.mean[b]
    if one is other and lag:
        pairs *= 2  # and the same with the two exchanged
    upper = share * pairs
    begin = max(one.first + start, other.first + start - lag) * finer + cell - origin
    end = begin + (stop - start - 1) * finer + 1
    out[:, begin:end:finer] += pairs - upper
    out[:, begin + 1 : end + 1 : finer] += upper


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
    beyond = np.cumsum(law.mean[::-1])[::-1]
    start = int(np.searchsorted(below, tail))
    stop = int(np.searchsorted(-beyond, -tail * beyond[0]))  # the first that may be left out
    null = law.null[start:stop].copy()
    mean = law.mean[start:stop].copy()
    if start:
        null[0] += below[start - 1]
        mean[0] += below[start - 1] * math.exp(law.step * (law.first + start))
    lost = law.lost + (float(beyond[stop]) if stop < len(beyond) else 0.0)
    return LogLaw(law.first + start, law.step, null, mean, lost)


def _log_between(edges: Floats) -> Floats:
    """The logarithm of P[e_i < s ≤ e_(i+1)], s standard normal, with full relative precision."""
    upper = edges[:-1] > 0
    small = np.where(upper, -edges[1:], edges[:-1])
    top = scipy.special.log_ndtr(np.where(upper, -edges[:-1], edges[1:]))
    return np.asarray(top + np.log(-np.expm1(scipy.special.log_ndtr(small) - top)))
