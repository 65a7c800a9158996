"""Whether the steps of DP-SGD did what their privacy accounting assumes.

`check_steps` compares clipped gradients with the clip norm, batch sizes with Poisson sampling, the
noise where no example has a gradient with that elsewhere, and the model's movement with the noisy
gradient; `fl_epe.noise` checks the noise itself. What cannot be seen is named.

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
"""Probability of a false alarm of a right run, at most: of the batch sizes; of untouched rows."""

_MUCH_APART = 0.02  # relative difference of the factors of two batches


@dataclasses.dataclass(frozen=True)
class StepSeen:
    """What was seen of a step.

    Attributes:
        batches: that were accumulated for the step.
        parts: what was clipped for it, one after the other.
        silent: whether no noise was claimed, and none added.
        untouched: number of entries where neither an example nor a canary had a gradient.
        untouched_square: sum of their squared noise, over the claimed variance.
        looked_at: whether more than the batch sizes was.
    """

    batches: int
    parts: tuple[BatchSeen, ...]
    silent: bool = False
    untouched: int = 0
    untouched_square: float = 0.0
    looked_at: bool = True


@dataclasses.dataclass(frozen=True)
class StepFindings:
    """What `check_steps` found.

    Attributes:
        faults: how steps differ from what the accounting assumes.
        unseen: what could not be checked.
        unbounded: why ε of all steps is infinite; ``None`` if nothing shows that.
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
    """How steps differ from what the privacy accounting of DP-SGD assumes.

    A right run is found fault with in at most one of 1,000 runs
    (`simulations/nasr_2023/dp_sgd_claims.py`, part 3).

    Args:
        steps: of the run.
        noise: checks of their noise.
        movement: how they moved the model.
        rate: sampling rate of the accounting; ``None`` if it is not known.
        batch_size: examples of a batch that the rate makes one expect, rounded down.
        is_sampled: whether the accounting is for Poisson sampling, and so assumes batch sizes.
        tells_sizes: whether a fault may tell sizes of batches and the rate.
    """
    if not steps:
        return StepFindings()
    looked_at = [step for step in steps if step.looked_at]
    silent = sum(step.silent for step in steps)
    infinite = [f"{silent} of {len(looked_at)} steps had no noise"] if silent else []
    # Who seeds an experiment hides its noise from all who do not know of that.
    failed = (one for one in faults(noise) if one.infinite and one.name != "seed")
    infinite += [f"the noise: {one.measured}" for one in failed]
    clipping, unseen_clipping = _clipping(looked_at)
    sampling, unseen_sizes = (
        _sampling(steps, rate, batch_size) if is_sampled else ([], [])
    )
    if any(sampling) and not tells_sizes:
        sampling = [
            "batch sizes are not those of Poisson sampling at the rate of the accounting"
        ]
    untouched, is_silent = ([], False) if infinite else _untouched(steps)
    unmoved, unseen_movement = _movement(movement)
    if is_silent:
        infinite += untouched
    if movement.has_no_noise:
        infinite += unmoved
    found = [*clipping, *sampling, fault(noise), *untouched, *unmoved]
    return StepFindings(
        tuple(filter(None, found)),
        (*unseen_clipping, *unseen_sizes, *unseen_movement),
        infinite[0] if infinite else None,
    )


def _clipping(steps: Sequence[StepSeen]) -> tuple[list[str], list[str]]:
    """Of clipping that is not as claimed, and of clipping that is not known."""
    found = []
    largest = np.array([max(part.largest for part in step.parts) for step in steps])
    if longer := int(np.sum(largest > 1 + ROUNDING)):
        found.append(
            f"clipped gradients are up to {largest.max():.3g} times as long as the clip norm,"
            f" in {longer} of {len(steps)} steps"
        )
    parts = [part for step in steps for part in step.parts]
    factors = [part.common_factor for part in parts if part.common_factor > 0]
    if factors and min(factors) < (1 - _MUCH_APART) * max(factors):
        found.append(
            "not each gradient is clipped, but the sum or the mean of a batch: all its gradients"
            f" have one factor, from {min(factors):.3g} to {max(factors):.3g} by batch"
        )
    reasons = [part.unseen for part in parts if part.unseen]
    if not reasons:
        return found, []
    return found, [f"clipping of {len(reasons)} of {len(parts)} batches: {reasons[0]}"]


