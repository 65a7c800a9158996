"""Checks of the noise's distribution: its shape, its largest values, and its grid."""

import math

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import Floats
from fl_epe.noise.check import Check, judged
from fl_epe.noise.laws import ROUNDING
from fl_epe.noise.seen import Seen

_FINEST = 2.0**-12  # probability of one value on the finest grid that is found
_FAR = 1e-6  # probability of values that no generator needs to reach
_VALUES = 100_000  # that a shape is judged by
_TIES = 1 << 16  # and a grid
_OTHER = 1e-6  # chance from which on an array or round has another scale than claimed


def with_noise(seen: Seen) -> NDArray[np.int64]:
    """Values of each array in all rounds, ``(A,)``; 0 for an array that never had any noise."""
    return np.where(seen.largest > 0, seen.layout.sizes * seen.rounds, 0)


def repeated(seen: Seen) -> tuple[int, float, float]:
    """Values of an array and round that are equal to another one of these.

    Returns:
        Their number; that expected on the finest grid that a check finds, at most; and the
        probability of the likeliest value, at most, if the noise is on a grid.
    """
    rows = seen.rows("sketch")
    rows = np.round(rows[: max(_TIES // max(rows.shape[1], 1), 1)], 5)
    count, pairs = 0, 0.0
    for group in range(len(seen.layout.sizes)):
        values = np.sort(rows[:, seen.layout.groups == group], axis=1)
        count += int(np.sum((np.diff(values, axis=1) == 0) & (values[:, 1:] != 0)))
        pairs += len(values) * values.shape[1] ** 2 / 2
    return count, _FINEST * pairs, min(max(_FINEST, 2.5 * count / max(pairs, 1.0)), 0.5)


def evened(seen: Seen) -> Floats:
    """Values of the sketch; where a round's or array's scale is another, over that scale."""
    rows, groups = seen.rows("sketch"), seen.layout.groups
    rows = _over_scale(seen, rows[np.any(rows != 0, axis=1)])
    columns = [_over_scale(seen, rows[:, groups == g].reshape(1, -1)) for g in np.unique(groups)]
    values = np.concatenate([each.ravel() for each in columns if np.any(each)] or [np.empty(0)])
    return np.sort(values[:: max(len(values) // _VALUES, 1)])


def _over_scale(seen: Seen, rows: Floats) -> Floats:
    scales = seen.law.scales(seen.law.amounts(rows).sum(axis=1), rows.shape[1])
    below = seen.law.below(rows.shape[1], scales)
    other = (np.minimum(below, 1 - below) < _OTHER) & (scales > 0)
    return np.asarray(rows / np.where(other, scales, 1.0)[:, None])


def distribution(seen: Seen, level: float) -> Check:
    """The largest difference of the distribution functions (Massart 1990: exact for any n)."""
    values, law = evened(seen), seen.law
    count = len(values)
    steps, claimed = np.arange(count + 1) / max(count, 1), law.cdf(values)
    most = max(*(np.abs(steps[i : count + i] - claimed).max(initial=0.0) for i in (0, 1)), 0.0)
    texts = (
        f"the noise is {law.name}",
        f"the distribution function of {count:,} values is up to {most:.2g} off",
        f"ε is accounted for noise that is {law.name}, at whatever scale",
    )
    return judged("shape", math.log(2) - 2 * count * most**2, level, texts)


def tails(seen: Seen, level: float) -> Check:
    """The largest values of an array and of all, against what so many values reach."""
    counts, amounts = with_noise(seen), seen.amounts
    counts, amounts = np.append(counts, counts.sum()), np.append(amounts, amounts.sum())
    largest = np.append(seen.largest, seen.largest.max())
    scales = np.clip(seen.law.scales(amounts, np.maximum(counts, 1)), 1e-9, 1.0)
    beyond = seen.law.beyond(largest / scales + ROUNDING)
    chances = np.where(beyond < _FAR, 0.0, counts * np.log1p(-np.minimum(beyond, 1 - 1e-16)))
    worst = int(chances.argmin())
    texts = (
        "the largest values are as large as those of so many draws",
        f"none of {counts[worst]:,} values is beyond {largest[worst]:.3g} standard deviations",
        "Truncated noise cannot explain every output: what it cannot explain shows who took part",
    )
    return judged("tails", float(chances[worst]) + math.log(len(counts)), level, texts)


def grid(seen: Seen, level: float) -> Check:
    """Values that are equal, against those on a grid of floating-point numbers (Chernoff)."""
    count, expected, _ = repeated(seen)
    log_chance = 0.0
    if count > expected:
        log_chance = count - expected - count * math.log(count / expected)
    texts = (
        "the noise has a fine grid",
        f"{count:,} values of the sketch repeat another one; on a fine grid, up to {expected:.3g}",
        "On a coarse grid the digits of what is released tell what was added, whatever the noise"
        " (Mironov 2012)",
    )
    return judged("grid", log_chance, level, texts)
