"""`conform`: every check that suits a target, with its level split beforehand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from fl_epe.checks import check_probability, raise_invalid
from fl_epe.conformance import noise_checks, probes
from fl_epe.conformance.claim import Profile, epsilon_of, limits
from fl_epe.conformance.games import ORDINARY, describe, games_of, play
from fl_epe.conformance.result import ConformanceResult
from fl_epe.conformance.target import Target
from fl_epe.noise import Check
from fl_epe.seeding import generator

_GAMES, _NOISE, _REST = 0.7, 0.2, 0.1  # shares of the level
_LEAST = 40  # trials
_CLOSE = 0.01  # relative difference of two accountants
_CLIP_RUNS, _CLIP_STEPS = 20, 20


def conform(
    target: Target, *, trials: int | None = None, level: float = 0.01, seed: int = 0
) -> ConformanceResult:
    """Check whether a mechanism does what its claim says.

    A mechanism that is right fails with probability ``level`` at most, all checks together: what
    is measured at random has a share of it each, and what is exact needs none.

    Args:
        target: the mechanism and its claim.
        trials: runs of each world in each game; those of the target where ``None``.
        level: probability of a false alarm of the whole suite.
        seed: of canaries, trials and, where the target takes a generator, its noise.

    Raises:
        ValueError: if an argument is out of range, or the target fails with ordinary updates.
    """
    count = target.trials if trials is None else trials
    if count < _LEAST:
        raise_invalid("trials", count, f">= {_LEAST}")
    check_probability("level", level)
    target = dataclasses.replace(target, trials=count)
    _try(target, seed)
    profile = Profile.of(target)
    alone = np.array([]) if target.categories else noise_checks.noise_alone(target, seed)
    found = list(_accounted(target))
    quiet, spread = 0, 0.0
    if isinstance(alone, Check):
        found.append(alone)
    elif alone.size:
        found += noise_checks.checks(target, alone, _NOISE * level)
        quiet, spread = _quietest(target, alone)
    games = games_of(target, quiet, seed)
    if not target.categories:
        found.append(probes.sensitivity(target, games, _REST * level / 2, seed))
    found += probes.probes(target, spread, seed)
    if target.clip_rule is not None:
        found.append(_clip_rule(target, _REST * level / 2, seed))
    each = _GAMES * level / len(games)
    found += [play(target, game, profile, count, each, seed + i) for i, game in enumerate(games)]
    rates = limits(0, 0, count - 2 * (count // 4), each)
    largest = float(epsilon_of(*rates, target.delta))
    again = _command(target, count, level, seed)
    shown = [
        dataclasses.replace(one, reproduce=again) if one.outcome == "failed" else one
        for one in found
    ]
    return ConformanceResult(target.where, target.claimed, target.delta, shown, largest, count)


def _try(target: Target, seed: int) -> None:
    """Refuse a target that cannot be run at all: refusing odd inputs is right, all is not."""
    game = next(g for g in games_of(target, 0, seed) if g.name == ORDINARY)
    try:
        for updates in game.worlds(target):
            target.restart()
            released = target(updates.copy(), generator(seed, 8))
    except Exception as error:
        message = f"Expected a target that releases something of {game.worlds(target)[0].shape}"
        raise ValueError(f"{message} ordinary updates, got {describe(error)}") from error
    if not np.isfinite(released).all() or (target.categories and released.size != 1):
        raise ValueError(f"Expected finite numbers or one category to be released, got {released}.")


def _command(target: Target, trials: int, level: float, seed: int) -> str:
    options = {"trials": trials, "level": level, "seed": seed}
    if target.where:
        return " ".join(
            ["fl-epe conform", target.where, *(f"--{k} {v}" for k, v in options.items())]
        )
    return f"conform(target, {', '.join(f'{k}={v}' for k, v in options.items())}).table()"


def _accounted(target: Target) -> Iterator[Check]:
    """The claimed ε against that of the claimed noise by theory."""
    if target.theory is None or target.epsilon is None:
        return
    claim, measured = f"ε = {target.epsilon:.4g}", f"{target.theory:.4g} by theory"
    if target.epsilon >= target.theory * (1 - _CLOSE):
        yield Check("accountant", "passed", claim, measured)
        return
    ratio = target.theory / max(target.epsilon, 1e-12)
    why = f"noise_multiplier={target.noise_multiplier} does not give the claimed ε"
    severity = "critical" if ratio >= 2 else "theoretical"
    yield Check("accountant", "failed", claim, measured, why, severity)  # type: ignore[arg-type]


def _quietest(target: Target, alone: np.ndarray) -> tuple[int, float]:
    """An entry of the array with the least noise, and the deviation of all noise."""
    spread = alone.std(axis=(0, 1))
    if len(spread) != target.dim:
        return 0, float(spread.max())
    ends = np.cumsum(target.arrays)
    stds = [float(part.mean()) for part in np.split(spread, ends[:-1])]
    return int(ends[int(np.argmin(stds))]) - 1, float(spread.max())


def _clip_rule(target: Target, level: float, seed: int) -> Check:
    """Whether the clip norm comes nearer to its quantile in more than half of the runs."""
    quantile, read = target.clip_rule  # type: ignore[misc]
    norms = np.linalg.norm(target.rows, axis=1)
    goal, rng, strayed = math.log(float(np.quantile(norms, quantile))), generator(seed, 7), 0
    for _ in range(_CLIP_RUNS):
        target.restart()
        before = abs(math.log(read()) - goal)
        for _ in range(_CLIP_STEPS):
            target(target.rows.copy(), rng)
        strayed += abs(math.log(read()) - goal) > before
    chance = sum(math.comb(_CLIP_RUNS, k) for k in range(strayed, _CLIP_RUNS + 1)) / 2**_CLIP_RUNS
    name, claim = "clip norm", f"comes nearer to the {quantile:g} quantile of norms"
    measured = f"went away from it in {strayed} of {_CLIP_RUNS} runs of {_CLIP_STEPS} steps"
    if chance > level:
        return Check(name, "passed", claim, measured)
    why = "no leak, as noise follows the clip norm, but training drowns in noise or stands still"
    return Check(name, "failed", claim, measured, why, "theoretical")
