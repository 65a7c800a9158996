"""What odd inputs do: each is refused by an error, or moves what is released within the claim.

Both inputs meet the same random numbers, so that noise which does not depend on the updates
cancels and the change is exact. Where it does not cancel, as of a target that draws its own noise,
a change counts as too large only if it is far beyond the noise too, and averages of many runs
measure the sensitivity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy

from fl_epe.checks import Floats
from fl_epe.conformance.games import Game, describe, observed, severity_of
from fl_epe.conformance.target import ORDERS, Probe, Target
from fl_epe.noise import Check
from fl_epe.seeding import generator

_STREAMS = 3  # of random numbers that a change must not depend on
_SAME = 1e-6  # of what is released: rounding to float32
_FAR = 10.0  # deviations of the noise
_AVERAGED = 400  # runs of each world
_HUGE, _TINY = 1e30, 1e-300


@dataclasses.dataclass(frozen=True)
class Change:
    """How far two inputs are apart in what is released.

    Attributes:
        size: in the claim's norm; NaN if something that is not finite was released, infinite if
            not the same arrays were.
        exact: whether the noise cancelled.
    """

    size: float
    exact: bool


def change(target: Target, pair: Probe, seed: int) -> Change:
    """How far the two releases of a probe are apart."""
    sides = []
    for stream in range(_STREAMS):
        with np.errstate(all="ignore"):
            one, other = pair(generator(seed, 3, stream))
        sides.append([np.asarray(x, np.float64).reshape(-1) for x in (one, other)])
    if len({x.shape for side in sides for x in side}) > 1:
        return Change(float("inf"), True)
    changes = [one - other for one, other in sides]
    if not np.isfinite(changes).all():
        return Change(float("nan"), True)
    stray = max(float(np.abs(x - changes[0]).max()) for x in changes)
    exact = stray <= _SAME * float(np.abs(sides).max())
    sizes = [float(np.linalg.norm(x, ORDERS[target.norm])) for x in changes]
    return Change(sizes[0] if exact else min(sizes), exact)


def pair_of(target: Target, one: Any, other: Any) -> Probe:
    """The probe of two inputs of a run's first step."""

    def releases(rng: np.random.Generator) -> tuple[Floats, Floats]:
        sides = []
        state = rng.bit_generator.state
        for updates in (one, other):
            target.restart()
            rng.bit_generator.state = state
            sides.append(target(updates.copy(), rng))
        return sides[0], sides[1]

    return releases


def probes(target: Target, spread: float, seed: int) -> Iterator[Check]:
    """A check of each odd input that suits the target.

    Args:
        target: meets them.
        spread: standard deviation of what it releases of zeros.
        seed: of the random numbers.
    """
    for name, probe in {**_inputs(target, seed), **target.probes}.items():
        yield _probed(target, name, probe, spread, seed)


