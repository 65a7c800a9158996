"""Whether the steps of DP-SGD did what their privacy accounting assumes.

`check_steps` compares clipped gradients with the clip norm, batch sizes with Poisson sampling, the
noise where no example has a gradient with that elsewhere, and the model's movement with the noisy
gradient; `fl_epe.noise` checks the noise itself. What cannot be seen is named.

Examples:
    >>> steps = [StepSeen(batches=1, parts=(BatchSeen(examples=50, largest=2.0),))] * 20
    >>> check_steps(steps, []).faults
    ('clipped gradients are up to 2 times as long as the clip norm, in 20 of 20 steps',)
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.checks import Floats
from fl_epe.dp_sgd.clipping import ROUNDING
from fl_epe.dp_sgd.movement import Movement
from fl_epe.noise import Check, fault, faults

_LEVEL = 1e-4
"""Probability of a false alarm of a right run, at most: of the batch sizes; of untouched rows."""

_MUCH_APART = 0.02  # relative difference of the factors of two batches


@dataclasses.dataclass(frozen=True)
class BatchSeen:
    """What was seen of a batch.

    Attributes:
        examples: how many; NaN if it is not known.
        largest: norm of the longest clipped gradient over the clip norm; NaN if it is not known.
        common_factor: of all its gradients, see `Clipping`.
        reason: why something is not known.
    """

    examples: float = math.nan
    largest: float = math.nan
    common_factor: float = math.nan
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class StepSeen:
    """What was seen of a step.

    Attributes:
        batches: that were accumulated for the step.
        parts: the batches as they were clipped: one, unless they are smaller physical ones.
        silent: whether no noise was claimed, and none added.
        untouched: number of entries that neither an example nor a canary had a gradient in.
        untouched_square: sum of their squared noise, over the claimed variance.
    """

    batches: int
    parts: tuple[BatchSeen, ...]
    silent: bool = False
    untouched: int = 0
    untouched_square: float = 0.0

    @property
    def examples(self) -> float:
        """Of the step; NaN if it is not known."""
        return sum(part.examples for part in self.parts) if self.parts else math.nan

    @property
    def largest(self) -> float:
        """Norm of the longest clipped gradient over the clip norm; NaN if it is not known."""
        norms = np.array([part.largest for part in self.parts] or [math.nan])
        longer = norms[norms > 1 + ROUNDING]
        return float(longer.max() if len(longer) else norms.max())


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
    *,
    rate: float | None = None,
    batch_size: float = math.nan,
    is_sampled: bool = True,
    movement: Movement | None = None,
) -> StepFindings:
    """How steps differ from what the privacy accounting of DP-SGD assumes.

    A right run is found fault with in at most one of 1,000 runs
    (`simulations/audits/dp_sgd_claims.py`, part 3).

    Args:
        steps: of the run.
        noise: checks of their noise.
        rate: sampling rate of the accounting; ``None`` if it is not known.
        batch_size: examples of a batch that the rate makes one expect, rounded down.
        is_sampled: whether the accounting is for Poisson sampling, and so assumes batch sizes.
        movement: how the steps moved the model; ``None`` if nobody looked.
    """
    if not steps:
        return StepFindings()
    silent = sum(step.silent for step in steps)
    infinite = [f"{silent} of {len(steps)} steps had no noise"] if silent else []
    # Who seeds an experiment hides its noise from all who do not know of that.
    failed = (one for one in faults(noise) if one.infinite and one.name != "seed")
    infinite += [f"the noise: {one.measured}" for one in failed]
    too_long, unseen_clipping = _clipping(steps)
    sampling = unseen_sampling = ""
    if is_sampled:
        sampling, unseen_sampling = _sampling(steps, rate, batch_size)
    untouched, has_none = _untouched(steps)
    without_noise, unseen_movement = _movement(movement)
    if has_none:
        infinite.append(untouched)
    if movement is not None and movement.has_no_noise:
        infinite.append(without_noise)
    wrong = (too_long, _common_factors(steps), sampling, fault(noise), untouched, without_noise)
    return StepFindings(
        tuple(filter(None, wrong)),
        tuple(filter(None, (unseen_clipping, unseen_sampling, *unseen_movement))),
        infinite[0] if infinite else None,
    )


def _clipping(steps: Sequence[StepSeen]) -> tuple[str, str]:
    """Of clipped gradients that are too long, and of those that are not known."""
    largest = np.array([step.largest for step in steps])
    too_long = unseen = ""
    if longer := int(np.sum(largest > 1 + ROUNDING)):
        too_long = (
            f"clipped gradients are up to {np.nanmax(largest):.3g} times as long as the clip norm,"
            f" in {longer} of {len(steps)} steps"
        )
    if unknown := int(np.isnan(largest).sum()):
        unseen = f"clipping in {unknown} of {len(steps)} steps: {_reason(steps)}"
    return too_long, unseen


def _reason(steps: Sequence[StepSeen]) -> str:
    reasons = (part.reason for step in steps for part in step.parts if part.reason)
    return next(reasons, "the optimizer did not clip by its own method clip_and_accumulate")


def _common_factors(steps: Sequence[StepSeen]) -> str:
    """Of one factor for all gradients of a batch which the batch decides."""
    factors = np.array([part.common_factor for step in steps for part in step.parts])
    factors = factors[np.isfinite(factors)]
    if len(factors) < 2 or np.ptp(factors) <= _MUCH_APART * factors.max():
        return ""
    return (
        "not each gradient is clipped, but the sum or the mean of a batch: all its gradients have"
        f" one factor, from {factors.min():.3g} to {factors.max():.3g} in {len(factors)} batches"
    )


def _sampling(steps: Sequence[StepSeen], rate: float | None, batch_size: float) -> tuple[str, str]:
    """Of batch sizes that are not those of Poisson sampling, and of those that are not known."""
    if rate is None:
        return "", "batch sizes, as the sampling rate of the accounting is not known"
    if not np.isfinite(batch_size):
        return "", "batch sizes, as the optimizer does not say which it expects"
    examples = np.array([step.examples for step in steps])
    batches = np.array([step.batches for step in steps])
    law = examples, batches, rate, batch_size
    found, unseen = _average(*law) or _fixed(*law), ""
    if unknown := int(np.isnan(examples).sum()):
        unseen = f"batch sizes in {unknown} of {len(steps)} steps: {_reason(steps)}"
    return found, unseen


def _untouched(steps: Sequence[StepSeen]) -> tuple[str, bool]:
    """Of too little noise where no gradient is; and whether it has none there."""
    entries = sum(step.untouched for step in steps)
    square = sum(step.untouched_square for step in steps)
    if not entries or scipy.stats.chi2.cdf(square, entries) >= _LEVEL:
        return "", False
    share = math.sqrt(square / entries)
    text = f"the noise has {share:.3g} times its scale in {entries:,} entries where no gradient is"
    return text, square == 0


def _movement(movement: Movement | None) -> tuple[str, list[str]]:
    """Of a model that does not move by the noisy gradient, and of movement that is not known."""
    if movement is None:
        return "", ["what moves the model"]
    unseen = []
    if movement.changes:
        unseen.append(f"what changed the model between steps, {movement.changes} times")
    which = f"in {movement.unexplained} of {movement.steps} steps"
    if movement.has_no_noise:
        return f"the model moves without the noise {which}", unseen
    if movement.noise_share < 1:
        return f"the model moves by {movement.noise_share:.2g} of the noise {which}", unseen
    if movement.unexplained:
        unseen.append(f"what moves the model {which}: {movement.reason}")
    return "", unseen


def _average(examples: Floats, batches: NDArray[np.int64], rate: float, size: float) -> str:
    """The sum of the batch sizes against the binomial law that Poisson sampling gives it.

    Batches of unknown size may be empty or large.
    """
    is_known = np.isfinite(examples)
    total, count = examples[is_known].sum(), batches.sum()
    few, many = (np.floor(expected * count / rate) for expected in (size, size + 1))
    less = scipy.stats.binom.cdf(total, few, rate) if is_known.all() else 1.0
    more = scipy.stats.binom.sf(total - 1, many, rate)
    text = (
        f"a batch has {total / count:.4g} examples on average, where a sampling rate of"
        f" {rate:.3g} makes one expect {size:g}"
    )
    return "" if min(less, more) >= _LEVEL / 4 else text


def _fixed(examples: Floats, batches: NDArray[np.int64], rate: float, size: float) -> str:
    """How many batches have the same size, against the most likely one of the binomial law."""
    population = np.floor(batches.min() * size / rate)
    mode = min(np.floor((population + 1) * rate), population)
    likeliest = float(scipy.stats.binom.pmf(mode, population, rate))
    sizes, counts = np.unique(examples[np.isfinite(examples)], return_counts=True)
    if not len(sizes):
        return ""
    chance = scipy.stats.binom.sf(counts.max() - 1, len(examples), likeliest)
    possible = 1 + 12 * math.sqrt(size * (1 - rate))  # other sizes hardly occur
    text = (
        f"{counts.max()} of {len(examples)} batches have {sizes[counts.argmax()]:g} examples: they"
        " are not drawn by Poisson sampling, as the accounting assumes"
    )
    return "" if chance * possible >= _LEVEL / 2 else text
