"""What the noise of a target is like: released of updates that are all zero, it stands alone."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from fl_epe.checks import Floats
from fl_epe.conformance.target import Target
from fl_epe.noise import LAWS, Check, check_noise
from fl_epe.seeding import generator

_RUNS, _FIRST = 4000, 1000  # at most, and of these the first, to which most checks are put


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
    yield _largest(np.abs(rows) / target.noise_std, target.noise, level / 2)
    cuts = np.cumsum(target.arrays)[:-1] if target.dim == rows.shape[1] else []  # type: ignore[var-annotated]
    parts = [np.split(row, cuts) for row in rows[:_FIRST]]
    for one in check_noise(parts, target.noise_std, distribution=target.noise, level=level / 2):
        yield dataclasses.replace(one, name=f"noise: {one.name}")


def _largest(sizes: Floats, law: str, level: float) -> Check:
    """Whether so many draws reach as far as they should: truncated noise does not.

    They may be smaller than claimed, all of them: that is a question of the scale.
    """
    scale = float(LAWS[law].scales(LAWS[law].amounts(sizes).sum(), sizes.size))
    most = float(sizes.max()) / min(scale or 1.0, 1.0)
    beyond = LAWS[law].beyond(np.array(most))
    with np.errstate(divide="ignore"):
        chance = float(np.exp(sizes.size * np.log1p(-beyond)))
    name, claim = "noise: truncation", f"the largest of {sizes.size:,} draws, as {law} ones"
    measured = f"the largest is {most:.2f} standard deviations"
    if chance > level:
        return Check(name, "passed", claim, measured)
    why = f"by chance in {chance:.1g}: what lies beyond is released of one of two inputs alone"
    return Check(name, "failed", claim, measured, why, "critical")
