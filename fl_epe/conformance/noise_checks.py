"""What the noise of a target is like: released of updates that are all zero, it stands alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import scipy

from fl_epe.checks import Floats
from fl_epe.conformance.games import describe
from fl_epe.conformance.target import Target
from fl_epe.noise import Check, check_noise
from fl_epe.seeding import generator

_RUNS = 4000  # at most, of which the first are those of most checks
_FIRST = 1000
_FEATURES = 600  # entries of a run of which correlations are looked at, at most


def noise_alone(target: Target, seed: int) -> Floats | Check:
    """What runs release of zeros, shape (m, s, d), or why there is nothing."""
    rng, runs = generator(seed, 6), []
    zeros = np.repeat(
        target.none, max(len(target.rows) + (target.adjacency != "add-or-remove"), 1), 0
    )
    try:
        for _ in range(min(_RUNS, target.trials)):
            target.restart()
            runs.append([target(zeros.copy(), rng) for _ in range(target.steps)])
        return np.array(runs)
    except Exception as error:  # noqa: BLE001 (whatever the target raises)
        why = f"updates of zeros are refused: {describe(error)}"
        return Check("noise alone", "unknown", "the release of zeros", "nothing", why)


def checks(target: Target, noise: Floats, level: float) -> Iterator[Check]:
    """Whether the noise is that of the claim, and fresh in each entry, step and call."""
    rows = noise.reshape(-1, noise.shape[2])
    yield _fresh(target, rows)
    if target.noise is None:
        return
    flat = noise.reshape(len(noise), -1)[:, :_FEATURES]
    yield _independent(flat, len(noise), level / 2)
    if target.noise_std is not None:
        ends = np.cumsum(target.arrays)
        cuts = ends[:-1] if ends[-1] == rows.shape[1] else []
        parts = [np.split(row, cuts) for row in rows[:_FIRST]]
        for one in check_noise(parts, target.noise_std, distribution=target.noise, level=level / 3):
            yield dataclasses.replace(one, name=f"noise: {one.name}")


def _fresh(target: Target, rows: Floats) -> Check:
    name, claim = "noise: fresh in each call", "no two releases share their noise"
    different = len(np.unique(rows, axis=0))
    few = different == 1 if target.noise is None else different < len(rows)
    measured = f"{different} different ones of {len(rows)} releases of zeros"
    if not few:
        return Check(name, "passed", claim, measured)
    why = "the difference of two releases with the same noise has none: ε is infinite"
    return Check(name, "failed", claim, measured, why, "critical")


def _independent(flat: Floats, runs: int, level: float) -> Check:
    name, claim = "noise: independent", "entries, arrays and steps share no noise"
    spread = flat.std(axis=0)
    live = np.flatnonzero(spread > 0)
    if len(live) < 2 or runs < 20:
        return Check(name, "unknown", claim, f"{len(live)} entries, {runs} runs", "too few")
    scaled = (flat[:, live] - flat[:, live].mean(axis=0)) / spread[live]
    found = np.abs(np.triu(scaled.T @ scaled / runs, 1))
    place = np.unravel_index(found.argmax(), found.shape)
    largest = float(found.max())
    pairs = len(live) * (len(live) - 1) / 2
    limit = np.tanh(scipy.special.ndtri(1 - level / pairs / 2) / np.sqrt(runs - 3))
    one, other = live[list(place)]
    measured = f"correlation {largest:.3f} of entries {one + 1} and {other + 1} of a run"
    if largest <= limit:
        return Check(name, "passed", claim, f"{measured}, by chance up to {limit:.3f}")
    why = "noise that two entries share cancels in their difference"
    severity = "critical" if largest > 0.99 else "theoretical"
    return Check(name, "failed", claim, measured, why, severity)


def _largest(sizes: Floats, law: str, level: float) -> Check:
    """Whether so many draws reach as far as they should: truncated noise does not."""
    largest = float(sizes.max())
    beyond = (
        2 * scipy.special.ndtr(-largest) if law == "gaussian" else np.exp(-np.sqrt(2) * largest)
    )
    chance = float(np.exp(sizes.size * np.log1p(-beyond)))
    name, claim = "noise: truncation", f"the largest of {sizes.size:,} draws, as {law} ones"
    measured = f"the largest is {largest:.2f} standard deviations"
    if chance > level:
        return Check(name, "passed", claim, measured)
    why = f"by chance in {chance:.1g}: what lies beyond is released of one of two inputs alone"
    return Check(name, "failed", claim, measured, why, "critical")
