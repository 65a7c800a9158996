"""Checks whether the steps of DP-SGD did what their privacy accounting assumes.

`check_steps` compares the norms of clipped gradients with the clip norm, batch sizes with Poisson
sampling, the noise of entries without any gradient with the claimed noise, and the model's
movement with that by the noisy gradient alone. `fl_epe.noise` checks the noise itself. The
findings also name what could not be checked.

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
from fl_epe.wording import counted

# The level of each of two tests: of the batch sizes, and of the entries without a gradient.
_LEVEL = 1e-4

# Factors of two batches count as different if their relative difference is larger.
_MAX_FACTOR_DIFFERENCE = 0.02

# A batch size is hardly ever this many standard deviations from its mean.
_FAR = 6


@dataclasses.dataclass(frozen=True)
class StepSeen:
    """Observations of a step.

    Attributes:
        batches: the number of batches that were accumulated for the step.
        parts: the batches that were clipped for it, in order.
        silent: whether no noise was claimed, and none was added.
        untouched: the number of entries in which neither an example nor a canary had a
            gradient.
        untouched_square: the sum of the squared noise of these entries, divided by its claimed
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
    # Some checks return an empty text if they find no fault.
    results = [_check_clipping(checked)]
    if is_sampled:
        results.append(_check_sampling(steps, rate, batch_size, tells_sizes))
    noise_result = _check_noise(checked, noise)
    results.append(noise_result)
    if noise_result.unbounded is None:
        results.append(_check_untouched(steps))
    results.append(_check_movement(movement))
    return StepFindings(
        tuple(text for result in results for text in result.faults if text),
        tuple(text for result in results for text in result.unseen),
        next((r.unbounded for r in results if r.unbounded), None),
    )


def _check_clipping(steps: Sequence[StepSeen]) -> StepFindings:
    """Compare the clipped gradients of steps with the clip norm."""
    clipping_faults = []
    largest = np.array(
        [max(part.largest for part in step.parts) for step in steps]
    )
    num_longer = int(np.sum(largest > 1 + ROUNDING))
    if num_longer:
        clipping_faults.append(
            f"clipped gradients are up to {largest.max():.3g} times as long as the clip norm,"
            f" in {num_longer} of {len(steps)} steps"
        )
    parts = [part for step in steps for part in step.parts]
    factors = [part.common_factor for part in parts if part.common_factor > 0]
    # One factor in all batches may be a change of units.
    if factors and min(factors) < (1 - _MAX_FACTOR_DIFFERENCE) * max(factors):
        clipping_faults.append(
            "not each gradient is clipped, but the sum or the mean of a batch: all its gradients"
            f" have one factor, from {min(factors):.3g} to {max(factors):.3g} by batch"
        )
    unseen = []
    reasons = [part.unseen for part in parts if part.unseen]
    if reasons:
        count = f"{len(reasons)} of {len(parts)}"
        unseen.append(f"clipping of {count} batches: {reasons[0]}")
    return StepFindings(tuple(clipping_faults), tuple(unseen))


def _check_sampling(
    steps: Sequence[StepSeen],
    rate: float | None,
    batch_size: float,
    tells_sizes: bool,
) -> StepFindings:
    """Compare batch sizes with Poisson sampling; the arguments are those of `check_steps`."""
    if rate is None or not np.isfinite(batch_size):
        reason = "batch sizes, as they or the sampling rate of the accounting are not known"
        return StepFindings(unseen=(reason,))
    examples = np.array(
        [sum(part.examples for part in step.parts) for step in steps]
    )
    batches = np.array([step.batches for step in steps])
    sampling_fault = _fault_of_mean_size(examples, batches, rate, batch_size)
    if not sampling_fault:
        sampling_fault = _fault_of_equal_sizes(
            examples, batches, rate, batch_size
        )
    if sampling_fault and not tells_sizes:
        sampling_fault = (
            "batch sizes are not those of Poisson sampling at the rate of the"
            " accounting"
        )
    unseen = []
    num_unknown = int(np.isnan(examples).sum())
    if num_unknown:
        unseen.append(f"batch sizes in {num_unknown} of {len(steps)} steps")
    return StepFindings((sampling_fault,), tuple(unseen))


