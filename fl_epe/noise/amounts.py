"""Checks of the amount of noise: in total, in each array and round, and in every coordinate.

Each check has an exact or conservative p-value, which is passed on as its logarithm.
"""

import math

import numpy as np
import scipy

from fl_epe.noise.check import Check, judged
from fl_epe.noise.laws import ROUNDING
from fl_epe.noise.seen import NoiseSummary
from fl_epe.noise.shape import on_a_grid, with_noise

# With half of the claimed noise, ε is twice the claim.
_HALF = 0.5
# Replaces an infinite scale, for which no probability can be computed.
_LARGEST_SCALE = 1e3
# The smallest positive float: the logarithm of 0 is not defined.
_SMALLEST_CHANCE = 5e-324
_LESS_NOISE = "Less noise hides less"


def _log(chance: float) -> float:
    return math.log(max(chance, _SMALLEST_CHANCE))


def scale(noise: NoiseSummary, level: float) -> Check:
    """Compares all noise with its claimed standard deviation; only too little noise fails."""
    count = int(noise.layout.sizes.sum()) * noise.rounds
    estimate = float(noise.law.scales(noise.amounts.sum(), count))
    lowest = noise.law.scale_quantile(count, level) - ROUNDING
    claim = "the standard deviation is the claimed one"
    measured = (
        f"{estimate:.3g} times the claim in {count:,} values; from {lowest:.3g} on it"
        " passes"
    )
    if estimate >= lowest and lowest <= _HALF:
        why = "So few values do not tell half of the noise from all of it"
        return Check("scale", "unknown", claim, measured, why)
    chance = float(noise.law.scale_cdf(count, estimate + ROUNDING))
    return judged(
        "scale",
        claim=claim,
        measured=measured,
        why=_LESS_NOISE,
        log_chance=_log(chance),
        level=level,
        part=estimate,
    )


def scale_of_arrays(noise: NoiseSummary, level: float) -> Check:
    """Compares the noise of each array with its claimed standard deviation."""
    counts = with_noise(noise)
    tested = np.maximum(counts, 1)
    scales = np.where(
        counts > 0, noise.law.scales(noise.amounts, tested), np.inf
    )
    chances = noise.law.scale_cdf(
        tested, np.minimum(scales, _LARGEST_SCALE) + ROUNDING
    )
    worst = int(chances.argmin())
    arrays = len(counts)
    return judged(
        "scale by array",
        claim="each array has noise of the claimed size",
        measured=(
            f"least likely of {arrays}: {scales[worst]:.3g} times it in"
            f" {_name(noise, worst)}"
        ),
        why=_LESS_NOISE,
        log_chance=_log(float(chances[worst])) + math.log(arrays),
        level=level,
        part=float(scales[worst]),
    )


def scale_of_rounds(noise: NoiseSummary, level: float) -> Check:
    """Compares the noise of each array in each round with its claimed standard deviation."""
    worst = noise.worst
    tests = noise.rounds * (len(noise.layout.sizes) + 1)
    return judged(
        "scale by round",
        claim="each round has noise of the claimed size",
        measured=(
            f"least likely: {worst.scale:.3g} times it in round {worst.round + 1:g},"
            f" {_name(noise, worst.array)}"
        ),
        why=_LESS_NOISE,
        log_chance=_log(worst.chance) + math.log(tests),
        level=level,
        part=worst.scale,
    )


def arrays_without_noise(noise: NoiseSummary, level: float) -> Check:
    """Looks for arrays whose noise is 0 in all rounds."""
    silent = np.flatnonzero(with_noise(noise) == 0)
    counts = np.maximum(noise.layout.sizes * noise.rounds, 1)
    chances = np.append(noise.law.scale_cdf(counts[silent], ROUNDING), 1.0)
    measured = "all do"
    if len(silent):
        names = ", ".join(_name(noise, number) for number in silent[:3])
        further = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
        measured = (
            f"{len(silent)} of {len(counts)} without any: {names}{further}"
        )
    return judged(
        "arrays without noise",
        claim="all arrays have noise",
        measured=measured,
        why="These arrays are released as they are: ε is infinite",
        log_chance=_log(float(chances.min())) + math.log(len(counts)),
        level=level,
        part=0.0,
    )


def still_coordinates(noise: NoiseSummary, level: float) -> Check:
    """Looks for coordinates whose noise is 0 in all rounds, in arrays that have noise."""
    counts = with_noise(noise)
    arrays = np.searchsorted(noise.layout.starts, noise.still, side="right") - 1
    still = int(np.sum(counts[arrays] > 0))
    entries = int(counts.sum()) // noise.rounds
    chance = 1.0
    if still:
        # The chance that rounding to a grid makes one coordinate 0 in all rounds.
        rounded = on_a_grid(noise).largest_mass ** noise.rounds
        chance = float(scipy.special.bdtrc(still - 1, entries, rounded))
    return judged(
        "coordinates without noise",
        claim="all coordinates have noise",
        measured=f"{still:,} of {entries:,} without any in {noise.rounds} rounds",
        why="These coordinates are released as they are: ε is infinite",
        log_chance=_log(chance),
        level=level,
        part=0.0,
    )


def _name(noise: NoiseSummary, number: int) -> str:
    names = noise.layout.names
    if number < len(names):
        return names[number]
    return "all arrays"
