"""Checks of how much noise there is: in all, in each array and round, and in every coordinate.

Each check has an exact or conservative p-value, given here as its logarithm.
"""

import math

import numpy as np
import scipy

from fl_epe.noise.check import Check, judged
from fl_epe.noise.laws import ROUNDING
from fl_epe.noise.seen import Seen
from fl_epe.noise.shape import on_a_grid, with_noise

_HALF = 0.5  # of the noise: ε is twice the claim


def _log(chance: float) -> float:
    return math.log(max(chance, 5e-324))


def scale(seen: Seen, level: float) -> Check:
    """All noise against its claimed standard deviation; only too little of it is a failure."""
    count = int(seen.layout.sizes.sum()) * seen.rounds
    found = float(seen.law.scales(seen.amounts.sum(), count))
    lowest = seen.law.lowest(count, level) - ROUNDING
    measured = f"{found:.3g} times the claim in {count:,} values; from {lowest:.3g} on it passes"
    texts = (
        "the standard deviation is the claimed one",
        measured,
        "Less noise hides less",
    )
    if found >= lowest and lowest <= _HALF:
        why = "So few values do not tell half of the noise from all of it"
        return Check("scale", "unknown", *texts[:2], why)
    chance = _log(float(seen.law.below(count, found + ROUNDING)))
    return judged("scale", chance, level, texts, found)


def scale_of_arrays(seen: Seen, level: float) -> Check:
    """The noise of each array against its claimed standard deviation."""
    counts = np.maximum(with_noise(seen), 1)
    scales = np.where(
        with_noise(seen) > 0, seen.law.scales(seen.amounts, counts), np.inf
    )
    chances = seen.law.below(counts, np.minimum(scales, 1e3) + ROUNDING)
    worst, arrays = int(chances.argmin()), len(counts)
    measured = f"least likely of {arrays}: {scales[worst]:.3g} times it in {_name(seen, worst)}"
    texts = (
        "each array has noise of the claimed size",
        measured,
        "Less noise hides less",
    )
    chance = _log(float(chances[worst])) + math.log(arrays)
    return judged("scale by array", chance, level, texts, float(scales[worst]))


def scale_of_rounds(seen: Seen, level: float) -> Check:
    """The noise of each array in each round against its claimed standard deviation."""
    chance, number, worst, found = seen.worst.tolist()
    tests = seen.rounds * (len(seen.layout.sizes) + 1)
    measured = f"least likely: {found:.3g} times it in round {number + 1:g}, {_name(seen, worst)}"
    texts = (
        "each round has noise of the claimed size",
        measured,
        "Less noise hides less",
    )
    return judged("scale by round", _log(chance) + math.log(tests), level, texts, found)


def arrays_without_noise(seen: Seen, level: float) -> Check:
    """Arrays whose noise is 0 in all rounds."""
    silent = np.flatnonzero(with_noise(seen) == 0)
    counts = np.maximum(seen.layout.sizes * seen.rounds, 1)
    chances = np.append(seen.law.below(counts[silent], ROUNDING), 1.0)
    names = ", ".join(_name(seen, number) for number in silent[:3])
    more = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
    measured = (
        f"{len(silent)} of {len(counts)} without any: {names}{more}"
        if names
        else "all do"
    )
    why = "These arrays are released as they are: ε is infinite"
    chance = _log(float(chances.min())) + math.log(len(counts))
    texts = "all arrays have noise", measured, why
    return judged("arrays without noise", chance, level, texts, 0.0)


def still_coordinates(seen: Seen, level: float) -> Check:
    """Coordinates whose noise is 0 in all rounds, in arrays that have some."""
    counts = with_noise(seen)
    arrays = np.searchsorted(seen.layout.starts, seen.still, side="right") - 1
    still, entries = int(np.sum(counts[arrays] > 0)), int(counts.sum()) // seen.rounds
    rounded = (
        on_a_grid(seen).largest_mass ** seen.rounds
    )  # of one coordinate, in all rounds
    chance = float(scipy.special.bdtrc(still - 1, entries, rounded)) if still else 1.0
    texts = (
        "all coordinates have noise",
        f"{still:,} of {entries:,} without any in {seen.rounds} rounds",
        "These coordinates are released as they are: ε is infinite",
    )
    return judged("coordinates without noise", _log(chance), level, texts, 0.0)


def _name(seen: Seen, number: float) -> str:
    names = seen.layout.names
    return names[int(number)] if number < len(names) else "all arrays"
