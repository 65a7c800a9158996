"""Checks of the noise's distribution: its shape, its largest values, and its grid."""

import dataclasses
import math

import numpy as np
import scipy

from fl_epe.checks import Floats, Integers
from fl_epe.noise.check import Check, judged
from fl_epe.noise.laws import ROUNDING
from fl_epe.noise.seen import NoiseSummary

# Probability of one value on the finest grid that the check detects, that of float16.
_FINEST = 2.0**-13.5
# Largest probability of a pair of equal values on a grid, over its step (Laplace noise).
_DENSITY = 0.36
# Values are not multiples of one step if more pairs are equal than so many times the expected.
_MORE_PAIRS = 3.0
# Smallest distance of two neighbours on a grid, in standard deviations.
_LEAST_STEP = 1e-8
# Largest distance of a value from a multiple of the step, over the step: rounding.
_STRAY = 0.01
# Equal pairs are counted among so many values at a time.
_PART = 2048
# Values beyond so many standard deviations are counted.
_TAIL = 3.0
# A generator need not reach values that are less likely than this.
_FAR = 1e-6
# Largest numbers of values in the checks of the shape and of the grid.
_VALUES = 1 << 18
_TIES = 1 << 16
# Below this probability, the scale of an array or round is not the claimed one.
_UNLIKELY_SCALE = 1e-6
# Upper bound of the likeliest value's probability over that of a tie, which is 2 for Laplace noise.
_MASS_OVER_TIES = 2.5
# Largest probability of one value, whatever the grid.
_LARGEST_MASS = 0.5


def with_noise(noise: NoiseSummary) -> Integers:
    """Number of values of each array in all rounds, ``(A,)``; 0 for an array without noise."""
    return np.where(noise.largest > 0, noise.layout.sizes * noise.rounds, 0)


@dataclasses.dataclass(frozen=True)
class Grid:
    """Values that equal another value of the same array and round, and the grid they lie on.

    Attributes:
        count: number of values that equal another one.
        expected: largest expected number on the finest grid that a check detects.
        largest_mass: upper bound of the probability of the likeliest value.
        step: largest step of an array's grid, in standard deviations, if the values of each
            array are multiples of one number and no more often equal than such multiples are;
            else 0.
    """

    count: int
    expected: float
    largest_mass: float
    step: float

    @property
    def repeats(self) -> bool:
        """Whether more values are equal than on a fine grid."""
        return self.count > self.expected


