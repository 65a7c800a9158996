"""Checks that noise is fresh: in each array, in each round, and from no seed that can be guessed.

Signs of independent noise of any symmetric law are fair coins, so that sums of their products obey
Hoeffding's inequality. And two sizes of independent values of standard deviation 1 are by chance
within m of each other with a probability of at most ``√2·m``: the density of their difference is
at most ``1/√8`` for Laplace noise, and less for Gaussian.
"""

import math
import sys
from typing import Any

import numpy as np
import scipy

from fl_epe.checks import Floats, Floats32
from fl_epe.noise.check import Check, judged
from fl_epe.noise.laws import PREFIX, seeded
from fl_epe.noise.seen import EQUAL, HEAD, Seen
from fl_epe.noise.shape import more_than, on_a_grid

_SAME = 0.01  # difference of equal noise: what rounding to a grid may make
_NEAR = 0.05  # largest difference that is looked for
_ALIKE = 2e-7  # relative difference of values that are the same but for float32
_LAGS = 16  # rounds apart, for which all pairs are taken together
_LESS = (
    "Whoever subtracts one {} from the other has less noise, or none where it is equal"
)


def between_arrays(seen: Seen, level: float) -> Check:
    """Each pair of arrays: their first values, in all rounds together."""
    layout, name = seen.layout, "independence of arrays"
    sizes = layout.sizes[layout.compared]
    claim = "each array has noise of its own"
    if len(sizes) < 2:
        return Check(name, "passed", claim, "there is one array")
    common, here = np.minimum(sizes[:, None], sizes), seen.largest[layout.compared] > 0
    pairs = np.triu(here[:, None] & here, 1)
    if not pairs.any():
        return Check(name, "passed", claim, "no two arrays have noise")
    counts = np.minimum(common, HEAD) * seen.rounds
    scales = _scales(seen)[layout.compared]
    apart = seen.apart / np.minimum(scales[:, None], scales)
    alike = np.maximum(apart, on_a_grid(seen).step)
    same = _near(alike, np.minimum(common, EQUAL) * seen.rounds, math.sqrt(2))
    tests = math.log(len(sizes) * (len(sizes) - 1))
    chances = np.where(pairs, np.minimum(same, _agreeing(seen.agree, counts)), np.inf)
    worst = np.unravel_index(int(chances.argmin()), chances.shape)
    names = " and ".join(layout.names[layout.compared[i]] for i in worst)
    rho = _correlation(seen.agree[worst] / counts[worst])
    measured = f"least likely correlation: {rho:.2g}, of {names}"
    equal = pairs & (apart <= _NEAR) & (same + tests < math.log(level))
    if equal.any():
        rho, measured = 1.0, f"equal in {equal.sum()} pairs of arrays, such as {names}"
    texts = claim, measured, _LESS.format("array")
    return judged(name, float(chances.min()) + tests, level, texts, _left(rho))


def between_rounds(seen: Seen, level: float) -> Check:
    """All pairs of rounds, and together all pairs of rounds that are as far apart."""
    name, claim = "independence of rounds", "each round has noise of its own"
    if seen.rounds < 2:
        return Check(name, "passed", claim, "there is one round")
    signs = np.sign(seen.rows("sketch")).astype(np.float32)
    step = on_a_grid(seen).step
    found = [
        _twins(np.abs(seen.rows("marks")) / _scales(seen).min(), step),
        _pair(signs),
        _lag(signs, seen),
    ]
    tests = math.log(
        seen.rounds**2 + len(signs) ** 2 + _LAGS * (len(seen.layout.sizes) + 1)
    )
    sure = (one for one in found if one[0] + tests < math.log(level))
    chance, rho, measured = next(sure, min(found))
    texts = claim, measured, _LESS.format("round")
    return judged(name, chance + tests, level, texts, _left(rho))


def seed(seen: Seen, level: float) -> Check:
    """First values of arrays against those of generators with seeds that are small or popular."""
    texts, tree = seeded(seen.law.name.lower(), "torch" in sys.modules)
    heads = np.abs(seen.rows("heads").reshape(-1, PREFIX))
    heads = heads[np.isfinite(heads).all(axis=1)]
    claim, chance, measured, how = (
        "nobody can guess the noise",
        0.0,
        f"none of {len(texts):,}",
        "",
    )
    if len(heads):
        apart, which = tree.query(heads, p=np.inf, distance_upper_bound=_NEAR)
        chance = float(
            _near(max(apart.min(), on_a_grid(seen).step), PREFIX, 2 * math.sqrt(2))
        )
        if (best := int(which[apart.argmin()])) < len(texts):
            how, measured = (
                texts[best],
                f"first values of an array are those of {texts[best]}",
            )
    why = "Whoever tries seeds finds the noise and subtracts it: ε is infinite"
    tests = math.log(max(len(heads), 1) * len(texts))
    return judged("seed", chance + tests, level, (claim, measured, why), 0.0, how)