def _sampling(
    steps: Sequence[StepSeen], rate: float | None, batch_size: float
) -> tuple[list[str], list[str]]:
    """Of batch sizes that are not those of Poisson sampling, and of those that are not known."""
    if rate is None or not np.isfinite(batch_size):
        return [], [
            "batch sizes, as they or the sampling rate of the accounting are not known"
        ]
    examples = np.array([sum(part.examples for part in step.parts) for step in steps])
    batches = np.array([step.batches for step in steps])
    unseen = []
    if unknown := int(np.isnan(examples).sum()):
        unseen.append(f"batch sizes in {unknown} of {len(steps)} steps")
    law = examples, batches, rate, batch_size
    return [_average(*law) or _fixed(*law)], unseen


def _untouched(steps: Sequence[StepSeen]) -> tuple[list[str], bool]:
    """Of too little noise where no gradient is; and whether there is none."""
    entries = sum(step.untouched for step in steps)
    square = sum(step.untouched_square for step in steps)
    if not entries or scipy.stats.chi2.cdf(square, entries) >= _LEVEL:
        return [], False
    share = math.sqrt(square / entries)
    text = f"the noise has {share:.3g} times its scale in {entries:,} entries where no gradient is"
    return [text], not square


def _movement(movement: Movement) -> tuple[list[str], list[str]]:
    """Of a model that does not move by the noisy gradient, and of movement that is not known."""
    unseen = []
    if movement.changes:
        unseen.append(f"what changed the model between steps, {movement.changes} times")
    if not movement.unexplained:
        return [], unseen
    which = f"in {movement.unexplained} of {movement.steps} steps"
    if movement.has_no_noise:
        return [f"the model moves by a gradient without noise, {which}"], unseen
    return [], [*unseen, f"what moves the model {which}: {movement.reason}"]


def _average(examples: Floats, batches: Integers, rate: float, size: float) -> str:
    """The sum of the batch sizes against the binomial law that Poisson sampling gives it.

    Batches of unknown size may be empty or large.
    """
    total, count = np.nansum(examples), batches.sum()
    few, many = (np.floor(expected * count / rate) for expected in (size, size + 1))
    less = 1.0 if np.isnan(examples).any() else scipy.stats.binom.cdf(total, few, rate)
    more = scipy.stats.binom.sf(total - 1, many, rate)
    text = (
        f"a batch has {total / count:.4g} examples on average, where a sampling rate of"
        f" {rate:.3g} makes one expect {size:g}"
    )
    return "" if min(less, more) >= _LEVEL / 4 else text


def _fixed(examples: Floats, batches: Integers, rate: float, size: float) -> str:
    """How many batches have the same size, against the most likely one of the binomial law."""
    population = np.floor(batches.min() * size / rate)
    mode = min(np.floor((population + 1) * rate), population)
    likeliest = float(scipy.stats.binom.pmf(mode, population, rate))
    sizes, counts = np.unique(examples, return_counts=True, equal_nan=False)
    chance = scipy.stats.binom.sf(counts.max() - 1, len(examples), likeliest)
    possible = 1 + 12 * math.sqrt(size * (1 - rate))  # other sizes hardly occur
    text = (
        f"{counts.max()} of {len(examples)} batches have {sizes[counts.argmax()]:g} examples: they"
        " are not drawn by Poisson sampling, as the accounting assumes"
    )
    return "" if chance * possible >= _LEVEL / 2 else text