def _inputs(target: Target, seed: int) -> dict[str, Probe]:
    rows = target.rows
    own = Game("", np.abs(generator(seed, 4).standard_normal((1, target.dim))), rows)
    unit = own.canary / np.linalg.norm(own.canary, ORDERS[target.norm]) * target.clip_norm

    def beside(row: Floats, others: Floats = rows) -> Probe:
        return pair_of(target, *dataclasses.replace(own, canary=row, others=others).worlds(target))

    odd = unit.copy()
    found = {
        "tiny entries": beside(unit * _TINY),
        "half of the others missing": beside(unit, rows[: len(rows) // 2]),
        "no other record": beside(unit, rows[:0]),
        "three times as many": beside(unit, np.tile(rows, (3, 1))),
    }
    if len(rows):
        zero = np.vstack([rows, 0 * unit])
        found["zero update"] = pair_of(target, zero, np.vstack([rows, unit]))
        found["the same record twice"] = beside(unit, np.vstack([rows, unit]))
    if target.inputs != "clipped":
        whole = np.rint(3 * rows).astype(np.int64)
        one, other = dataclasses.replace(own, canary=np.ceil(3 * unit), others=whole).worlds(target)
        found["integers"] = pair_of(target, one.astype(np.int64), other.astype(np.int64))
        found["huge entries"] = beside(unit * _HUGE)
    if target.inputs == "any":
        for name, value in (("NaN", np.nan), ("infinity", np.inf)):
            odd = unit.copy()
            odd[0, 0] = value
            found[name] = beside(odd)
            found[f"{name} in every entry"] = beside(np.full_like(unit, value))
    return found


def _probed(target: Target, name: str, probe: Probe, spread: float, seed: int) -> Check:
    name, claim = f"input: {name}", "refused, or within the sensitivity"
    try:
        found = change(target, probe, seed)
    except Exception as error:  # noqa: BLE001 (whatever the target raises)
        return Check(name, "passed", claim, f"refused: {describe(error)}")
    if np.isinf(found.size):
        why = "the form of the release shows who took part"
        return Check(name, "failed", claim, "an array more, less or longer", why, "critical")
    if np.isnan(found.size):
        why = "one update makes the release useless, and shows in it for certain"
        return Check(name, "failed", claim, "NaN or infinity was released", why, "critical")
    if target.categories:
        return Check(name, "passed", claim, "a category was released")
    slack = 0.0 if found.exact else _FAR * spread * 1.5 * target.dim
    return _judged(name, target, found.size, slack, "" if found.exact else ", noise included")


def _judged(name: str, target: Target, size: float, slack: float, how: str) -> Check:
    claim = f"a change of at most {target.allowed:.4g} ({target.norm})"
    measured = f"{size:.4g}{how}"
    if size <= target.allowed * (1 + _SAME) + slack:
        return Check(name, "passed", claim, measured)
    ratio = size / target.allowed
    why = "the noise is for a smaller sensitivity than there is"
    severity = "negligible" if ratio < 1.01 else severity_of(ratio)
    return Check(name, "failed", claim, measured, why, severity)


def sensitivity(target: Target, games: list[Game], level: float, seed: int) -> Check:
    """The largest change between the two worlds of any game, exact or by averages."""
    name = "sensitivity"
    sizes, approximate = [0.0], [0.0]
    tests = len(games)
    reason = "batches are sampled"
    for game in games:
        step = int(np.abs(game.canary).sum(axis=1).argmax())
        pair = pair_of(target, *game.worlds(target, step))
        try:
            found = change(target, pair, seed)
            if found.exact and np.isfinite(found.size):
                sizes.append(found.size)
            elif target.noise_std is not None and target.sampling_rate == 1:
                approximate.append(_average(target, game, level / tests, seed))
        except Exception as error:  # noqa: BLE001 (whatever the target raises)
            reason = f"refused: {describe(error)}"
    if max(sizes) > 0 or max(approximate) > 0:
        exact = max(sizes) >= max(approximate)
        how = "" if exact else " at least, by averages: its noise does not cancel"
        return _judged(name, target, max(sizes + approximate), 0.0, how)
    claim = f"a change of at most {target.allowed:.4g} ({target.norm})"
    return Check(name, "unknown", claim, "not measured", reason)


def _average(target: Target, game: Game, level: float, seed: int) -> float:
    """A lower limit of the mean change along the direction that half of the runs show."""
    first = dataclasses.replace(target, steps=1)
    present, absent = observed(first, game, _AVERAGED, generator(seed, 5))
    half = _AVERAGED // 2
    shift = (present[:half, 0] - absent[:half, 0]).mean(axis=0)
    unit = shift / max(float(np.linalg.norm(shift, _DUAL[target.norm])), 1e-300)
    along = (present[half:, 0] - absent[half:, 0]) @ unit
    error = float(along.std(ddof=1)) / np.sqrt(half)
    return float(along.mean() - scipy.special.ndtri(1 - level) * error)


_DUAL: dict[str, float] = {"l1": np.inf, "l2": 2, "linf": 1}
