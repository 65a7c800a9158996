"""`conform`: every check that suits a target, with its level split beforehand."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import scipy

from fl_epe.checks import Floats, check_probability
from fl_epe.conformance import probes
from fl_epe.conformance.claim import Profile, detectable
from fl_epe.conformance.game_checks import (
    NO_NOISE,
    describe,
    games_of,
    judge_game,
    quarters,
)
from fl_epe.conformance.result import ConformanceResult
from fl_epe.conformance.target import Target
from fl_epe.noise import Check, check_noise, severity_of
from fl_epe.seeding import generator

_GAMES, _NOISE, _RULE = 0.7, 0.2, 0.05  # shares of the level
_PROBES, _SENSITIVITY, _RANDOM = 0.03, 0.01, 0.01
_RUNS, _CALLS = (
    16_000,
    4000,
)  # of noise alone, at most, and those compared with each other
_TIMES = 4  # as many runs of noise alone as trials of a game
_OTHER = 1.1  # times the noise of another entry, from which on entries have noise of their own
_OF_ALL = ("scale", "scale by array", "shape", "tails", "grid", "values used once")
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
    target = target if trials is None else dataclasses.replace(target, trials=trials)
    check_probability("level", level)
    _try(target, seed)
    profile, found = Profile.of(target), list(_accounted(target))
    quiet, spread, alone = 0, 0.0, None
    if not target.categories:
        alone = _noise_alone(target, seed)
        quiet, spread = _quietest(target, alone.std(axis=(0, 1)))
    games = games_of(target, quiet, seed)
    if alone is not None:
        change, sensitive = probes.sensitivity(
            target, games, profile, _SENSITIVITY * level, seed
        )
        found += [
            *_noise_checks(target, alone, change, seed, _NOISE * level),
            sensitive,
        ]
        found += probes.changed_at_random(target, alone, _RANDOM * level, seed)
    found += probes.probes(target, spread, profile, _PROBES * level, seed)
    if target.clip_rule is not None:
        found.append(_clip_rule(target, *target.clip_rule, _RULE * level, seed))
    share = _GAMES if alone is not None else _GAMES + _NOISE
    each = share * level / len(games)
    for i, game in enumerate(games):
        found.append(judge_game(target, game, profile, each, generator(seed, 2, i)))
    again = (
        f"conform(target, trials={target.trials}, level={level}, seed={seed}).table()"
    )
    if target.where:
        options = f"--trials {target.trials} --level {level} --seed {seed}"
        again = f"fl-epe conform {target.where} {options}"
    shown = [
        dataclasses.replace(x, reproduce=again) if x.outcome == "failed" else x
        for x in found
    ]
    proving = target.trials - quarters(target.trials)[1]
    least = detectable(target, profile, proving, each)
    return ConformanceResult(
        target.where,
        target.claimed,
        target.delta,
        shown,
        least,
        target.trials,
        target.law.capitalize(),
        target.categories,
    )


def _try(target: Target, seed: int) -> None:
    """Refuse a target that cannot be run at all: refusing odd inputs is right, all is not."""
    present = games_of(target, 0, seed)[0].worlds(target)[0]
    for name, updates in (("ordinary updates", present), ("zeros", target.zeros)):
        try:
            target.restart()
            released = target(updates.copy(), generator(seed, 8))
        except Exception as error:
            wanted = (
                f"Expected a target that releases something of {updates.shape} {name}"
            )
            raise ValueError(f"{wanted}, got {describe(error)}.") from error
        if not np.isfinite(released).all() or (
            target.categories and released.size != 1
        ):
            raise ValueError(
                f"Expected finite numbers or one category of {name}, got {released}."
            )


def _accounted(target: Target) -> Iterator[Check]:
    """The claimed ε against that of the claimed noise by theory."""
    if target.theory is None or target.epsilon is None:
        return
    claim, measured = f"ε = {target.epsilon:.4g}", f"{target.theory:.4g} by theory"
    if target.theory <= 1.001 * target.epsilon:
        yield Check("accountant", "passed", claim, measured)
    else:
        why = f"noise_multiplier={target.noise_multiplier} does not give the claimed ε"
        severity = severity_of(target.epsilon / target.theory)
        yield Check("accountant", "failed", claim, measured, why, severity)


def _noise_alone(target: Target, seed: int) -> Floats:
    """What runs release of zeros, shape (m, s, d)."""
    rng, runs = generator(seed, 6), []
    for _ in range(min(_RUNS, _TIMES * target.trials)):
        target.restart()
        runs.append([target(target.zeros.copy(), rng) for _ in range(target.steps)])
    return np.array(runs)


def _noise_checks(
    target: Target, noise: Floats, change: float, seed: int, level: float
) -> Iterator[Check]:
    """Whether the noise is that of the claim, and fresh in each entry, step and call.

    Args:
        target: with its claim.
        noise: what it releases of zeros, shape (m, s, d).
        change: of a release between neighbours that was seen, 0 if none was.
        seed: of random numbers.
        level: of a false alarm.
    """
    rows = noise.reshape(-1, noise.shape[2])
    different = len(np.unique(rows, axis=0))
    added = probes.added(target, seed)
    name, claim = "noise: fresh in each call", "no two releases share their noise"
    measured = f"{different} different ones of {len(rows)} releases of zeros"
    again = target.noise is not None and added.to_noise and different < len(rows)
    if different == 1 and added.moves:
        yield Check(
            name, "failed", claim, measured, NO_NOISE, "critical", infinite=True
        )
        return
    if again:
        why = (
            "the difference of two releases with the same noise has none: ε is infinite"
        )
        yield Check(name, "failed", claim, measured, why, "critical")
    else:
        yield Check(name, "passed", claim, measured)
    most = target.allowed
    if target.sensitivity is None and change > 0:
        most = min(change, most)
    std, spread = target.noise_std(most), rows.std(axis=0)
    if target.noise is None or std is None:
        return
    if not added.to_noise:
        claim = f"the noise is {target.noise}"
        why = (
            "what is released is not a sum and its noise alone, as after rounding or averaging"
            " over steps, or noise does not cancel: games are played instead"
        )
        yield Check(
            "noise: law", "unknown", claim, "releases of zeros are not the noise", why
        )
        return
    if target.noise_multiplier is None and spread.max() > _OTHER * spread.min():
        rows = (
            rows[:, spread > 0] / spread[spread > 0]
        )  # each entry has noise for its own change
        std, spread = 1.0, spread[spread > 0]
    cuts = np.cumsum(target.arrays)[:-1] if target.dim == rows.shape[1] else []  # type: ignore[var-annotated]
    by_call = [np.split(row, cuts) for row in rows[:_CALLS]]
    whole = [np.ravel(part) for part in np.split(rows, cuts, axis=1)]
    each, of_all = (
        check_noise(parts, std, distribution=target.noise, level=level / 2)
        for parts in (by_call, [whole])
    )
    found = [check for check in each if check.name not in _OF_ALL]
    found += [check for check in of_all if check.name in _OF_ALL]
    for one in found:
        short = one.name == "tails" and one.outcome == "failed"  # in one world alone
        severity = "critical" if short else one.severity
        yield dataclasses.replace(one, name=f"noise: {one.name}", severity=severity)


def _quietest(target: Target, spread: Floats) -> tuple[int, float]:
    """An entry of the array with the least noise, and the deviation of all noise."""
    ends = np.cumsum(target.arrays)
    if len(spread) != target.dim:
        return 0, float(spread.max())
    stds = [part.mean() for part in np.split(spread, ends[:-1])]
    return int(ends[np.argmin(stds)]) - 1, float(spread.max())


def _clip_rule(
    target: Target, quantile: float, read: Callable[[], float], level: float, seed: int
) -> Check:
    """Whether the clip norm comes nearer to its quantile in more than half of the runs."""
    rng, strayed = generator(seed, 7), 0
    goal = np.log(np.quantile(np.linalg.norm(target.rows, axis=1), quantile))
    for _ in range(_CLIP_RUNS):
        target.restart()
        before = abs(np.log(read()) - goal)
        for _ in range(_CLIP_STEPS):
            target(target.rows.copy(), rng)
        strayed += abs(np.log(read()) - goal) > before
    name, claim = "clip norm", f"comes nearer to the {quantile:g} quantile of norms"
    measured = (
        f"went away from it in {strayed} of {_CLIP_RUNS} runs of {_CLIP_STEPS} steps"
    )
    if scipy.stats.binom.sf(strayed - 1, _CLIP_RUNS, 0.5) > level:
        return Check(name, "passed", claim, measured)
    why = "no leak, as noise follows the clip norm, but training drowns in noise or stands still"
    return Check(name, "failed", claim, measured, why, "theoretical")
