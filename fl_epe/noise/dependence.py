"""Checks that noise is independent between arrays and rounds, and has no guessable seed.

The signs of independent noise of a symmetric distribution are fair coins, so that sums of their
products obey Hoeffding's inequality. The absolute values of two independent values of standard
deviation 1 are within m of each other with a probability of at most ``√2·m``: the densities of the
difference and of the sum of the two values are at most ``1/√8`` for Laplace noise, and less for
Gaussian noise.
"""

import math
import sys
from typing import Any, NamedTuple

import numpy as np
import scipy

from fl_epe.checks import Floats, Floats32
from fl_epe.noise.check import Check, check_of_p_value
from fl_epe.noise.laws import PREFIX, known_first_values
from fl_epe.noise.seen import EQUAL_LENGTH, HEAD_LENGTH, NoiseSummary
from fl_epe.noise.shape import grid_of, log_count_tail

# The largest probability that two absolute values are within m of each other, divided by m: for two
# random values, and for a random value and a known one. The density of a random absolute value is
# at most √2.
_CLOSE_PAIR = math.sqrt(2)
_CLOSE_TO_KNOWN = 2 * math.sqrt(2)
# Equal values may differ by this much because of rounding, in standard deviations.
_ROUNDING_OF_EQUAL = 0.01
# The largest difference between values that are tested as equal, in standard deviations.
_MAX_DIFFERENCE = 0.05
# The relative difference of values that are equal up to rounding to float32.
_FLOAT32_ROUNDING = 2e-7
# Pairs of rounds are tested together for each lag up to this one.
_MAX_LAG = 16
_DIFFERENCE = "The difference of the two {}s has less noise, or none if their noise is equal"


class _Dependence(NamedTuple):
    """Rounds whose noise may be dependent.

    The `min` of several is the least likely one, as the p-value is the first field.

    Attributes:
        log_p_value: logarithm of the p-value.
        correlation: the estimated correlation of the noise.
        text: what was measured.
    """

    log_p_value: float
    correlation: float
    text: str


def between_arrays(noise: NoiseSummary, level: float) -> Check:
    """Compares the first values of each pair of arrays, in all rounds together."""
    layout = noise.layout
    name = "independence of arrays"
    claim = "the noise of each array is independent"
    sizes = layout.sizes[layout.compared]
    if len(sizes) < 2:
        return Check(name, "passed", claim, "there is one array")
    has_noise = noise.largest[layout.compared] > 0
    pairs = np.triu(has_noise[:, None] & has_noise, 1)
    if not pairs.any():
        return Check(name, "passed", claim, "no two arrays have noise")
    common = np.minimum(sizes[:, None], sizes)
    scales = _scales(noise)[layout.compared]
    differences = noise.apart / np.minimum(scales[:, None], scales)
    log_equal = _log_near(
        np.maximum(differences, grid_of(noise).step),
        np.minimum(common, EQUAL_LENGTH) * noise.rounds,
        _CLOSE_PAIR,
    )
    counts = np.minimum(common, HEAD_LENGTH) * noise.rounds
    log_p_values = np.minimum(log_equal, _log_agreeing(noise.agree, counts))
    log_p_values = np.where(pairs, log_p_values, np.inf)
    # Two tests, of equality and of correlation, for each pair of arrays.
    log_tests = math.log(len(sizes) * (len(sizes) - 1))
    worst = np.unravel_index(int(log_p_values.argmin()), log_p_values.shape)
    names = " and ".join(layout.names[layout.compared[i]] for i in worst)
    is_significant = log_equal + log_tests < math.log(level)
    is_equal = pairs & (differences <= _MAX_DIFFERENCE) & is_significant
    if is_equal.any():
        correlation = 1.0
        measured = f"equal in {is_equal.sum()} pairs of arrays, such as {names}"
    else:
        correlation = _correlation(noise.agree[worst] / counts[worst])
        measured = f"least likely correlation: {correlation:.2g}, of {names}"
    return check_of_p_value(
        name,
        claim=claim,
        measured=measured,
        why=_DIFFERENCE.format("array"),
        log_p_value=float(log_p_values.min()) + log_tests,
        level=level,
        fraction=_fraction_in_difference(correlation),
    )


