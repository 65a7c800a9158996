"""What odd inputs do: each is refused by an error, or moves what is released within the claim.

Both inputs meet the same random numbers, so that noise which does not depend on the updates
cancels and the change is exact. Where it does not cancel, as of a target that draws its own noise,
a change counts as too large only if it is far beyond the noise too.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fl_epe.checks import Floats
from fl_epe.conformance.games import Game, describe
from fl_epe.conformance.target import ORDERS, Pair, Target
from fl_epe.noise import Check, severity_of
from fl_epe.seeding import generator

_STREAMS = 3  # of random numbers that a change must not depend on
_SAME = 1e-6  # of what is released: rounding to float32
_FAR = 15.0  # deviations of the noise, for each entry
_HUGE, _TINY = 1e30, 1e-300


def change(target: Target, pair: Pair, seed: int) -> tuple[float, bool]:
    """How far the releases of two inputs are apart, and whether noise cancelled.

    The size is in the claim's norm; NaN if something that is not finite was released, infinite if
    not the same arrays were.
    """

    def released(updates: Any, stream: int) -> Floats:
        target.restart()
        with np.errstate(all="ignore"):
            return target(updates.copy(), generator(seed, 3, stream))

    sides = [[released(updates, i) for updates in pair] for i in range(_STREAMS)]
    if len({x.shape for side in sides for x in side}) > 1:
        return np.inf, True
    changes = [one - other for one, other in sides]
    if not np.isfinite(changes).all():
        return np.nan, True
    stray = max(float(np.abs(x - changes[0]).max()) for x in changes)
    sizes = [float(np.linalg.norm(x, ORDERS[target.norm])) for x in changes]
    exact = stray <= _SAME * float(np.abs(sides).max())
    return (sizes[0], True) if exact else (min(sizes), False)


def probes(target: Target, spread: float, seed: int) -> Iterator[Check]:
    """A check of each odd input that suits the target.

    Args:
        target: meets them.
        spread: standard deviation of what it releases of zeros.
        seed: of the random numbers.
    """
    for odd, pair in {**_inputs(target, seed), **target.probes}.items():
        name, claim = f"input: {odd}", "refused, or within the sensitivity"
        try:
            size, exact = change(target, pair, seed)
        except Exception as error:  # noqa: BLE001 (whatever the target raises)
            yield Check(name, "passed", claim, f"refused: {describe(error)}")
            continue
        if not np.isfinite(size):
            form = np.isinf(size)
            words = "an array more, less or longer was" if form else "NaN or infinity was"
            why = "what is released shows for certain who took part"
            yield Check(name, "failed", claim, f"{words} released", why, "critical")
        elif target.categories:
            yield Check(name, "passed", claim, "a category was released")
        else:
            slack = 0.0 if exact else _FAR * spread * target.dim
            yield _judged(name, target, size, slack, "" if exact else ", noise included")


def _inputs(target: Target, seed: int) -> dict[str, Pair]:
    rows, dim = target.rows, target.dim
    drawn = np.abs(generator(seed, 4).standard_normal((1, dim)))
    unit = drawn / np.linalg.norm(drawn, ORDERS[target.norm]) * target.clip_norm

    def beside(row: Floats, others: Any = rows) -> Pair:
        return Game("", row, others).worlds(target)

    found = {
        "tiny entries": beside(unit * _TINY),
        "half of the others missing": beside(unit, rows[: len(rows) // 2]),
        "no other record": beside(unit, rows[:0]),
        "three times as many": beside(unit, np.tile(rows, (3, 1))),
        "zero update": (np.vstack([rows, 0 * unit]), np.vstack([rows, unit])),
        "the same record twice": beside(unit, np.vstack([rows, unit])),
    }
    if target.inputs != "clipped":
        whole = np.ceil(3 * unit), np.rint(3 * rows)
        one, other = beside(*whole)
        found["integers"] = one.astype(np.int64), other.astype(np.int64)
        found["huge entries"] = beside(unit * _HUGE)
    if target.inputs == "any":
        for name, value in (("NaN", np.nan), ("infinity", np.inf)):
            found[name] = beside(np.where(np.arange(dim) == 0, value, unit))
            found[f"{name} in every entry"] = beside(np.full_like(unit, value))
    return found


def _judged(name: str, target: Target, size: float, slack: float, how: str) -> Check:
    claim = f"a change of at most {target.allowed:.4g} ({target.norm})"
    if size <= target.allowed * (1 + _SAME) + slack:
        return Check(name, "passed", claim, f"{size:.4g}{how}")
    why = "the noise is for a smaller sensitivity than there is"
    return Check(name, "failed", claim, f"{size:.4g}{how}", why, severity_of(target.allowed / size))


def sensitivity(target: Target, games: list[Game], seed: int) -> Check:
    """The largest change between the two worlds of any game, where the noise cancels."""
    largest, reason = 0.0, "batches are sampled, or noise does not cancel: games are played instead"
    for game in games:
        step = int(np.abs(game.canary).sum(axis=1).argmax())
        try:
            size, exact = change(target, game.worlds(target, step), seed)
            largest = max(largest, size if exact else 0.0)
        except Exception as error:  # noqa: BLE001 (whatever the target raises)
            reason = f"refused: {describe(error)}"
    if largest:
        return _judged("sensitivity", target, largest, 0.0, "")
    return Check("sensitivity", "unknown", f"{target.allowed:.4g} at most", "nothing", reason)
