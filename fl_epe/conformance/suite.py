"""`conform`: every check that suits a target, with its level split beforehand."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy

from fl_epe.checks import Floats, check_probability
from fl_epe.conformance import probes
from fl_epe.conformance.claim import detectable
from fl_epe.conformance.game_checks import (
    NO_NOISE,
    Game,
    describe,
    games_of,
    judge_game,
    proving_trials,
)
from fl_epe.conformance.result import ConformanceResult
from fl_epe.conformance.target import Target
from fl_epe.noise import Check, check_noise, severity_of
from fl_epe.seeding import generator

# The share of the level of each kind of check.
_GAMES = 0.7
_NOISE = 0.2
_CLIP_RULE = 0.05
_PROBES = 0.03
_SENSITIVITY = 0.01
_RANDOM_ROUNDING = 0.01

# Indices of random streams.
_GAME_STREAM = 2
_NOISE_STREAM = 6
_CLIP_STREAM = 7
_TRIAL_STREAM = 8

# Largest number of runs that release noise alone, and number of such runs per trial of a game.
_MAX_NOISE_RUNS = 16_000
_NOISE_RUNS_PER_TRIAL = 4
# Largest number of calls whose noise is compared with that of every other call.
_MAX_COMPARED_CALLS = 4000
# If the noise of two entries differs by more than this ratio, entries have different scales.
_MAX_SCALE_RATIO = 1.1
# The theoretical ε may exceed the claimed one by this factor, which is rounding.
_ROUNDING_OF_CLAIM = 1.001

# `check_noise` runs twice: with the noise of all calls as that of one release, and with each call
# as a release. These checks are used from the first result, and all others from the second.
_OF_ALL_CALLS = (
    "scale",
    "scale by array",
    "shape",
    "tails",
    "grid",
    "values used once",
)
# Number of runs in which the clip norm should approach its quantile, and number of steps of each.
_CLIP_RUNS = 20
_CLIP_STEPS = 20


def conform(
    target: Target,
    *,
    trials: int | None = None,
    level: float = 0.01,
    seed: int = 0,
) -> ConformanceResult:
    """Check whether a mechanism does what its claim says.

    The probability that a correct mechanism fails any check is at most ``level``. Each random
    measurement has a share of the level; exact measurements need none.

    Args:
        target: the mechanism and its claim.
        trials: the number of runs of each world in each game (default: the target's).
        level: the probability of a false alarm of the whole suite.
        seed: the seed of the canaries, of the trials and, if the target takes a generator, of
            its noise.

    Raises:
        ValueError: if an argument is out of range, or the target fails with ordinary updates or
            with zeros.
    """
    if trials is not None:
        target = dataclasses.replace(target, trials=trials)
    check_probability("level", level)
    _check_target(target, seed)
    checks = []
    if target.theory is not None and target.epsilon is not None:
        checks.append(_accountant(target, target.theory, target.epsilon))
    quiet_entry = 0
    spread = 0.0
    noise = None
    game_share = _GAMES + _NOISE
    if not target.categories:
        noise = _noise_alone(target, seed)
        stds = noise.std(axis=(0, 1))
        quiet_entry = _quiet_entry(target, stds)
        spread = float(stds.max())
        game_share = _GAMES
    games = games_of(target, quiet_entry, seed)
    if noise is not None:
        checks += _checks_of_numbers(target, noise, games, level, seed)
    checks += probes.probes(target, spread, _PROBES * level, seed)
    if target.clip_rule is not None:
        checks.append(
            _clip_rule(target, *target.clip_rule, _CLIP_RULE * level, seed)
        )
    game_level = game_share * level / len(games)
    for i, game in enumerate(games):
        rng = generator(seed, _GAME_STREAM, i)
        checks.append(judge_game(target, game, game_level, rng))
    command = f"conform(target, trials={target.trials}, level={level}, seed={seed}).table()"
    if target.where:
        options = f"--trials {target.trials} --level {level} --seed {seed}"
        command = f"fl-epe conform {target.where} {options}"
    checks = [
        dataclasses.replace(
            check, reproduce=command if check.outcome == "failed" else ""
        )
        for check in checks
    ]
    return ConformanceResult(
        target=target.where,
        claimed=target.claimed_epsilon,
        delta=target.delta,
        checks=checks,
        detectable_epsilon=detectable(
            target, proving_trials(target.trials), game_level
        ),
        trials=target.trials,
        noise=target.law.capitalize(),
        categories=target.categories,
    )


def _checks_of_numbers(
    target: Target,
    noise: Floats,
    games: list[Game],
    level: float,
    seed: int,
) -> Iterator[Check]:
    """The checks of noise and sensitivity, of a target that releases no category.

    Args:
        target: the target and its claim.
        noise: the target's releases of zeros, shape (m, s, d).
        games: the games of the target, whose canaries are used.
        level: the probability of a false alarm of the whole suite.
        seed: the seed of the random numbers.
    """
    change, sensitivity_check = probes.sensitivity(
        target, games, _SENSITIVITY * level, seed
    )
    yield from _noise_checks(target, noise, change, seed, _NOISE * level)
    yield sensitivity_check
    rounding_check = probes.changed_at_random(
        target, noise, _RANDOM_ROUNDING * level, seed
    )
    if rounding_check is not None:
        yield rounding_check


def _check_target(target: Target, seed: int) -> None:
    """Raise a `ValueError` for a target that cannot be run with ordinary updates or zeros."""
    ordinary, _ = games_of(target, 0, seed)[0].worlds(target)
    for name, updates in (
        ("ordinary updates", ordinary),
        ("zeros", target.zeros),
    ):
        try:
            target.restart()
            released = target(updates.copy(), generator(seed, _TRIAL_STREAM))
        except Exception as error:
            wanted = f"Expected a target that handles {updates.shape} {name}"
            raise ValueError(f"{wanted}, got {describe(error)}.") from error
        has_one_category = not target.categories or released.size == 1
        if not (has_one_category and np.isfinite(released).all()):
            raise ValueError(
                f"Expected finite numbers or one category for {name}, got {released}."
            )


def _accountant(target: Target, theory: float, epsilon: float) -> Check:
    """Compare the claimed ε with the theoretical ε of the claimed noise."""
    claim = f"ε = {epsilon:.4g}"
    measured = f"{theory:.4g} by theory"
    if theory <= _ROUNDING_OF_CLAIM * epsilon:
        return Check("accountant", "passed", claim, measured)
    why = f"noise_multiplier={target.noise_multiplier} does not give the claimed ε"
    severity = severity_of(epsilon / theory)
    return Check("accountant", "failed", claim, measured, why, severity)


def _noise_alone(target: Target, seed: int) -> Floats:
    """The releases of runs with zeros as updates, shape (m, s, d)."""
    rng = generator(seed, _NOISE_STREAM)
    runs = []
    for _ in range(min(_MAX_NOISE_RUNS, _NOISE_RUNS_PER_TRIAL * target.trials)):
        target.restart()
        runs.append(
            [target(target.zeros.copy(), rng) for _ in range(target.steps)]
        )
    return np.array(runs)


def _noise_checks(
    target: Target, noise: Floats, change: float, seed: int, level: float
) -> Iterator[Check]:
    """Check that the noise is that of the claim, and fresh in each entry, step and call.

    Args:
        target: the target and its claim.
        noise: the target's releases of zeros, shape (m, s, d).
        change: the largest change of a release between neighbours; 0 if it is not known.
        seed: the seed of the random numbers.
        level: the probability of a false alarm.
    """
    rows = noise.reshape(-1, noise.shape[2])
    effect = probes.effect_of_updates(target, seed)
    fresh = _fresh_check(target, rows, effect)
    yield fresh
    largest_change = target.claimed_sensitivity
    if target.sensitivity is None and change > 0:
        largest_change = min(change, largest_change)
    std = target.noise_std(largest_change)
    if fresh.infinite or target.noise is None or std is None:
        return
    if effect.leaves_noise:
        yield from _law_checks(target, rows, std, level)
        return
    claim = f"the noise is {target.noise}"
    measured = "releases of zeros are not noise alone"
    why = (
        "what is released is not a sum plus its noise, as after rounding or averaging over steps,"
        " or noise does not cancel: games are played instead"
    )
    yield Check("noise: law", "unknown", claim, measured, why)


def _fresh_check(
    target: Target, rows: Floats, effect: probes.EffectOfUpdates
) -> Check:
    """Check that each release of zeros has fresh noise."""
    distinct = len(np.unique(rows, axis=0))
    name = "noise: fresh in each call"
    claim = "no two releases share their noise"
    measured = f"{distinct} different ones of {len(rows)} releases of zeros"
    if distinct == 1 and effect.changes_release:
        return Check(
            name, "failed", claim, measured, NO_NOISE, "critical", infinite=True
        )
    is_noise = target.noise is not None and effect.leaves_noise
    if is_noise and distinct < len(rows):
        why = "the difference of two releases with the same noise has none: ε is infinite"
        return Check(name, "failed", claim, measured, why, "critical")
    return Check(name, "passed", claim, measured)


def _law_checks(
    target: Target, rows: Floats, std: float, level: float
) -> Iterator[Check]:
    """Check that noise has the law of the claim.

    Args:
        target: the target and its claim.
        rows: the noise of the calls, shape (m, d).
        std: the standard deviation of an entry that the claim needs.
        level: the probability of a false alarm.
    """
    spread = rows.std(axis=0)
    is_uneven = spread.max() > _MAX_SCALE_RATIO * spread.min()
    if is_uneven and target.noise_multiplier is None:
        # Each entry has noise for the change of this entry: compare shapes, not scales.
        rows = rows[:, spread > 0] / spread[spread > 0]
        std = 1.0
    cuts: Any = []
    if rows.shape[1] == target.dim:
        cuts = np.cumsum(target.arrays)[:-1]
    by_call = [np.split(row, cuts) for row in rows[:_MAX_COMPARED_CALLS]]
    all_calls = [np.ravel(part) for part in np.split(rows, cuts, axis=1)]
    of_calls, of_all_calls = (
        check_noise(releases, std, distribution=target.law, level=level / 2)
        for releases in (by_call, [all_calls])
    )
    checks = [check for check in of_calls if check.name not in _OF_ALL_CALLS]
    checks += [check for check in of_all_calls if check.name in _OF_ALL_CALLS]
    for check in checks:
        severity = check.severity
        if check.name == "tails" and check.outcome == "failed":
            severity = "critical"  # some values are released in only one world
        yield dataclasses.replace(
            check, name=f"noise: {check.name}", severity=severity
        )


def _quiet_entry(target: Target, stds: Floats) -> int:
    """The index of an entry of the array with the least noise."""
    if len(stds) != target.dim:
        return 0
    ends = np.cumsum(target.arrays)
    means = [
        stds_of_array.mean() for stds_of_array in np.split(stds, ends[:-1])
    ]
    return int(ends[np.argmin(means)]) - 1


def _clip_rule(
    target: Target,
    quantile: float,
    read: Callable[[], float],
    level: float,
    seed: int,
) -> Check:
    """Check that the clip norm approaches its quantile in at least half of the runs."""
    rng = generator(seed, _CLIP_STREAM)
    norms = np.linalg.norm(target.rows, axis=1)
    log_goal = np.log(np.quantile(norms, quantile))
    diverged = 0
    for _ in range(_CLIP_RUNS):
        target.restart()
        before = abs(np.log(read()) - log_goal)
        for _ in range(_CLIP_STEPS):
            target(target.rows.copy(), rng)
        if abs(np.log(read()) - log_goal) > before:
            diverged += 1
    name = "clip norm"
    claim = f"comes nearer to the {quantile:g} quantile of norms"
    measured = f"went away from it in {diverged} of {_CLIP_RUNS} runs of {_CLIP_STEPS} steps"
    if scipy.stats.binom.sf(diverged - 1, _CLIP_RUNS, 0.5) > level:
        return Check(name, "passed", claim, measured)
    why = (
        "no leak, as noise is proportional to the clip norm, but training gets too much noise, or"
        " its updates are clipped to almost nothing"
    )
    return Check(name, "failed", claim, measured, why, "theoretical")
