"""Checks of the noise's distribution: its shape, its largest values, and its grid."""

import dataclasses
import math

import numpy as np
import scipy

from fl_epe.checks import Floats, Integers
from fl_epe.noise.check import GRID, Check, check_of_p_value
from fl_epe.noise.laws import ROUNDING
from fl_epe.noise.seen import NoiseSummary

# Probability that two values are equal on the finest grid that the check detects, that of float16.
_FINEST_PROBABILITY = 2.0**-13.5
# Largest probability that two values on a grid are equal, divided by its step (Laplace noise).
_MAX_TIES_PER_STEP = 0.36
# Values are not multiples of one step if more than this ratio of the expected pairs are equal.
_MAX_RATIO_OF_TIES = 3.0
# Smallest distance of two neighbours on a grid, in standard deviations.
_MIN_STEP = 1e-8
# Largest distance of a value from a multiple of the step, in steps, which is due to rounding.
_MAX_ROUNDING_OF_STEP = 0.01
# Number of decimals to which values are rounded before they are compared, and before the step of
# their grid is computed.
_DECIMALS = 5
_DECIMALS_OF_STEP = 9
# Number of values of a round among which equal pairs are counted.
_BLOCK_SIZE = 2048
# Values beyond this number of standard deviations are counted.
_TAIL = 3.0
# A generator need not draw values that are less likely than this.
_MIN_TAIL_PROBABILITY = 1e-6
# Replaces the scale of an array without noise, by which values are divided.
_MIN_SCALE = 1e-9
# A larger probability p counts as this one, so that ln(1 − p) is finite.
_ALMOST_ONE = 1 - 1e-16
# Largest numbers of values in the checks of the shape and of the grid.
_MAX_VALUES = 1 << 18
_MAX_VALUES_ON_GRID = 1 << 16
# Below this probability, the scale of an array or round is not the claimed one.
_UNLIKELY_SCALE = 1e-6
# Upper bound of the likeliest value's probability divided by that of a tie; 2 for Laplace noise.
_MAX_MASS_PER_TIE = 2.5
# Largest probability of one value, whatever the grid.
_LARGEST_MASS = 0.5


def noisy_counts(noise: NoiseSummary) -> Integers:
    """Number of values of each array in all rounds, ``(A,)``; 0 for an array without noise."""
    return np.where(noise.largest > 0, noise.layout.sizes * noise.rounds, 0)


