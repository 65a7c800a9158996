"""Checks of the noise's distribution: its shape, its largest values, and its grid."""

import dataclasses
import math

import numpy as np
import scipy

from fl_epe.checks import Floats, Integers
from fl_epe.noise.check import Check, judged
from fl_epe.noise.laws import ROUNDING
from fl_epe.noise.seen import Seen

_FINEST = (
    2.0**-13.5
)  # probability of one value on the finest grid that is found: float16's
# Probability of a pair of equal values on a grid, over its step: Laplace's, at most.
_DENSITY = 0.36
_ALSO = 3.0  # times as many equal pairs as on a grid of these values
_APART = 1e-8  # standard deviations: neighbours on a grid
_STRAY = 0.01  # of a grid's step: rounding
_PART = 2048  # values of which pairs are counted
_TAIL = 3.0  # standard deviations beyond which values are counted
_FAR = 1e-6  # probability of values that no generator needs to reach
_VALUES = 1 << 18  # that a shape is judged by
_TIES = 1 << 16  # and a grid
_OTHER = 1e-6  # chance from which on an array or round has another scale than claimed


def with_noise(seen: Seen) -> Integers:
    """Values of each array in all rounds, ``(A,)``; 0 for an array that never had any noise."""
    return np.where(seen.largest > 0, seen.layout.sizes * seen.rounds, 0)


@dataclasses.dataclass(frozen=True)
class Grid:
    """Values of an array and round that are equal to another one of these.

    Attributes:
        count: their number.
        expected: that on the finest grid that a check finds, at most.
        largest_mass: probability of the likeliest value, at most.
        step: largest distance of neighbours, in standard deviations, where the values of each
            array are multiples of one number, and as often equal as these are; else 0.
    """

    count: int
    expected: float
    largest_mass: float
    step: float

    @property
    def repeats(self) -> bool:
        """Whether more values are equal than on a fine grid."""
        return self.count > self.expected