def between_rounds(noise: NoiseSummary, level: float) -> Check:
    """Compares each pair of rounds, and all pairs with the same lag together."""
    name = "independence of rounds"
    claim = "the noise of each round is independent"
    if noise.rounds < 2:
        return Check(name, "passed", claim, "there is one round")
    signs = np.sign(noise.rows("sketch")).astype(np.float32)
    marks = np.abs(noise.rows("marks")) / _scales(noise).min()
    dependences = [
        _equal_rounds(marks, grid_of(noise).step),
        _correlated_pair(signs),
        _correlated_lag(signs, noise),
    ]
    # An upper bound of the number of tests: pairs of rounds for either comparison, and lags of each
    # array and of all arrays.
    num_lags = _MAX_LAG * (len(noise.layout.sizes) + 1)
    log_tests = math.log(noise.rounds**2 + len(signs) ** 2 + num_lags)
    significant = [
        dependence
        for dependence in dependences
        if dependence.log_p_value + log_tests < math.log(level)
    ]
    # Among dependences that fail, equal rounds are more informative than correlated ones.
    worst = significant[0] if significant else min(dependences)
    return check_of_p_value(
        name,
        claim=claim,
        measured=worst.text,
        why=_DIFFERENCE.format("round"),
        log_p_value=worst.log_p_value + log_tests,
        level=level,
        fraction=_fraction_in_difference(worst.correlation),
    )


def known_seed(noise: NoiseSummary, level: float) -> Check:
    """Compares first values of arrays with those of generators with small or popular seeds."""
    texts, tree = known_first_values(noise.law, "torch" in sys.modules)
    heads = np.abs(noise.rows("heads").reshape(-1, PREFIX))
    heads = heads[np.isfinite(heads).all(axis=1)]
    log_p_value = 0.0
    measured = f"none of {len(texts):,}"
    reproduce = ""
    if len(heads):
        distances, nearest = tree.query(
            heads, p=np.inf, distance_upper_bound=_MAX_DIFFERENCE
        )
        distance = max(distances.min(), grid_of(noise).step)
        log_p_value = float(_log_near(distance, PREFIX, _CLOSE_TO_KNOWN))
        index = int(nearest[distances.argmin()])
        # If no prefix is near, the tree returns the index after the last one.
        if index < len(texts):
            reproduce = texts[index]
            measured = f"first values of an array are those of {reproduce}"
    return check_of_p_value(
        "seed",
        claim="the noise is from no seed that can be guessed",
        measured=measured,
        why="An adversary who tries seeds can subtract the noise: ε is infinite",
        log_p_value=log_p_value + math.log(max(len(heads), 1) * len(texts)),
        level=level,
        fraction=0.0,
        reproduce=reproduce,
    )


def used_again(noise: NoiseSummary, level: float) -> Check:
    """Looks for absolute values that repeat, at any entries and with any signs.

    For both distributions, the probability that an absolute value is within a relative distance
    r of another one is at most r. So at most r·n²/2 of n values are expected to repeat, and their
    number obeys Chernoff's inequality.
    """
    name = "values used once"
    claim = "no value of the noise is used again"
    if grid_of(noise).repeats:
        measured = "not tested, as values on a grid repeat"
        return Check(name, "passed", claim, measured)
    values = np.sort(np.abs(noise.rows("sketch")), axis=None)
    values = values[values > 0]
    repeated = int(np.sum(np.diff(values) <= _FLOAT32_ROUNDING * values[1:]))
    expected = _FLOAT32_ROUNDING * len(values) ** 2 / 2
    return check_of_p_value(
        name,
        claim=claim,
        measured=(
            f"{repeated:,} of {len(values):,} absolute values are used again; at most"
            f" {expected:,.0f} are expected"
        ),
        why="An adversary can match values that are used twice, and subtract them",
        log_p_value=log_count_tail(repeated, expected),
        level=level,
        fraction=0.0,
    )


def _scales(noise: NoiseSummary) -> Floats:
    """The scale of each array's noise, at most 1, by which distances of values are divided.

    Values of smaller noise are closer to each other.
    """
    scales = noise.law.scales(noise.amounts, noise.layout.sizes * noise.rounds)
    return np.where(scales > 0, np.minimum(scales, 1.0), 1.0)


