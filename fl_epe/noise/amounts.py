"""Checks of the amount of noise: in total, in each array and round, and in every coordinate.

Each check has an exact or conservative p-value, which is passed on as its logarithm.
"""

import math

import numpy as np
import scipy

from fl_epe.noise.check import SCALE, Check, check_of_p_value
from fl_epe.noise.laws import ROUNDING
from fl_epe.noise.seen import NoiseSummary
from fl_epe.noise.shape import grid_of, noisy_counts
from fl_epe.wording import counted

# With half of the claimed noise, ε is twice the claim.
_HALF_OF_NOISE = 0.5
# Replaces an infinite scale, for which no probability can be computed.
_MAX_SCALE = 1e3
# The smallest positive float replaces 0, whose logarithm is not defined.
_MIN_P_VALUE = 5e-324
_MAX_LISTED_ARRAYS = 3
_LESS_NOISE = "With less noise than is claimed, ε is larger"


def _log(p_value: float) -> float:
    return math.log(max(p_value, _MIN_P_VALUE))


def scale(noise: NoiseSummary, level: float) -> Check:
    """Compares all noise with its claimed standard deviation; only too little noise fails."""
    count = int(noise.layout.sizes.sum()) * noise.rounds
    estimate = float(noise.law.scales(noise.amounts.sum(), count))
    lowest = noise.law.scale_quantile(count, level) - ROUNDING
    claim = "the standard deviation is the claimed one"
    measured = (
        f"{estimate:.3g} times the claim in {count:,} values; at least {lowest:.3g} times"
        " passes"
    )
    if estimate >= lowest and lowest <= _HALF_OF_NOISE:
        why = "The values are too few to distinguish half of the noise from all of it"
        return Check(SCALE, "unknown", claim, measured, why)
    p_value = float(noise.law.scale_cdf(count, estimate + ROUNDING))
    return check_of_p_value(
        SCALE,
        claim=claim,
        measured=measured,
        why=_LESS_NOISE,
        log_p_value=_log(p_value),
        level=level,
        fraction=estimate,
    )


def scale_of_arrays(noise: NoiseSummary, level: float) -> Check:
    """Compares the noise of each array with its claimed standard deviation."""
    counts = noisy_counts(noise)
    positive_counts = np.maximum(counts, 1)
    # Arrays without any noise pass this check, because `arrays_without_noise` tests them.
    scales = np.where(
        counts > 0, noise.law.scales(noise.amounts, positive_counts), np.inf
    )
    p_values = noise.law.scale_cdf(
        positive_counts, np.minimum(scales, _MAX_SCALE) + ROUNDING
    )
    worst = int(p_values.argmin())
    arrays = len(counts)
    return check_of_p_value(
        "scale by array",
        claim="each array has noise of the claimed size",
        measured=(
            f"{scales[worst]:.3g} times the claim in {_name(noise, worst)}, the least likely of"
            f" {counted(arrays, 'array')}"
        ),
        why=_LESS_NOISE,
        log_p_value=_log(float(p_values[worst])) + math.log(arrays),
        level=level,
        fraction=float(scales[worst]),
    )


def scale_of_rounds(noise: NoiseSummary, level: float) -> Check:
    """Compares the noise of each array in each round with its claimed standard deviation."""
    worst = noise.worst
    # In each round, each array is tested, and all arrays together.
    num_tests = noise.rounds * (len(noise.layout.sizes) + 1)
    return check_of_p_value(
        "scale by round",
        claim="each round has noise of the claimed size",
        measured=(
            f"{worst.scale:.3g} times the claim in round {worst.round + 1:g},"
            f" {_name(noise, worst.array)}, the least likely of all rounds"
        ),
        why=_LESS_NOISE,
        log_p_value=_log(worst.p_value) + math.log(num_tests),
        level=level,
        fraction=worst.scale,
    )


def arrays_without_noise(noise: NoiseSummary, level: float) -> Check:
    """Looks for arrays whose noise is 0 in all rounds."""
    silent = np.flatnonzero(noisy_counts(noise) == 0)
    counts = np.maximum(noise.layout.sizes * noise.rounds, 1)
    p_values = np.append(noise.law.scale_cdf(counts[silent], ROUNDING), 1.0)
    measured = "no array is without any"
    if len(silent):
        listed = silent[:_MAX_LISTED_ARRAYS]
        names = ", ".join(_name(noise, index) for index in listed)
        num_unlisted = len(silent) - len(listed)
        further = f" and {num_unlisted} more" if num_unlisted else ""
        measured = (
            f"{len(silent)} of {len(counts)} without any: {names}{further}"
        )
    return check_of_p_value(
        "arrays without noise",
        claim="all arrays have noise",
        measured=measured,
        why="These arrays are released as they are: ε is infinite",
        log_p_value=_log(float(p_values.min())) + math.log(len(counts)),
        level=level,
        fraction=0.0,
    )


def coordinates_without_noise(noise: NoiseSummary, level: float) -> Check:
    """Looks for coordinates whose noise is 0 in all rounds, in arrays that have noise."""
    counts = noisy_counts(noise)
    arrays = np.searchsorted(noise.layout.starts, noise.still, side="right") - 1
    still = int(np.sum(counts[arrays] > 0))
    entries = int(counts.sum()) // noise.rounds
    p_value = 1.0
    if still:
        # The probability that rounding to a grid makes one coordinate 0 in all rounds.
        zero_probability = grid_of(noise).largest_mass ** noise.rounds
        p_value = float(
            scipy.special.bdtrc(still - 1, entries, zero_probability)
        )
    return check_of_p_value(
        "coordinates without noise",
        claim="all coordinates have noise",
        measured=f"{still:,} of {entries:,} without any in {noise.rounds} rounds",
        why="These coordinates are released as they are: ε is infinite",
        log_p_value=_log(p_value),
        level=level,
        fraction=0.0,
    )


def _name(noise: NoiseSummary, index: int) -> str:
    """The name of an array; the index after the last one stands for all arrays together."""
    names = noise.layout.names
    if index < len(names):
        return names[index]
    return "all arrays"
