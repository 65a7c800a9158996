"""Whether the steps of DP-SGD did what their privacy accounting assumes.

`check_steps` compares clipped gradients with the clip norm, and batch sizes with Poisson sampling;
`fl_epe.noise` checks the noise. What cannot be seen is named.

Examples:
    >>> steps = [StepSeen(largest=2.0, examples=50, batches=1)] * 20
    >>> check_steps(steps, []).faults
    ('clipped gradients are up to 2 times as long as the clip norm, in 20 of 20 steps',)
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

from fl_epe.checks import Floats
from fl_epe.noise import Check, fault, faults

_LEVEL = 1e-4
"""Probability of a false alarm of the test of the batch sizes of a right run, at most."""

_ROUNDING = 1e-3  # relative difference of norms


@dataclasses.dataclass(frozen=True, eq=False)
class StepSeen:
    """What was seen of a step.

    Attributes:
        largest: norm of the longest clipped gradient over the clip norm; NaN if it is not known.
        examples: in the batch; NaN if it is not known.
        batches: that were accumulated for the step.
        silent: whether no noise was claimed, and none added.
    """

    largest: float
    examples: float
    batches: int
    silent: bool = False


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
) -> StepFindings:
    """How steps differ from what the privacy accounting of DP-SGD assumes.

    A right run is found fault with in at most one of 1,000 runs
    (`simulations/audits/dp_sgd_claims.py`, part 3).

    Args:
        steps: of the run.
        noise: checks of their noise.
        rate: sampling rate of the accounting; ``None`` if it is not known.
        batch_size: examples of a batch that the rate makes one expect, rounded down.
    """
    if not steps:
        return StepFindings()
    largest = np.array([step.largest for step in steps])
    examples = np.array([step.examples for step in steps])
    batches = np.array([step.batches for step in steps])
    silent = sum(step.silent for step in steps)
    bare = [f"{silent} of {len(steps)} steps had no noise"] if silent else []
    # Who seeds an experiment hides its noise from all who do not know of that.
    infinite = (one for one in faults(noise) if one.infinite and one.name != "seed")
    bare += [f"the noise: {one.measured}" for one in infinite]
    clipping, sampling, unseen = "", "", []
    if longer := int(np.sum(largest > 1 + _ROUNDING)):
        clipping = (
            f"clipped gradients are up to {np.nanmax(largest):.3g} times as long as the clip norm,"
            f" in {longer} of {len(largest)} steps"
        )
    elif unknown := int(np.isnan(largest).sum()):
        unseen.append(
            f"clipping in {unknown} of {len(steps)} steps: their optimizer shows no gradients of"
            " single examples, or clips them in another way"
        )
    if rate is None or not np.isfinite(batch_size + examples.sum()):
        unseen.append("batch sizes, as they or the sampling rate of the accounting are not known")
    else:
        law = examples, batches, rate, batch_size
        sampling = _average(*law) or _fixed(*law)
    return StepFindings(
        tuple(filter(None, (clipping, sampling, fault(noise)))),
        tuple(unseen),
        bare[0] if bare else None,
    )


def largest_clipped(
    samples: Sequence[torch.Tensor], totals: Sequence[torch.Tensor], clip_norm: float
) -> float:
    """Norm of the longest clipped gradient; NaN if their sum is none of gradients cut to a length.

    Args:
        samples: the gradients of a batch, ``(n, entries)`` for each tensor.
        totals: the sum of the clipped gradients, ``(entries,)`` for each tensor.
        clip_norm: to which they should have been cut.
    """
    with torch.no_grad():
        rows = [part.to(total) for part, total in zip(samples, totals, strict=True)]
        norms = _host(torch.stack([part.norm(dim=1) for part in samples]).norm(dim=0))
        along = sum(_host(part @ total) for part, total in zip(rows, totals, strict=True))
        square = sum(float(total.norm()) ** 2 for total in totals)
        tolerance = max(_ROUNDING, 10 * torch.finfo(samples[0].dtype).eps)
        for limit in (clip_norm, math.inf, *_limits(norms, np.asarray(along), square)):
            cut = np.minimum(norms, limit)
            scale = torch.from_numpy(cut / np.where(norms > 0, norms, 1.0))
            pairs = zip(totals, rows, strict=True)
            apart = [float((total - scale.to(total) @ part).norm()) for total, part in pairs]
            if math.hypot(*apart) <= tolerance * float(np.linalg.norm(cut)):
                return float(cut.max(initial=0.0))
    return math.nan


def _host(vector: torch.Tensor) -> Floats:
    return np.asarray(vector.cpu().double().numpy())


def _limits(norms: Floats, along: Floats, square: float) -> list[float]:
    """Lengths to which gradients may have been cut, other than the claimed one.

    ``along`` are their inner products with the clipped sum, whose square is ``square``.
    """
    order = np.argsort(norms)
    norms, along = norms[order], along[order]
    whole = np.cumsum(along) - along
    cut = np.cumsum((along / np.where(norms > 0, norms, np.inf))[::-1])[::-1]
    limits = (square - whole) / np.where(cut != 0, cut, np.nan)
    below, slack = np.append(0.0, norms[:-1]), 1 + _ROUNDING
    return list(limits[(limits * slack >= below) & (limits <= norms * slack)])


def _average(examples: Floats, batches: NDArray[np.int64], rate: float, size: float) -> str:
    """The sum of the batch sizes against the binomial law that Poisson sampling gives it."""
    total, count = examples.sum(), batches.sum()
    few, many = (np.floor(expected * count / rate) for expected in (size, size + 1))
    less = scipy.stats.binom.cdf(total, few, rate)
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
    sizes, counts = np.unique(examples, return_counts=True)
    chance = scipy.stats.binom.sf(counts.max() - 1, len(examples), likeliest)
    possible = 1 + 12 * math.sqrt(size * (1 - rate))  # other sizes hardly occur
    text = (
        f"{counts.max()} of {len(examples)} batches have {sizes[counts.argmax()]:g} examples: they"
        " are not drawn by Poisson sampling, as the accounting assumes"
    )
    return "" if chance * possible >= _LEVEL / 2 else text
