"""What the noise of a target is like: released of updates that are all zero, it stands alone."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from fl_epe.checks import Floats
from fl_epe.conformance.target import Target
from fl_epe.noise import Check, check_noise
from fl_epe.seeding import generator

_RUNS = 4000  # at most


def noise_alone(target: Target, seed: int) -> Floats:
    """What runs release of zeros, shape (m, s, d)."""
    rng, runs = generator(seed, 6), []
    for _ in range(min(_RUNS, target.trials)):
        target.restart()
        runs.append([target(target.zeros.copy(), rng) for _ in range(target.steps)])
    return np.array(runs)


def checks(target: Target, noise: Floats, level: float) -> Iterator[Check]:
    """Whether the noise is that of the claim, and fresh in each entry, step and call."""
    rows = noise.reshape(-1, noise.shape[2])
    different = len(np.unique(rows, axis=0))
    name, claim = "noise: fresh in each call", "no two releases share their noise"
    measured = f"{different} different ones of {len(rows)} releases of zeros"
    if different == 1 or (target.noise is not None and different < len(rows)):
        why = "the difference of two releases with the same noise has none: ε is infinite"
        yield Check(name, "failed", claim, measured, why, "critical")
    else:
        yield Check(name, "passed", claim, measured)
    if target.noise is None or target.noise_std is None:
        return
    cuts = np.cumsum(target.arrays)[:-1] if target.dim == rows.shape[1] else []  # type: ignore[var-annotated]
    parts = [np.split(row, cuts) for row in rows]
    for one in check_noise(parts, target.noise_std, distribution=target.noise, level=level):
        yield dataclasses.replace(one, name=f"noise: {one.name}")