def on_a_grid(noise: NoiseSummary) -> Grid:
    """The grid on which the values of the sketch lie."""
    rows = noise.rows("sketch")
    rows = rows[: max(_TIES // max(rows.shape[1], 1), 1)]
    count = 0
    pairs = 0.0
    expected_on_steps = 0.0
    steps = []
    for group in range(len(noise.layout.sizes)):
        columns = rows[:, noise.layout.groups == group]
        step = _step(columns)
        steps.append(step)
        parts = columns.shape[1] // _PART + 1
        for part in np.array_split(np.round(columns, 5), parts, axis=1):
            values = np.sort(part, axis=1)
            equal = (np.diff(values, axis=1) == 0) & (values[:, 1:] != 0)
            count += int(np.sum(equal))
            pairs_of_part = len(values) * values.shape[1] ** 2 / 2
            pairs += pairs_of_part
            expected_on_steps += pairs_of_part * _DENSITY * step
    largest_step = 0.0
    if min(steps, default=0.0) > 0 and count < _MORE_PAIRS * expected_on_steps:
        largest_step = max(steps)
    mass = max(
        _FINEST,
        _MASS_OVER_TIES * count / max(pairs, 1.0),
        2 * _DENSITY * largest_step,
    )
    largest_mass = min(mass, _LARGEST_MASS)
    return Grid(count, _FINEST * pairs, largest_mass, largest_step)


def _step(values: Floats) -> float:
    """The number of which all values are multiples; 0 if there is none."""
    sizes = np.unique(np.round(np.abs(values), 9))
    distances = np.diff(sizes, prepend=0.0)
    step = float(distances[distances > _LEAST_STEP].min(initial=np.inf))
    stray = np.abs(values / step - np.rint(values / step)).max(initial=0.0)
    if stray < _STRAY and step < np.inf:
        return step
    return 0.0


def scaled_values(noise: NoiseSummary) -> Floats:
    """Sorted values of the sketch, divided by the scale of a round or array if unlikely."""
    groups = noise.layout.groups
    rows = noise.rows("sketch")
    rows = _over_scale(noise, rows[np.any(rows != 0, axis=1)])
    values = [np.empty(0)]
    for group in np.unique(groups):
        column = _over_scale(noise, rows[:, groups == group].reshape(1, -1))
        if np.any(column):
            values.append(column.ravel())
    flat = np.concatenate(values)
    return np.sort(flat[:: max(len(flat) // _VALUES, 1)])


def _over_scale(noise: NoiseSummary, rows: Floats) -> Floats:
    law = noise.law
    scales = law.scales(law.moment_terms(rows).sum(axis=1), rows.shape[1])
    below = law.scale_cdf(rows.shape[1], scales)
    unlikely = np.minimum(below, 1 - below) < _UNLIKELY_SCALE
    units = np.where(unlikely & (scales > 0), scales, 1.0)
    return np.asarray(rows / units[:, None])


def distribution(noise: NoiseSummary, level: float) -> Check:
    """Tests the largest difference of the distribution functions (Massart 1990: for any n).

    An exact binomial test detects too few values beyond three standard deviations.
    """
    law = noise.law
    values = scaled_values(noise)
    step = on_a_grid(noise).step
    count = len(values)
    steps = np.arange(count + 1) / max(count, 1)
    above = steps[1:] - law.cdf(values + step / 2)
    below = law.cdf(values - step / 2) - steps[:-1]
    difference = max(
        float(above.max(initial=0.0)), float(below.max(initial=0.0))
    )
    log_chance = math.log(2) - 2 * count * difference**2
    measured = f"the distribution function of {count:,} values is up to {difference:.2g} off"
    beyond = int(np.sum(np.abs(values) > _TAIL))
    share = float(law.tail_probability(np.array(_TAIL + step / 2 + ROUNDING)))
    log_chance_of_tail = float(scipy.stats.binom.logcdf(beyond, count, share))
    if log_chance_of_tail < log_chance:
        log_chance = log_chance_of_tail
        measured = (
            f"{beyond:,} of {count:,} values, not {count * share:,.0f}, are beyond {_TAIL:g}"
            " standard deviations"
        )
    return judged(
        "shape",
        claim=f"the noise is {law.name}",
        measured=measured,
        why=f"ε is accounted for noise that is {law.name}, at whatever scale",
        log_chance=log_chance + math.log(2),
        level=level,
    )


def tails(noise: NoiseSummary, level: float) -> Check:
    """Compares the largest values of each array and of all with those of as many draws."""
    counts = with_noise(noise)
    counts = np.append(counts, counts.sum())
    amounts = np.append(noise.amounts, noise.amounts.sum())
    largest = np.append(noise.largest, noise.largest.max())
    scales = np.clip(
        noise.law.scales(amounts, np.maximum(counts, 1)), 1e-9, 1.0
    )
    beyond = noise.law.tail_probability(
        largest / scales + ROUNDING + on_a_grid(noise).step
    )
    log_inside = counts * np.log1p(-np.minimum(beyond, 1 - 1e-16))
    log_chances = np.where(beyond < _FAR, 0.0, log_inside)
    worst = int(log_chances.argmin())
    return judged(
        "tails",
        claim="the largest values are as large as those of so many draws",
        measured=(
            f"none of {counts[worst]:,} values is beyond {largest[worst]:.3g} standard"
            " deviations"
        ),
        why=(
            "Truncated noise cannot explain every output: what it cannot explain shows who"
            " took part"
        ),
        log_chance=float(log_chances[worst]) + math.log(len(counts)),
        level=level,
    )


def more_than(count: int, expected: float) -> float:
    """Logarithm of an upper bound of the probability of a count this large (Chernoff)."""
    if count <= expected:
        return 0.0
    return count - expected - count * math.log(count / expected)


def grid(noise: NoiseSummary, level: float) -> Check:
    """Compares the number of equal values with that on a floating-point grid (Chernoff)."""
    equal = on_a_grid(noise)
    claim = "the noise has a fine grid"
    log_chance = more_than(equal.count, equal.expected)
    if equal.step and log_chance < math.log(level):
        measured = (
            f"all values are multiples of {equal.step:.3g} standard deviations"
        )
        why = (
            "That is right where all that it is added to are multiples as well, or where what is"
            " released is rounded after noise is added, and leaks it anywhere else"
        )
        return Check("grid", "unknown", claim, measured, why)
    return judged(
        "grid",
        claim=claim,
        measured=(
            f"{equal.count:,} values of the sketch repeat another one; on a fine grid, up to"
            f" {equal.expected:.3g}"
        ),
        why=(
            "On a coarse grid the digits of what is released tell what was added, whatever the"
            " noise (Mironov 2012)"
        ),
        log_chance=log_chance,
        level=level,
    )