def copies(seen: Seen, level: float) -> Check:
    """Sizes of values that are used again: in another order, with another sign, or elsewhere.

    For both laws, the chance that a size is within a relative distance of r of another one is at
    most r, so that among n of them up to r·n²/2 are by chance (Chernoff).
    """
    name, claim = "values used once", "no value of the noise is used again"
    sizes = np.sort(np.abs(seen.rows("sketch")), axis=None)
    sizes = sizes[sizes > 0]
    if on_a_grid(seen).repeats:
        return Check(
            name, "passed", claim, "not looked for, as values on a grid repeat"
        )
    again = int(np.sum(np.diff(sizes) <= _ALIKE * sizes[1:]))
    expected = _ALIKE * len(sizes) ** 2 / 2
    measured = f"{again:,} of {len(sizes):,} sizes are used again; by chance up to {expected:,.0f}"
    texts = claim, measured, "Whoever matches values that are used twice subtracts them"
    return judged(name, more_than(again, expected), level, texts, 0.0)


def _scales(seen: Seen) -> Floats:
    """Of the noise of each array, at most 1: less noise is nearer to each other."""
    scales = seen.law.scales(seen.amounts, seen.layout.sizes * seen.rounds)
    return np.where(scales > 0, np.minimum(scales, 1.0), 1.0)


def _near(apart: Any, counts: Any, factor: float) -> Floats:
    """Logarithm of the probability that so many pairs of values are so near each other."""
    return np.asarray(
        counts * np.log(np.minimum(factor * np.maximum(apart, _SAME), 1.0))
    )


def _agreeing(sums: Any, counts: Any) -> Floats:
    """Logarithm of the probability of so large a sum of signs, on either side."""
    return np.asarray(math.log(2) - np.square(sums) / (2 * np.maximum(counts, 1)))


def _correlation(share: float) -> float:
    """Of Gaussian noise, from that of its signs."""
    return math.sin(math.pi / 2 * share)


def _left(rho: float) -> float:
    """Of the noise of a difference of two of this correlation, at least."""
    return math.sqrt(max(1 - abs(rho), 0.0))


def _twins(marks: Floats, step: float) -> tuple[float, float, str]:
    """The two rounds of all whose chosen entries are the nearest."""
    here = np.flatnonzero(marks.any(axis=1))
    if len(here) < 2:
        return 0.0, 0.0, "no two rounds have noise"
    tree = scipy.spatial.KDTree(marks[here])
    apart, other = tree.query(marks[here], k=2, p=np.inf, distance_upper_bound=_NEAR)
    first = int(apart[:, 1].argmin())
    if not math.isfinite(apart[first, 1]):
        return 0.0, 0.0, "no two rounds have the same noise"
    pair = sorted((here[first], *(here[i] for i in other[first] if i != first)))[:2]
    chance = float(_near(max(apart[first, 1], step), marks.shape[1], math.sqrt(2)))
    return chance, 1.0, f"rounds {pair[0] + 1} and {pair[1] + 1} have the same noise"


def _pair(signs: Floats32) -> tuple[float, float, str]:
    sums, width = np.triu(signs @ signs.T, 1), signs.shape[1]
    worst = np.unravel_index(int(np.abs(sums).argmax()), sums.shape)
    rho = _correlation(float(sums[worst]) / width)
    text = f"least likely correlation: {rho:.2g}, of rounds {worst[0] + 1} and {worst[1] + 1}"
    return float(_agreeing(sums[worst], width)), rho, text


def _lag(signs: Floats32, seen: Seen) -> tuple[float, float, str]:
    """The distance of rounds, and array, at which noise is the most correlated."""
    arrays = len(seen.layout.sizes)
    found = []
    for lag in range(1, min(len(signs) - 1, _LAGS) + 1):
        products = np.einsum("tk,tk->k", signs[:-lag], signs[lag:])
        sums = np.bincount(seen.layout.groups, products, arrays)
        counts = np.bincount(seen.layout.groups, minlength=arrays) * (len(signs) - lag)
        sums, counts = np.append(sums, sums.sum()), np.append(counts, counts.sum())
        chances = _agreeing(sums, counts)
        worst = int(chances.argmin())
        rho = _correlation(sums[worst] / counts[worst])
        where = "" if worst == arrays else f" in {seen.layout.names[worst]}"
        text = f"correlation of rounds {lag} apart{where}: {rho:.2g}"
        found.append((float(chances[worst]), rho, text))
    return min(found)