def on_a_grid(seen: Seen) -> Grid:
    """The grid on which values are."""
    rows = seen.rows("sketch")
    rows = rows[: max(_TIES // max(rows.shape[1], 1), 1)]
    count, pairs, on_steps, steps = 0, 0.0, 0.0, [0.0]
    for group in range(len(seen.layout.sizes)):
        own = rows[:, seen.layout.groups == group]
        steps.append(_step(own))
        for part in np.array_split(np.round(own, 5), own.shape[1] // _PART + 1, axis=1):
            values = np.sort(part, axis=1)
            count += int(np.sum((np.diff(values, axis=1) == 0) & (values[:, 1:] != 0)))
            met = len(values) * values.shape[1] ** 2 / 2
            pairs += met
            on_steps += met * _DENSITY * steps[-1]
    step = (
        max(steps)
        if min(steps[1:], default=0.0) > 0 and count < _ALSO * on_steps
        else 0.0
    )
    mass = min(max(_FINEST, 2.5 * count / max(pairs, 1.0), 2 * _DENSITY * step), 0.5)
    return Grid(count, _FINEST * pairs, mass, step)


def _step(values: Floats) -> float:
    """The number of which all values are multiples; 0 without one."""
    apart = np.diff(np.unique(np.round(np.abs(values), 9)), prepend=0.0)
    step = float(apart[apart > _APART].min(initial=np.inf))
    stray = np.abs(values / step - np.rint(values / step)).max(initial=0.0)
    return step if stray < _STRAY and step < np.inf else 0.0


def evened(seen: Seen) -> Floats:
    """Values of the sketch; where a round's or array's scale is another, over that scale."""
    rows, groups = seen.rows("sketch"), seen.layout.groups
    rows = _over_scale(seen, rows[np.any(rows != 0, axis=1)])
    columns = [
        _over_scale(seen, rows[:, groups == g].reshape(1, -1))
        for g in np.unique(groups)
    ]
    values = np.concatenate(
        [each.ravel() for each in columns if np.any(each)] or [np.empty(0)]
    )
    return np.sort(values[:: max(len(values) // _VALUES, 1)])


def _over_scale(seen: Seen, rows: Floats) -> Floats:
    scales = seen.law.scales(seen.law.amounts(rows).sum(axis=1), rows.shape[1])
    below = seen.law.below(rows.shape[1], scales)
    other = (np.minimum(below, 1 - below) < _OTHER) & (scales > 0)
    return np.asarray(rows / np.where(other, scales, 1.0)[:, None])


def distribution(seen: Seen, level: float) -> Check:
    """The largest difference of the distribution functions (Massart 1990: exact for any n).

    Too few values beyond three standard deviations are told by an exact binomial test.
    """
    values, law, step = evened(seen), seen.law, on_a_grid(seen).step
    count = len(values)
    steps = np.arange(count + 1) / max(count, 1)
    above = steps[1:] - law.cdf(values + step / 2)
    below = law.cdf(values - step / 2) - steps[:-1]
    most = max(float(above.max(initial=0.0)), float(below.max(initial=0.0)))
    chance = math.log(2) - 2 * count * most**2
    measured = f"the distribution function of {count:,} values is up to {most:.2g} off"
    beyond = int(np.sum(np.abs(values) > _TAIL))
    share = float(law.beyond(np.array(_TAIL + step / 2 + ROUNDING)))
    rare = float(scipy.stats.binom.logcdf(beyond, count, share))
    if rare < chance:
        measured = (
            f"{beyond:,} of {count:,} values, not {count * share:,.0f}, are beyond {_TAIL:g}"
            " standard deviations"
        )
    texts = (
        f"the noise is {law.name}",
        measured,
        f"ε is accounted for noise that is {law.name}, at whatever scale",
    )
    return judged("shape", min(chance, rare) + math.log(2), level, texts)


def tails(seen: Seen, level: float) -> Check:
    """The largest values of an array and of all, against what so many values reach."""
    counts, amounts = with_noise(seen), seen.amounts
    counts, amounts = np.append(counts, counts.sum()), np.append(amounts, amounts.sum())
    largest = np.append(seen.largest, seen.largest.max())
    scales = np.clip(seen.law.scales(amounts, np.maximum(counts, 1)), 1e-9, 1.0)
    beyond = seen.law.beyond(largest / scales + ROUNDING + on_a_grid(seen).step)
    chances = np.where(
        beyond < _FAR, 0.0, counts * np.log1p(-np.minimum(beyond, 1 - 1e-16))
    )
    worst = int(chances.argmin())
    texts = (
        "the largest values are as large as those of so many draws",
        f"none of {counts[worst]:,} values is beyond {largest[worst]:.3g} standard deviations",
        "Truncated noise cannot explain every output: what it cannot explain shows who took part",
    )
    return judged("tails", float(chances[worst]) + math.log(len(counts)), level, texts)


def more_than(count: int, expected: float) -> float:
    """Logarithm of the probability of so large a count, at most (Chernoff)."""
    return (
        count - expected - count * math.log(count / expected)
        if count > expected
        else 0.0
    )


def grid(seen: Seen, level: float) -> Check:
    """Values that are equal, against those on a grid of floating-point numbers (Chernoff)."""
    found = on_a_grid(seen)
    log_chance = more_than(found.count, found.expected)
    measured = (
        f"{found.count:,} values of the sketch repeat another one; on a fine grid, up to"
        f" {found.expected:.3g}"
    )
    texts = (
        "the noise has a fine grid",
        measured,
        "On a coarse grid the digits of what is released tell what was added, whatever the noise"
        " (Mironov 2012)",
    )
    if found.step and log_chance < math.log(level):
        measured = f"all values are multiples of {found.step:.3g} standard deviations"
        why = (
            "That is right where all that it is added to are multiples as well, or where what is"
            " released is rounded after noise is added, and leaks it anywhere else"
        )
        return Check("grid", "unknown", texts[0], measured, why)
    return judged("grid", log_chance, level, texts)
