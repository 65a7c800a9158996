"""What odd inputs do: each is refused by an error, or moves what is released within the claim.

Both inputs meet the same random numbers, so that noise which does not depend on the updates
cancels and the change is exact. Where it does not cancel, as of a target that draws its own noise,
a change counts as too large only if it is far beyond the noise too.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy

from fl_epe.accounting import unknown_expected_score_epsilon
from fl_epe.checks import Floats
from fl_epe.conformance.claim import Profile, limits
from fl_epe.conformance.game_checks import Game, describe
from fl_epe.conformance.target import Pair, Target
from fl_epe.noise import Check, severity_of
from fl_epe.seeding import generator

_STREAMS = 20  # of random numbers that a change must not depend on
_RUNS = 400  # of a world that seems to have no noise
_MOST_RUNS = 4000  # of a world whose noise is measured
_TIMES = 20  # as many updates, so that a sum is large beside its noise
_SAME = 1e-6  # of what is released: rounding to float32
_SUMMED = 100  # times that, of a sum of so many updates in float32
_FAR = 15.0  # deviations of the noise, for each entry
_LONG = 100.0  # clip norms
_ERRORS = 6.0  # standard errors
_LEAST_RUNS = 10  # for each entry, to know the covariance of their noise
_UNEVEN = 0.7236  # of the clip norm, so that no sum is a multiple of what is rounded to
_REPLACED = (
    "zero update"  # in the place of another: removed, and another added, of two changes
)
_COARSE = 10.0  # roundings, from which on a grid is one
_SHORT = 0.999  # of the clip norm
_BET = 0.3
_FEW, _MANY = 0.1, 0.5  # of values that differ
_HUGE, _TINY = 1e30, 1e-300


def change(target: Target, pair: Pair, seed: int) -> tuple[float, bool]:
    """How far the releases of two inputs are apart, and whether noise cancelled.

    The size is in the claim's norm; NaN if something that is not finite was released, infinite if
    not the same arrays were.
    """
    sides = [[released(target, x, seed, i) for x in pair] for i in range(_STREAMS)]
    if len({x.shape for side in sides for x in side}) > 1:
        return np.inf, True
    changes = np.array([one - other for one, other in sides])
    if not np.isfinite(changes).all():
        return np.nan, True
    sizes = np.linalg.norm(changes, target.order, axis=1)
    exact = bool(np.abs(changes - changes[0]).max() <= _SAME * np.abs(sides).max())
    return float(sizes[0] if exact else sizes.min()), exact


def released(target: Target, updates: Any, seed: int, stream: int) -> Floats:
    """What a first step releases with this stream of random numbers."""
    return _run(target, [updates], seed, stream)[0]


def _run(target: Target, updates: list[Any], seed: int, stream: int) -> list[Floats]:
    """What each step of a run releases with this stream of random numbers."""
    rng = generator(seed, 3, stream)
    target.restart()
    with np.errstate(all="ignore"):
        return [target(one.copy(), rng) for one in updates]


def _together(
    target: Target, pair: tuple[list[Any], list[Any]], seed: int, count: int
) -> Floats | None:
    """What two runs release with the same random numbers, or ``None`` if they are refused.

    Args:
        target: releases.
        pair: the updates of each step of both.
        seed: of random numbers.
        count: of their streams, m.

    Returns:
        Shape (m, 2, s, d).
    """
    try:
        return np.array(
            [[_run(target, run, seed, i) for run in pair] for i in range(count)]
        )
    except Exception:  # noqa: BLE001 (whatever the target raises)
        return None


@dataclasses.dataclass(frozen=True)
class Added:
    """What larger updates in a first step do to the releases of a run.

    Attributes:
        to_noise: whether they are added to noise that stays the same, so that a release of zeros is
            the noise. Not so where they change nothing, or later steps as well; where a sum and its
            noise are clamped, rounded or multiplied, also by a matrix; or where the target draws
            its own noise.
        moves: whether they change anything.
    """

    to_noise: bool
    moves: bool


def added(target: Target, seed: int) -> Added:
    """Compare runs with zeros and with equal updates, with the same random numbers."""
    zeros = target.zeros
    if target.others is None:
        zeros = np.repeat(zeros, _TIMES, axis=0)
    drawn = np.abs(generator(seed, 9).standard_normal(target.dim)) + _UNEVEN
    length = np.linalg.norm(drawn, target.order)
    larger = drawn * (_UNEVEN * target.clip_norm / length)
    updates = np.repeat(larger[None], len(zeros), axis=0)
    later = [zeros] * (target.steps - 1)
    runs = _together(target, ([updates, *later], [zeros, *later]), seed, _STREAMS)
    if runs is None:
        return Added(to_noise=False, moves=True)
    changes = runs[:, 0, 0] - runs[:, 1, 0]
    slack = _SAME * np.abs(runs).max()
    moves = bool(np.abs(changes).max() > slack)
    carried = np.abs(runs[:, 0, 1:] - runs[:, 1, 1:]).max(initial=0.0) > slack
    if not moves or carried or _on_a_grid(runs, slack):
        return Added(to_noise=False, moves=moves)
    same = np.ptp(changes, axis=0).max() <= slack
    if changes.shape[1] == target.dim > 1:
        # What is mixed or added up along an array has correlated noise. With sampling, each array
        # may have moved by as many updates as a batch happens to have.
        cuts = np.cumsum(target.arrays)[:-1]
        parts = zip(
            np.split(changes, cuts, axis=1), np.split(larger, cuts), strict=True
        )
        apart = [part - np.outer(part @ row / (row @ row), row) for part, row in parts]
        even = max(np.abs(part).max() for part in apart) <= _SUMMED * slack
        same = even and (same or target.sampling_rate < 1)
    return Added(bool(same), moves)


def _on_a_grid(values: Floats, slack: float) -> bool:
    """Whether all values are multiples of one that is far above rounding (Euclid's algorithm)."""

    def common(unit: float, value: float) -> float:
        while value > slack:
            unit, value = value, unit % value
        return unit

    return bool(functools.reduce(common, np.unique(np.abs(values))) > _COARSE * slack)


def _without_noise(
    name: str, target: Target, pair: Pair, profile: Profile, seed: int, level: float
) -> Check | None:
    """A failure, if a world without any noise is told apart from the other one more than claimed.

    Args:
        name: of the check.
        target: releases.
        pair: the updates of both worlds.
        profile: what is claimed.
        seed: of the random numbers.
        level: of a false alarm.
    """
    for one, other in (pair, pair[::-1]):
        first = released(target, one, seed, 0)
        runs = range(1, 1 + _RUNS)
        if any(np.any(released(target, one, seed, i) != first) for i in runs):
            continue
        apart = sum(
            bool(np.any(released(target, other, seed, i) != first)) for i in runs
        )
        if profile.excess(*limits(0, _RUNS - apart, _RUNS, level / 2)) > 0:
            measured = (
                f"told apart in {apart} of {_RUNS} runs, as one of the two has no noise"
            )
            why = "no noise is added to such updates: ε is infinite"
            claim = "each world has noise"
            return Check(
                name, "failed", claim, measured, why, "critical", infinite=True
            )
    return None


def probes(
    target: Target, spread: float, profile: Profile, level: float, seed: int
) -> Iterator[Check]:
    """A check of each odd input that suits the target.

    Args:
        target: meets them.
        spread: standard deviation of what it releases of zeros.
        profile: what is claimed.
        level: probability of a false alarm of all.
        seed: of the random numbers.
    """
    pairs = {**_inputs(target, seed), **target.probes}
    for odd, pair in pairs.items():
        name, claim = f"input: {odd}", "refused, or within the sensitivity"
        try:
            size, exact = change(target, pair, seed)
        except Exception as error:  # noqa: BLE001 (whatever the target raises)
            yield Check(name, "passed", claim, f"refused: {describe(error)}")
            continue
        if np.isnan(size):
            why = (
                "such an update is neither refused nor clipped: it ends the training, and shows"
                " that its sender took part, unless the caller refuses it (inputs='finite')"
            )
            yield Check(name, "not handled", claim, "NaN or infinity was released", why)
        elif np.isinf(size):
            why = "what is released shows for certain who took part"
            words = "an array more, less or longer was released"
            yield Check(name, "failed", claim, words, why, "critical")
        elif check := _without_noise(
            name, target, pair, profile, seed, level / len(pairs)
        ):
            yield check
        elif target.categories:
            yield Check(name, "passed", claim, "a category was released")
        else:
            slack = 0.0 if exact else _FAR * spread * target.dim
            replaced = odd == _REPLACED and target.adjacency == "add-or-remove"
            yield _judged(name, target, pair, size, slack, seed, 1 + replaced)


def _inputs(target: Target, seed: int) -> dict[str, Pair]:
    rows, dim = target.rows, target.dim
    drawn = np.abs(generator(seed, 4).standard_normal((1, dim)))
    unit = drawn / np.linalg.norm(drawn, target.order) * target.clip_norm

    def beside(row: Floats, others: Any = rows) -> Pair:
        return Game("", row, others).worlds(target)

    found = {
        "tiny entries": beside(unit * _TINY),
        "half of the others missing": beside(unit, rows[: len(rows) // 2]),
        "no other record": beside(unit, rows[:0]),
        "three times as many": beside(unit, np.tile(rows, (3, 1))),
        _REPLACED: (np.vstack([rows, 0 * unit]), np.vstack([rows, unit])),
        "the same record twice": beside(unit, np.vstack([rows, unit])),
    }
    if not target.has_clipped_inputs:
        whole = np.ceil(3 * unit), np.rint(3 * rows)
        one, other = beside(*whole)
        found["integers"] = one.astype(np.int64), other.astype(np.int64)
        found["huge entries"] = beside(unit * _HUGE)
        for number, end in enumerate(np.cumsum(target.arrays)):
            alone = np.where(np.arange(dim) == end - 1, _LONG * target.clip_norm, 0.0)
            found[f"array {number + 1} alone"] = beside(alone[None])
    if target.inputs == "any":
        for name, value in (("NaN", np.nan), ("infinity", np.inf)):
            found[name] = beside(np.where(np.arange(dim) == 0, value, unit))
            found[f"{name} in every entry"] = beside(np.full_like(unit, value))
    return found


def _judged(
    name: str,
    target: Target,
    pair: Pair,
    size: float,
    slack: float,
    seed: int,
    apart: int = 1,
) -> Check:
    """Whether a change is within the claim, or as much larger as the noise is.

    Args:
        name: of the check.
        target: with its claim.
        pair: the inputs.
        size: of the change between their releases.
        slack: part of it that noise may have.
        seed: of random numbers.
        apart: number of neighbours from one input to the other.
    """
    allowed = apart * target.allowed
    claim = f"a change of at most {allowed:.4g} ({target.norm})"
    how = ", noise included" if slack else ""
    if size <= allowed * (1 + _SAME) + slack:
        return Check(name, "passed", claim, f"{size:.4g}{how}")
    surely = likely = size / allowed
    if not slack:
        surely, likely = (times / apart for times in _over_noise(target, pair, seed))
    if np.isnan(likely):
        why = "no law of the noise and no sensitivity is claimed: games are played instead"
        return Check(name, "unknown", claim, f"{size:.4g}", why)
    if surely > 1 + _SAME:
        why = "the noise is for a smaller sensitivity than there is"
        return Check(
            name, "failed", claim, f"{size:.4g}{how}", why, severity_of(1 / likely)
        )
    if likely <= 1 + _SAME:
        return Check(name, "passed", claim, f"{size:.4g}, and noise is as much larger")
    why = (
        "so few releases do not tell whether the noise is as much larger: "
        "games are played instead"
    )
    return Check(name, "unknown", claim, f"{size:.4g}", why)


def _over_noise(target: Target, pair: Pair, seed: int) -> tuple[float, float]:
    """A change over that which the claim allows, in units of the noise: surely, and likely.

    A release that is scaled after noise was added has larger changes and as much more noise. The
    first has as much noise as there may be, the second more than is claimed only where there surely
    is. NaN if neither noise nor sensitivity is claimed.
    """
    needed = target.noise_std(target.allowed)
    if target.multiplier is not None:
        needed = target.multiplier * target.allowed
    runs = min(max(_RUNS, target.trials), _MOST_RUNS)
    alone = np.array([released(target, pair[1], seed, i) for i in range(runs)])
    changes = released(target, pair[0], seed, 0) - alone[0]
    norm = functools.partial(np.linalg.norm, ord=target.order)
    if needed is None:
        times = (
            math.nan
            if target.sensitivity is None
            else float(norm(changes)) / target.allowed
        )
        return times, times
    error = _ERRORS / math.sqrt(2 * runs)
    noise = alone.std(axis=0)
    most = np.maximum(noise * (1 + error), needed)
    larger = noise * (1 - error) > needed
    surely = float(norm(changes * needed / most))
    likely = float(norm(np.where(larger, changes * needed / most, changes)))
    if target.norm == "l2":
        mixed = _whitened(changes, alone) * needed
        surely = min(surely, mixed * (1 - error))
        likely = surely if mixed * (1 + error) < likely else likely
    return surely / target.allowed, likely / target.allowed


def _whitened(changes: Floats, releases: Floats) -> float:
    """Length of changes in units of noise that a matrix may have mixed; infinite if not known.

    Args:
        changes: shape (d,).
        releases: of one world, shape (m, d).
    """
    count, dim = releases.shape
    if dim * _LEAST_RUNS > count:
        return math.inf
    covariance = np.atleast_2d(np.cov(releases.T))
    inverse = np.linalg.pinv(covariance, rcond=_SAME, hermitian=True)
    along = inverse @ changes
    if np.linalg.norm(changes - covariance @ along) > _SAME * np.linalg.norm(changes):
        return math.inf
    unbiased = (count - dim - 2) / (
        count - 1
    )  # of the inverse of a covariance (Wishart)
    return math.sqrt(unbiased * float(changes @ along))


def sensitivity(
    target: Target, games: list[Game], profile: Profile, level: float, seed: int
) -> tuple[float, Check]:
    """The largest change between two worlds beside all others, where the noise cancels; or 0."""
    largest, worst = 0.0, games[0].worlds(target)
    reason = "batches are sampled, or noise does not cancel: games are played instead"
    for game in (one for one in games if len(one.others) == len(target.rows)):
        step = int(np.abs(game.canary).sum(axis=1).argmax())
        pair = game.worlds(target, step)
        try:
            size, exact = change(target, pair, seed)
        except Exception as error:  # noqa: BLE001 (whatever the target raises)
            reason = f"refused: {describe(error)}"
            continue
        if exact and size > largest:
            largest, worst = size, pair
    name = "sensitivity"
    if not largest:
        return 0.0, Check(
            name, "unknown", f"{target.allowed:.4g} at most", "nothing", reason
        )
    silent = _without_noise(name, target, worst, profile, seed, level)
    return largest, silent or _judged(name, target, worst, largest, 0.0, seed)


def changed_at_random(
    target: Target, noise: Floats, level: float, seed: int
) -> Iterator[Check]:
    """Whether a record that is rounded at random, to a few values, stays within a Gaussian claim.

    With the same random numbers the noise cancels, and a release changes by what the record was
    rounded to. Along a direction the release is then a mixture of Gaussians that are shifted so,
    whose probability to be far out is known for each change. That its mean over changes is within
    the claim is tested by a betting martingale (Waudby-Smith and Ramdas 2024). Only where a zero
    takes the record's place do both worlds meet the same random numbers.

    Args:
        target: with its claim.
        noise: what it releases of zeros, shape (m, s, d).
        level: of a false alarm.
        seed: of the random numbers.
    """
    gaussian = target.noise == "gaussian" and target.multiplier is not None
    if not gaussian or target.adjacency != "zero-out" or target.sampling_rate < 1:
        return
    dim = target.dim
    canary = np.full(dim, _SHORT * target.clip_norm / dim ** (1 / target.order))
    pair = Game("", canary[None], target.zeros[1:]).worlds(target)
    worlds = [pair[0]], [pair[1]]
    runs = _together(target, worlds, seed, _STREAMS)
    if runs is not None and _few_values(runs):
        runs = _together(target, worlds, seed, _MOST_RUNS)
    if runs is None or not _few_values(runs):
        return
    changes, half = runs[:, 0, 0] - runs[:, 1, 0], _MOST_RUNS // 2
    along = changes[:half].mean(axis=0)
    if not along.any():
        return
    std = float(np.sqrt(noise.var(axis=0).mean())) * (
        1 + _ERRORS / math.sqrt(2 * noise.size)
    )
    shifts = changes @ along / (np.linalg.norm(along) * std)
    mean = float(shifts[:half].mean())
    cut = target.claimed / mean + mean / 2  # of the likelihood ratio of one shift
    far = scipy.special.ndtr(shifts[half:] - cut)
    most = target.delta + math.exp(target.claimed) * scipy.special.ndtr(-cut)
    wealth = float(np.log1p(_BET * (far / most - 1)).sum())
    epsilon = unknown_expected_score_epsilon(shifts.clip(0), target.delta)
    name, claim = (
        "records rounded at random",
        f"ε ≤ {target.claimed:.3g} at δ = {target.delta:.3g}",
    )
    measured = (
        f"ε of about {epsilon:.2f} with {_MOST_RUNS:,} changes between two records"
    )
    if wealth <= -math.log(level):
        yield Check(name, "passed", claim, measured)
        return
    why = (
        "what is rounded at random before noise is added may be longer than the clip norm: the"
        " noise is for a smaller sensitivity than there is"
    )
    yield Check(
        name, "failed", claim, measured, why, severity_of(target.claimed / epsilon)
    )


def _few_values(runs: Floats) -> bool:
    """Whether changes have few values, which differ, although what is released has many."""
    unit = _SAME * np.abs(runs).max()
    changes = np.rint((runs[:, 0] - runs[:, 1]) / unit)
    releases = np.rint(runs[:, 1] / unit)
    few, many = (np.unique(values).size / values.size for values in (changes, releases))
    return bool(few < _FEW and many > _MANY and np.ptp(changes, axis=0).any())