def _log_near(distances: Any, counts: Any, factor: float) -> Floats:
    """Logarithm of a bound on the probability that this many pairs of values are this close.

    Args:
        distances: the largest distance of a pair.
        counts: the number of pairs.
        factor: the largest probability that a pair is this close, divided by its distance.
    """
    distances = np.maximum(distances, _ROUNDING_OF_EQUAL)
    probabilities = np.minimum(factor * distances, 1.0)
    return np.asarray(counts * np.log(probabilities))


def _log_agreeing(sums: Any, counts: Any) -> Floats:
    """Logarithm of a bound on the probability of sums of signs this far from 0 (Hoeffding)."""
    return np.asarray(
        math.log(2) - np.square(sums) / (2 * np.maximum(counts, 1))
    )


def _correlation(sign_correlation: float) -> float:
    """The correlation of Gaussian noise, from the correlation of its signs."""
    return math.sin(math.pi / 2 * sign_correlation)


def _fraction_in_difference(correlation: float) -> float:
    """The fraction of the noise that remains in the difference of two correlated noises."""
    return math.sqrt(max(1 - abs(correlation), 0.0))


def _equal_rounds(marks: Floats, step: float) -> _Dependence:
    """The two rounds whose "marks" are closest to each other."""
    rounds = np.flatnonzero(marks.any(axis=1))
    if len(rounds) < 2:
        return _Dependence(0.0, 0.0, "no two rounds have noise")
    tree = scipy.spatial.KDTree(marks[rounds])
    # The nearest neighbour of a round is the round itself, or one with equal entries.
    distances, nearest = tree.query(
        marks[rounds], k=2, p=np.inf, distance_upper_bound=_MAX_DIFFERENCE
    )
    first = int(distances[:, 1].argmin())
    distance = distances[first, 1]
    if not math.isfinite(distance):
        return _Dependence(0.0, 0.0, "no two rounds have the same noise")
    # With three or more equal rounds, both nearest neighbours may differ from the round itself. Two
    # of the three are reported.
    equal = {first, *nearest[first].tolist()}
    pair = sorted(rounds[list(equal)])[:2]
    log_p_value = float(
        _log_near(max(distance, step), marks.shape[1], _CLOSE_PAIR)
    )
    text = f"rounds {pair[0] + 1} and {pair[1] + 1} have the same noise"
    return _Dependence(log_p_value, 1.0, text)


def _correlated_pair(signs: Floats32) -> _Dependence:
    """The two rounds whose noise is the most correlated."""
    width = signs.shape[1]
    sums = np.triu(signs @ signs.T, 1)
    first, second = np.unravel_index(int(np.abs(sums).argmax()), sums.shape)
    largest = sums[first, second]
    correlation = _correlation(float(largest) / width)
    text = (
        f"least likely correlation: {correlation:.2g}, of rounds {first + 1} and"
        f" {second + 1}"
    )
    return _Dependence(float(_log_agreeing(largest, width)), correlation, text)


def _correlated_lag(signs: Floats32, noise: NoiseSummary) -> _Dependence:
    """The lag between rounds, and the array, for which the correlation is least likely."""
    layout = noise.layout
    arrays = len(layout.sizes)
    dependences = []
    for lag in range(1, min(len(signs) - 1, _MAX_LAG) + 1):
        products = np.einsum("tk,tk->k", signs[:-lag], signs[lag:])
        sums = np.bincount(layout.groups, products, arrays)
        sums = np.append(sums, sums.sum())
        counts = np.bincount(layout.groups, minlength=arrays) * (
            len(signs) - lag
        )
        counts = np.append(counts, counts.sum())
        log_p_values = _log_agreeing(sums, counts)
        worst = int(log_p_values.argmin())
        correlation = _correlation(sums[worst] / counts[worst])
        where = "" if worst == arrays else f" in {layout.names[worst]}"
        text = f"correlation of rounds {lag} apart{where}: {correlation:.2g}"
        dependences.append(
            _Dependence(float(log_p_values[worst]), correlation, text)
        )
    return min(dependences)
