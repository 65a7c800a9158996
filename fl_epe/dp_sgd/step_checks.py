"""Checks whether the steps of DP-SGD did what their privacy accounting assumes.

`check_steps` compares clipped gradients with the clip norm, batch sizes with Poisson sampling,
the noise of entries without any gradient with the claimed noise, and the model's movement with
the noisy gradient; `fl_epe.noise` checks the noise itself. The findings name what could not be
checked.

Examples:
    >>> steps = [StepSeen(batches=1, parts=(BatchSeen(examples=50, largest=2.0),))] * 20
    >>> check_steps(steps, [], Movement(dim=3)).faults
    ('clipped gradients are up to 2 times as long as the clip norm, in 20 of 20 steps',)
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy

from fl_epe.checks import Floats, Integers
from fl_epe.dp_sgd.clipping import ROUNDING, BatchSeen
from fl_epe.dp_sgd.movement import Movement
from fl_epe.noise import Check, fault, faults

_LEVEL = 1e-4
"""The level of each of two tests: of the batch sizes, and of the entries without a gradient."""

# The relative difference of the factors of two batches that count as different.
_FACTOR_SPREAD = 0.02


@dataclasses.dataclass(frozen=True)
class StepSeen:
    """Observations of a step.

    Attributes:
        batches: the number of batches that were accumulated for the step.
        parts: the batches that were clipped for it, in order.
        silent: whether no noise was claimed, and none was added.
        untouched: the number of entries in which neither an example nor a canary had a
            gradient.
        untouched_square: the sum of the squared noise of these entries over the claimed
            variance.
        looked_at: whether more than the batch sizes was observed.
    """

    batches: int
    parts: tuple[BatchSeen, ...]
    silent: bool = False
    untouched: int = 0
    untouched_square: float = 0.0
    looked_at: bool = True


@dataclasses.dataclass(frozen=True)
class StepFindings:
    """The result of `check_steps`.

    Attributes:
        faults: the differences between the steps and the assumptions of the accounting.
        unseen: the checks that could not be made.
        unbounded: the reason why ε of all steps is infinite; ``None`` if there is none.
    """

    faults: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    unbounded: str | None = None


def check_steps(
    steps: Sequence[StepSeen],
    noise: Sequence[Check],
    movement: Movement,
    *,
    rate: float | None = None,
    batch_size: float = math.nan,
    is_sampled: bool = True,
    tells_sizes: bool = True,
) -> StepFindings:
    """Find differences between steps and what the privacy accounting of DP-SGD assumes.

    At most one of 1,000 correct runs has a fault (`simulations/nasr_2023/dp_sgd_claims.py`,
    part 3).

    Args:
        steps: the steps of the run.
        noise: the checks of their noise.
        movement: the movement of the model by the steps.
        rate: the sampling rate of the accounting; ``None`` if it is not known.
        batch_size: the expected number of examples of a batch at that rate, rounded down.
        is_sampled: whether the accounting is for Poisson sampling, and so assumes batch sizes.
        tells_sizes: whether the text of a fault may contain batch sizes and the rate.
    """
    if not steps:
        return StepFindings()
    checked = [step for step in steps if step.looked_at]
    silent_steps = sum(step.silent for step in steps)
    if silent_steps:
        infinite = [f"{silent_steps} of {len(checked)} steps had no noise"]
    else:
        infinite = []
    infinite += [
        f"the noise: {check.measured}"
        for check in faults(noise)
        # The seed of an experiment leaks its noise only to an adversary who knows the seed.
        if check.infinite and check.name != "seed"
    ]
    step_faults, unseen = _clipping(checked)
    if is_sampled:
        fault_of_sizes, unseen_sizes = _sampling(steps, rate, batch_size)
        unseen += unseen_sizes
        if fault_of_sizes and not tells_sizes:
            fault_of_sizes = (
                "batch sizes are not those of Poisson sampling at the rate of the"
                " accounting"
            )
        step_faults.append(fault_of_sizes)
    step_faults.append(fault(noise))
    if not infinite:
        too_little, is_silent = _untouched(steps)
        step_faults.append(too_little)
        if is_silent:
            infinite.append(too_little)
    unmoved, unseen_movement = _movement(movement)
    step_faults.append(unmoved)
    unseen += unseen_movement
    if unmoved:
        infinite.append(unmoved)
    return StepFindings(
        tuple(text for text in step_faults if text),
        tuple(unseen),
        infinite[0] if infinite else None,
    )


def _clipping(steps: Sequence[StepSeen]) -> tuple[list[str], list[str]]:
    """The faults of clipping, and the clipping that is not known."""
    clipping_faults = []
    largest = np.array(
        [max(part.largest for part in step.parts) for step in steps]
    )
    longer = int(np.sum(largest > 1 + ROUNDING))
    if longer:
        clipping_faults.append(
            f"clipped gradients are up to {largest.max():.3g} times as long as the clip norm,"
            f" in {longer} of {len(steps)} steps"
        )
    parts = [part for step in steps for part in step.parts]
    factors = [part.common_factor for part in parts if part.common_factor > 0]
    if factors and min(factors) < (1 - _FACTOR_SPREAD) * max(factors):
        clipping_faults.append(
            "not each gradient is clipped, but the sum or the mean of a batch: all its gradients"
            f" have one factor, from {min(factors):.3g} to {max(factors):.3g} by batch"
        )
    unseen = []
    reasons = [part.unseen for part in parts if part.unseen]
    if reasons:
        count = f"{len(reasons)} of {len(parts)}"
        unseen.append(f"clipping of {count} batches: {reasons[0]}")
    return clipping_faults, unseen


def _sampling(
    steps: Sequence[StepSeen], rate: float | None, batch_size: float
) -> tuple[str, list[str]]:
    """The fault of batch sizes for Poisson sampling, or "", and the unknown batch sizes."""
    if rate is None or not np.isfinite(batch_size):
        return "", [
            "batch sizes, as they or the sampling rate of the accounting are not known"
        ]
    examples = np.array(
        [sum(part.examples for part in step.parts) for step in steps]
    )
    batches = np.array([step.batches for step in steps])
    unseen = []
    unknown = int(np.isnan(examples).sum())
    if unknown:
        unseen.append(f"batch sizes in {unknown} of {len(steps)} steps")
    size_fault = _average(examples, batches, rate, batch_size)
    return size_fault or _fixed(examples, batches, rate, batch_size), unseen


def _untouched(steps: Sequence[StepSeen]) -> tuple[str, bool]:
    """The fault of too little noise in entries without a gradient, or ""; whether it is 0."""
    entries = sum(step.untouched for step in steps)
    square = sum(step.untouched_square for step in steps)
    if not entries or scipy.stats.chi2.cdf(square, entries) >= _LEVEL:
        return "", False
    share = math.sqrt(square / entries)
    text = f"the noise has {share:.3g} times its scale in {entries:,} entries where no gradient is"
    return text, not square


def _movement(movement: Movement) -> tuple[str, list[str]]:
    """The fault of a model that moves without noise, or "", and unexplained movement."""
    unseen = []
    if movement.changes:
        unseen.append(
            f"what changed the model between steps, {movement.changes} times"
        )
    if not movement.unexplained:
        return "", unseen
    steps = f"in {movement.unexplained} of {movement.steps} steps"
    if movement.has_no_noise:
        return f"the model moves by a gradient without noise, {steps}", unseen
    unseen.append(f"what moves the model {steps}: {movement.reason}")
    return "", unseen


def _average(
    examples: Floats, batches: Integers, rate: float, size: float
) -> str:
    """Test the sum of the batch sizes against its binomial law under Poisson sampling.

    Batches of unknown size may be empty or large. The level is split over the two tails, and
    over this test and `_fixed`.
    """
    total = np.nansum(examples)
    count = batches.sum()
    smallest_population = np.floor(size * count / rate)
    largest_population = np.floor((size + 1) * count / rate)
    lower = 1.0
    if not np.isnan(examples).any():
        lower = scipy.stats.binom.cdf(total, smallest_population, rate)
    upper = scipy.stats.binom.sf(total - 1, largest_population, rate)
    if min(lower, upper) >= _LEVEL / 4:
        return ""
    return (
        f"a batch has {total / count:.4g} examples on average, where a sampling rate of"
        f" {rate:.3g} makes one expect {size:g}"
    )


def _fixed(
    examples: Floats, batches: Integers, rate: float, size: float
) -> str:
    """Test how many batches have the same size, against the mode of the binomial law."""
    population = np.floor(batches.min() * size / rate)
    mode = min(np.floor((population + 1) * rate), population)
    likeliest = float(scipy.stats.binom.pmf(mode, population, rate))
    sizes, counts = np.unique(examples, return_counts=True, equal_nan=False)
    chance = scipy.stats.binom.sf(counts.max() - 1, len(examples), likeliest)
    # The range of ±6 standard deviations, which a size hardly ever leaves.
    possible_sizes = 1 + 12 * math.sqrt(size * (1 - rate))
    if chance * possible_sizes >= _LEVEL / 2:
        return ""
    return (
        f"{counts.max()} of {len(examples)} batches have {sizes[counts.argmax()]:g} examples: they"
        " are not drawn by Poisson sampling, as the accounting assumes"
    )
