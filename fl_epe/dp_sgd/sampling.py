"""How the canaries of an audit of DP-SGD are drawn for its steps, and what that does to a step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fl_epe.checks import check_rate
from fl_epe.dp_sgd.steps import Steps
from fl_epe.schedules import Cohort, Poisson, ShuffledEpochs
from fl_epe.seeding import generator

_SCHEDULE = 0  # stream of the canaries' steps


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Who takes part when, as the record names it.

    Attributes:
        kind: of the schedule.
        rate: probability of a canary to be in a step, for coins; else ``None``.
        participations: expected steps of a canary, for others than coins.
    """

    kind: str
    rate: float | None
    participations: float = 1.0


def sampling_of(
    found: Steps, sample_rate: float | None, steps: int | None, participations: float
) -> tuple[Sampling, int]:
    """How canaries' steps are drawn, and of how many; 1 for coins, which need no number.

    Raises:
        ValueError: if the arguments do not go together, or one is out of range.
    """
    if steps is not None:
        if sample_rate is not None:
            raise ValueError(
                f"Expected steps={steps} or sample_rate={sample_rate}, not both: coins need no"
                " number of steps."
            )
        if steps < 1 or not 0 < participations <= steps:
            raise ValueError(
                f"Expected participations={participations} in (0, steps={steps}], and a step."
            )
        return Sampling("epochs", None, participations), steps
    if participations != 1:
        raise ValueError(f"Expected steps=… with participations={participations}.")
    rate = found.sample_rate if sample_rate is None else sample_rate
    if rate is None:
        raise ValueError(
            "Expected sample_rate=… (the probability of an example to be in a batch) or steps=…"
            f" (of the run): {found.description} does not say how batches are drawn."
        )
    check_rate("sample_rate", rate)
    return Sampling("poisson", rate), 1


def canary_cohorts(
    sampling: Sampling, size: int, num_canaries: int, seed: int
) -> Callable[[int], Cohort]:
    """The canaries of the next step, by the number of batches that are accumulated for it."""
    rng = generator(seed, _SCHEDULE)
    if (rate := sampling.rate) is not None:
        return lambda batches: next(Poisson(1, min(1.0, batches * rate)).cohorts(num_canaries, rng))
    planned = ShuffledEpochs(size, sampling.participations).cohorts(num_canaries, rng)
    return lambda _: next(planned, np.empty(0, np.int64))


def config_of(found: Steps, sampling: Sampling, expected: float) -> dict[str, Any]:
    """What a record's configuration keeps; ``expected`` canaries are in a step."""
    return {
        "task": f"DP-SGD with {found.description}",
        "unit": "example",
        "participations": None if sampling.rate is not None else sampling.participations,
        "sample_rate": sampling.rate,
        "share": expected / found.batch_size,
        "plan": _plan(expected, found),
    }


def _plan(expected: float, found: Steps) -> list[str]:
    """What the canaries do to a step, in plain English."""
    z, n = found.noise_multiplier, found.batch_size
    lines = [
        f"About {expected:.{1 if expected < 100 else 0}f} canaries join a step, beside an expected"
        f" batch of {n:g} examples: {expected / n:.1%} of its size."
    ]
    if z > 0:
        length = math.sqrt(expected / found.dim) / z
        lines.append(f"Together they are about {length:.2%} as long as the noise of a step.")
    return lines