def _check_noise(
    steps: Sequence[StepSeen], noise: Sequence[Check]
) -> StepFindings:
    """Collect the results of the checks of the noise, and count the steps without any noise."""
    num_silent = sum(step.silent for step in steps)
    reasons = []
    if num_silent:
        reasons.append(f"{num_silent} of {len(steps)} steps had no noise")
    reasons += [
        f"the noise: {check.measured}"
        for check in faults(noise)
        # The seed of an experiment leaks its noise only to an adversary who knows the seed.
        if check.infinite and check.name != "seed"
    ]
    return StepFindings(
        (fault(noise),), unbounded=reasons[0] if reasons else None
    )


def _check_untouched(steps: Sequence[StepSeen]) -> StepFindings:
    """Test whether entries without a gradient have as much noise as claimed."""
    entries = sum(step.untouched for step in steps)
    square = sum(step.untouched_square for step in steps)
    if not entries or scipy.stats.chi2.cdf(square, entries) >= _LEVEL:
        return StepFindings()
    share = math.sqrt(square / entries)
    text = f"the noise has {share:.3g} times its scale in {entries:,} entries where no gradient is"
    return StepFindings((text,), unbounded=None if square else text)


def _check_movement(movement: Movement) -> StepFindings:
    """Collect the results of the checks of the model's movement."""
    unseen = []
    if movement.changes:
        times = counted(movement.changes, "time")
        unseen.append(f"what changed the model between steps, {times}")
    if not movement.unexplained:
        return StepFindings(unseen=tuple(unseen))
    steps = f"in {movement.unexplained} of {movement.steps} steps"
    if movement.has_no_noise:
        text = f"the model moves by a gradient without noise, {steps}"
        return StepFindings((text,), tuple(unseen), unbounded=text)
    unseen.append(f"what moves the model {steps}: {movement.reason}")
    return StepFindings(unseen=tuple(unseen))


def _fault_of_mean_size(
    examples: Floats, batches: Integers, rate: float, size: float
) -> str:
    """Test the sum of the batch sizes against its binomial law under Poisson sampling.

    Batches of unknown size may be empty or large. They count as empty, and if there are any, only
    sums that are too large are a fault. The level is split over the two tails, and over this test
    and `_fault_of_equal_sizes`.

    Args:
        examples: the number of examples of each step; NaN if it is not known.
        batches: the number of batches of each step.
        rate: the sampling rate.
        size: the expected batch size, rounded down. So the number of examples in the data set
            is known only up to a range.

    Returns:
        The fault; empty if there is none.
    """
    total = np.nansum(examples)
    count = batches.sum()
    min_trials = np.floor(size * count / rate)
    max_trials = np.floor((size + 1) * count / rate)
    lower_tail = 1.0
    if not np.isnan(examples).any():
        lower_tail = scipy.stats.binom.cdf(total, min_trials, rate)
    upper_tail = scipy.stats.binom.sf(total - 1, max_trials, rate)
    if min(lower_tail, upper_tail) >= _LEVEL / 4:
        return ""
    return (
        f"a batch has {total / count:.4g} examples on average, where a sampling rate of"
        f" {rate:.3g} makes one expect {size:g}"
    )


def _fault_of_equal_sizes(
    examples: Floats, batches: Integers, rate: float, size: float
) -> str:
    """Test how many batches have the same size, which are few under Poisson sampling.

    No size is more probable than the mode of the binomial law, and the correction is for all
    sizes that are possible in practice. The arguments and the result are those of
    `_fault_of_mean_size`.
    """
    population = np.floor(batches.min() * size / rate)
    mode = min(np.floor((population + 1) * rate), population)
    max_chance = float(scipy.stats.binom.pmf(mode, population, rate))
    sizes, counts = np.unique(examples, return_counts=True, equal_nan=False)
    p_value = scipy.stats.binom.sf(counts.max() - 1, len(examples), max_chance)
    num_possible_sizes = 1 + 2 * _FAR * math.sqrt(size * (1 - rate))
    if p_value * num_possible_sizes >= _LEVEL / 2:
        return ""
    return (
        f"{counts.max()} of {len(examples)} batches have {sizes[counts.argmax()]:g} examples: they"
        " are not drawn by Poisson sampling, as the accounting assumes"
    )