@dataclasses.dataclass(frozen=True)
class Grid:
    """Values that equal another value of the same array and round, and the grid they lie on.

    Attributes:
        count: number of values that equal another one.
        expected: the expected ``count`` on the finest grid that the check detects.
        largest_mass: upper bound of the probability of the likeliest value.
        step: largest step of an array's grid, in standard deviations, if the values of each
            array are multiples of a step and not much more often equal than such multiples are;
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


def grid_of(noise: NoiseSummary) -> Grid:
    """The grid on which the values of the sketch lie."""
    rows = noise.rows("sketch")
    rows = rows[: max(_MAX_VALUES_ON_GRID // rows.shape[1], 1)]
    count = 0
    pairs = 0.0
    expected_on_steps = 0.0
    steps = []
    for array in range(len(noise.layout.sizes)):
        columns = rows[:, noise.layout.groups == array]
        step = _step(columns)
        steps.append(step)
        blocks = columns.shape[1] // _BLOCK_SIZE + 1
        rounded = np.round(columns, _DECIMALS)
        for block in np.array_split(rounded, blocks, axis=1):
            values = np.sort(block, axis=1)
            equal = (np.diff(values, axis=1) == 0) & (values[:, 1:] != 0)
            count += int(np.sum(equal))
            pairs_of_block = len(values) * values.shape[1] ** 2 / 2
            pairs += pairs_of_block
            expected_on_steps += pairs_of_block * _MAX_TIES_PER_STEP * step
    largest_step = 0.0
    if min(steps) > 0 and count < _MAX_RATIO_OF_TIES * expected_on_steps:
        largest_step = max(steps)
    mass = max(
        _FINEST_PROBABILITY,
        _MAX_MASS_PER_TIE * count / pairs,
        2 * _MAX_TIES_PER_STEP * largest_step,
    )
    largest_mass = min(mass, _LARGEST_MASS)
    return Grid(count, _FINEST_PROBABILITY * pairs, largest_mass, largest_step)


def _step(values: Floats) -> float:
    """The step of which all values are multiples; 0 if there is none."""
    magnitudes = np.unique(np.round(np.abs(values), _DECIMALS_OF_STEP))
    distances = np.diff(magnitudes, prepend=0.0)
    step = float(distances[distances > _MIN_STEP].min(initial=np.inf))
    errors = np.abs(values / step - np.rint(values / step))
    if errors.max(initial=0.0) < _MAX_ROUNDING_OF_STEP and step < np.inf:
        return step
    return 0.0


def _scaled_values(noise: NoiseSummary) -> Floats:
    """Sorted values of the sketch, without the scales of rounds and arrays.

    If the scale of a round is unlikely for the claimed standard deviation, the round's values are
    divided by it. The same is then done for each array.
    """
    groups = noise.layout.groups
    rows = noise.rows("sketch")
    rows = _over_scale(noise, rows[np.any(rows != 0, axis=1)])
    values = [np.empty(0)]
    for group in np.unique(groups):
        column = _over_scale(noise, rows[:, groups == group].reshape(1, -1))
        if np.any(column):
            values.append(column.ravel())
    flat = np.concatenate(values)
    # Every k-th value, if there are too many.
    return np.sort(flat[:: max(len(flat) // _MAX_VALUES, 1)])


def _over_scale(noise: NoiseSummary, rows: Floats) -> Floats:
    """Each row, divided by its scale if the scale is unlikely."""
    law = noise.law
    scales = law.scales(law.moment_terms(rows).sum(axis=1), rows.shape[1])
    below = law.scale_cdf(rows.shape[1], scales)
    unlikely = np.minimum(below, 1 - below) < _UNLIKELY_SCALE
    units = np.where(unlikely & (scales > 0), scales, 1.0)
    return np.asarray(rows / units[:, None])


def distribution(noise: NoiseSummary, level: float) -> Check:
    """Tests the largest difference of the distribution functions (Massart 1990, for any count).

    An exact binomial test detects too few values beyond three standard deviations.
    """
    law = noise.law
    values = _scaled_values(noise)
    step = grid_of(noise).step
    count = len(values)
    steps = np.arange(count + 1) / max(count, 1)
    above = steps[1:] - law.cdf(values + step / 2)
    below = law.cdf(values - step / 2) - steps[:-1]
    difference = max(
        float(above.max(initial=0.0)), float(below.max(initial=0.0))
    )
    log_p_value = math.log(2) - 2 * count * difference**2
    measured = f"the distribution function of {count:,} values is up to {difference:.2g} off"
    beyond = int(np.sum(np.abs(values) > _TAIL))
    share = float(law.tail_probability(np.array(_TAIL + step / 2 + ROUNDING)))
    log_p_value_of_tail = float(scipy.stats.binom.logcdf(beyond, count, share))
    if log_p_value_of_tail < log_p_value:
        log_p_value = log_p_value_of_tail
        measured = (
            f"{beyond:,} of {count:,} values, not {count * share:,.0f}, are beyond {_TAIL:g}"
            " standard deviations"
        )
    return check_of_p_value(
        "shape",
        claim=f"the noise is {law.name}",
        measured=measured,
        why=f"ε is computed for noise that is {law.name}",
        log_p_value=log_p_value + math.log(2),  # there are two tests
        level=level,
    )


def tails(noise: NoiseSummary, level: float) -> Check:
    """Compares the largest values of each array, and of all, with those of as many draws."""
    counts = noisy_counts(noise)
    counts = np.append(counts, counts.sum())
    amounts = np.append(noise.amounts, noise.amounts.sum())
    largest = np.append(noise.largest, noise.largest.max())
    scales = np.clip(
        noise.law.scales(amounts, np.maximum(counts, 1)), _MIN_SCALE, 1.0
    )
    beyond = noise.law.tail_probability(
        largest / scales + ROUNDING + grid_of(noise).step
    )
    log_inside = counts * np.log1p(-np.minimum(beyond, _ALMOST_ONE))
    log_p_values = np.where(beyond < _MIN_TAIL_PROBABILITY, 0.0, log_inside)
    worst = int(log_p_values.argmin())
    return check_of_p_value(
        "tails",
        claim="the largest values are as large as those of as many draws",
        measured=(
            f"none of {counts[worst]:,} values is beyond {largest[worst]:.3g} standard"
            " deviations"
        ),
        why=(
            "Truncated noise cannot explain every release, and a release that it cannot explain"
            " shows who took part"
        ),
        log_p_value=float(log_p_values[worst]) + math.log(len(counts)),
        level=level,
    )


def log_count_tail(count: int, expected: float) -> float:
    """Logarithm of Chernoff's upper bound on the probability of a count at least this large."""
    if count <= expected:
        return 0.0
    return count - expected - count * math.log(count / expected)


def grid(noise: NoiseSummary, level: float) -> Check:
    """Compares the number of equal values with that on a floating-point grid (Chernoff)."""
    equal = grid_of(noise)
    claim = "the noise has a fine grid"
    log_p_value = log_count_tail(equal.count, equal.expected)
    if equal.step and log_p_value < math.log(level):
        measured = (
            f"all values are multiples of {equal.step:.3g} standard deviations"
        )
        why = (
            "Noise on multiples of one number is right if the values to which it is added are such"
            " multiples as well, or if the release is rounded after noise is added; otherwise it"
            " leaks them"
        )
        return Check(GRID, "unknown", claim, measured, why)
    return check_of_p_value(
        GRID,
        claim=claim,
        measured=(
            f"{equal.count:,} values of the sketch repeat another one; up to"
            f" {equal.expected:.3g} are expected on a fine grid"
        ),
        why=(
            "On a coarse grid the last digits of a release depend on the values to which noise was"
            " added (Mironov 2012)"
        ),
        log_p_value=log_p_value,
        level=level,
    )
