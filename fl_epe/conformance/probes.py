"""Checks of odd inputs: each is refused with an error, or changes the release within the claim.

The target gets the same random numbers for both inputs of a pair. Noise that does not depend on
the updates then cancels, and the change is exact. Noise does not cancel if the target draws its
own; a change then counts as too large only if it is far beyond the noise as well.
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

# Indices of random streams.
_RUN_STREAM = 3
_INPUT_STREAM = 4
_UPDATE_STREAM = 9
# Number of streams of random numbers on which a change must not depend.
_STREAMS = 20
# Number of runs by which a world is tested for having no noise. Noise is measured in at least this
# number of runs.
_RUNS = 400
# Largest number of runs in which noise is measured.
_MAX_RUNS = 4000
# Number of copies of each update whose sum is compared with its noise, which is then small.
_REPETITIONS = 20
# The relative error of a release that is rounded to float32, and the factor by which the error
# of a sum of many updates is larger.
_ROUNDING = 1e-6
_SUM_ROUNDING = 100
# If noise does not cancel, a change must exceed this number of standard deviations of the noise
# of each entry.
_NOISE_STDS = 15.0
# Lengths of updates in clip norms. With the uneven one, no sum is a multiple of a grid's step.
_LONG = 100.0
_SHORT = 0.999
_UNEVEN = 0.7236
# The number of standard errors up to which measured noise may be wrong.
_STANDARD_ERRORS = 6.0
# The number of runs for each entry that an estimate of the noise's covariance needs.
_RUNS_PER_ENTRY = 10
# The step of a grid is larger than this number of rounding errors.
_GRID_ROUNDINGS = 10.0
# The share of the martingale's capital that is bet on each change.
_BET = 0.3
# Records are rounded at random if fewer than the first share of the changes are distinct, and
# more than the second share of the releases.
_MAX_DISTINCT_CHANGES = 0.1
_MIN_DISTINCT_RELEASES = 0.5
_HUGE = 1e30
_TINY = 1e-300

# In this pair, another record's update becomes zero. In "add-or-remove" the inputs are then two
# neighbours apart, as one record is removed and another added.
_ZERO_UPDATE = "zero update"


def change(target: Target, pair: Pair, seed: int) -> tuple[float, bool]:
    """The distance between the releases of two inputs, and whether the noise cancelled.

    The distance is in the claim's norm. If the noise did not cancel, it is the smallest distance
    over several streams of random numbers. It is NaN if a release has entries that are not finite,
    and infinite if the releases have different shapes.
    """
    releases = [
        [_release(target, updates, seed, stream) for updates in pair]
        for stream in range(_STREAMS)
    ]
    shapes = {release.shape for pairs in releases for release in pairs}
    if len(shapes) > 1:
        return np.inf, True
    changes = np.array([first - second for first, second in releases])
    if not np.isfinite(changes).all():
        return np.nan, True
    sizes = np.linalg.norm(changes, target.order, axis=1)
    rounding = _ROUNDING * np.abs(releases).max()
    if np.abs(changes - changes[0]).max() <= rounding:
        return float(sizes[0]), True
    return float(sizes.min()), False


def _release(target: Target, updates: Any, seed: int, stream: int) -> Floats:
    """The release of a first step with this stream of random numbers."""
    (release,) = _run(target, [updates], seed, stream)
    return release


def _run(
    target: Target, updates: list[Any], seed: int, stream: int
) -> list[Floats]:
    """The release of each step of a run with this stream of random numbers."""
    rng = generator(seed, _RUN_STREAM, stream)
    target.restart()
    with np.errstate(all="ignore"):
        return [target(step_updates.copy(), rng) for step_updates in updates]


def _paired_runs(
    target: Target, pair: tuple[list[Any], list[Any]], seed: int, count: int
) -> Floats | None:
    """The releases of two runs with the same random numbers, or ``None`` if they are refused.

    Args:
        target: the target under test.
        pair: the updates of each step of both runs.
        seed: the seed of the random numbers.
        count: the number of streams of random numbers, m.

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
class EffectOfUpdates:
    """The effect of larger updates in a first step on the releases of a run.

    Attributes:
        leaves_noise: whether the updates are added to noise that stays the same, so that a
            release of zeros is the noise. It is false if they change no release, or later steps
            as well; if a sum and its noise are clamped, rounded or multiplied, also by a matrix;
            or if the target draws its own noise.
        changes_release: whether the updates change any release.
    """

    leaves_noise: bool
    changes_release: bool


def effect_of_updates(target: Target, seed: int) -> EffectOfUpdates:
    """Compare runs with zeros and with equal updates, with the same random numbers."""
    zeros = target.zeros
    if target.others is None:
        zeros = np.repeat(zeros, _REPETITIONS, axis=0)
    drawn = (
        np.abs(generator(seed, _UPDATE_STREAM).standard_normal(target.dim))
        + _UNEVEN
    )
    larger = drawn * (
        _UNEVEN * target.clip_norm / np.linalg.norm(drawn, target.order)
    )
    updates = np.repeat(larger[None], len(zeros), axis=0)
    later = [zeros] * (target.steps - 1)
    runs = _paired_runs(
        target, ([updates, *later], [zeros, *later]), seed, _STREAMS
    )
    if runs is None:
        return EffectOfUpdates(leaves_noise=False, changes_release=True)
    rounding = _ROUNDING * np.abs(runs).max()
    changes = runs[:, 0, 0] - runs[:, 1, 0]
    changes_release = bool(np.abs(changes).max() > rounding)
    later_changes = runs[:, 0, 1:] - runs[:, 1, 1:]
    changes_later_steps = np.abs(later_changes).max(initial=0.0) > rounding
    leaves_noise = (
        changes_release
        and not changes_later_steps
        and not _on_a_grid(runs, rounding)
        and _is_addition(target, changes, larger, rounding)
    )
    return EffectOfUpdates(leaves_noise, changes_release)


def _is_addition(
    target: Target, changes: Floats, update: Floats, rounding: float
) -> bool:
    """Whether changes of releases are due to the addition of updates to the same noise.

    Args:
        target: the target under test.
        changes: the change with each stream of random numbers, shape (m, d).
        update: each of the updates, shape (d',).
        rounding: the rounding error of a release.
    """
    is_same = bool(np.ptp(changes, axis=0).max() <= rounding)
    if not changes.shape[1] == target.dim > 1:
        return is_same
    # If entries are mixed or added up along an array, their noise is correlated. With sampling,
    # each array moves by a multiple of the updates: the number of updates in the batch.
    cuts = np.cumsum(target.arrays)[:-1]
    residuals = [
        part - np.outer(part @ row / (row @ row), row)
        for part, row in zip(
            np.split(changes, cuts, axis=1),
            np.split(update, cuts),
            strict=True,
        )
    ]
    largest = max(np.abs(residual).max() for residual in residuals)
    is_multiple = bool(largest <= _SUM_ROUNDING * rounding)
    return is_multiple and (is_same or target.sampling_rate < 1)


def _on_a_grid(values: Floats, rounding: float) -> bool:
    """Whether all values are multiples of one value that is far above the rounding error."""

    def common_divisor(divisor: float, value: float) -> float:
        """The greatest common divisor up to rounding (Euclid's algorithm)."""
        while value > rounding:
            divisor, value = value, divisor % value
        return divisor

    step = functools.reduce(common_divisor, np.unique(np.abs(values)))
    return bool(step > _GRID_ROUNDINGS * rounding)


def _without_noise(
    name: str,
    target: Target,
    pair: Pair,
    seed: int,
    level: float,
) -> Check | None:
    """A failed check, if a world without noise differs from the other more often than claimed.

    ``None`` if both worlds have noise, or differ less often.

    Args:
        name: the name of the check.
        target: the target under test.
        pair: the updates of both worlds.
        seed: the seed of the random numbers.
        level: the probability of a false alarm.
    """

    def differs(updates: Any, release: Floats) -> Iterator[bool]:
        """Yields for each of several runs whether its release differs from ``release``."""
        for stream in range(1, 1 + _RUNS):
            other_release = _release(target, updates, seed, stream)
            yield bool(np.any(other_release != release))

    for world, neighbour in (pair, pair[::-1]):
        release = _release(target, world, seed, 0)
        if any(differs(world, release)):
            continue
        count = sum(differs(neighbour, release))
        rates = limits(0, _RUNS - count, _RUNS, level / 2)
        if Profile.of(target).excess(*rates) > 0:
            return Check(
                name,
                "failed",
                "each world has noise",
                f"told apart in {count} of {_RUNS} runs, as one of the two has no noise",
                "no noise is added to such updates: ε is infinite",
                "critical",
                infinite=True,
            )
    return None


def probes(
    target: Target, spread: float, level: float, seed: int
) -> Iterator[Check]:
    """A check of each odd input that suits the target.

    Args:
        target: the target under test.
        spread: the largest standard deviation of an entry of its releases of zeros.
        level: the probability of a false alarm of all checks together.
        seed: the seed of the random numbers.
    """
    pairs = {**_inputs(target, seed), **target.probes}
    for input_name, pair in pairs.items():
        name = f"input: {input_name}"
        claim = "refused, or within the sensitivity"
        try:
            size, is_exact = change(target, pair, seed)
        except Exception as error:  # noqa: BLE001 (whatever the target raises)
            yield Check(name, "passed", claim, f"refused: {describe(error)}")
            continue
        if np.isnan(size):
            why = (
                "such an update is neither refused nor clipped: it ends the training, and shows"
                " that its sender took part, unless the caller refuses it (inputs='finite')"
            )
            yield Check(
                name, "not handled", claim, "NaN or infinity was released", why
            )
            continue
        if np.isinf(size):
            measured = "the two releases have different shapes"
            why = "the shape of a release shows for certain who took part"
            yield Check(name, "failed", claim, measured, why, "critical")
            continue
        failure = _without_noise(name, target, pair, seed, level / len(pairs))
        if failure is not None:
            yield failure
        elif target.categories:
            yield Check(name, "passed", claim, "a category was released")
        else:
            slack = 0.0 if is_exact else _NOISE_STDS * spread * target.dim
            neighbours = 1
            is_zero_update = input_name == _ZERO_UPDATE
            if is_zero_update and target.adjacency == "add-or-remove":
                neighbours = 2
            yield _check_of_change(
                name, target, pair, size, slack, seed, neighbours
            )


def _inputs(target: Target, seed: int) -> dict[str, Pair]:
    """The pairs of inputs, by the name of the odd input."""
    rows = target.rows
    dim = target.dim
    drawn = np.abs(generator(seed, _INPUT_STREAM).standard_normal((1, dim)))
    unit = drawn / np.linalg.norm(drawn, target.order) * target.clip_norm

    def worlds_of(update: Floats, other_updates: Any = rows) -> Pair:
        return Game("", update, other_updates).worlds(target)

    pairs = {
        # Their squares are rounded to 0.
        "tiny entries": worlds_of(unit * _TINY),
        "half of the others missing": worlds_of(unit, rows[: len(rows) // 2]),
        "no other record": worlds_of(unit, rows[:0]),
        "three times as many": worlds_of(unit, np.tile(rows, (3, 1))),
        _ZERO_UPDATE: (np.vstack([rows, 0 * unit]), np.vstack([rows, unit])),
        "the same record twice": worlds_of(unit, np.vstack([rows, unit])),
    }
    if not target.has_clipped_inputs:
        # They are longer than the clip norm, so that they are clipped.
        present, absent = worlds_of(np.ceil(3 * unit), np.rint(3 * rows))
        pairs["integers"] = present.astype(np.int64), absent.astype(np.int64)
        pairs["huge entries"] = worlds_of(unit * _HUGE)
        for number, end in enumerate(np.cumsum(target.arrays), 1):
            update = np.zeros((1, dim))
            update[0, end - 1] = _LONG * target.clip_norm
            pairs[f"array {number} alone"] = worlds_of(update)
    if target.inputs == "any":
        for name, value in (("NaN", np.nan), ("infinity", np.inf)):
            pairs[name] = worlds_of(np.where(np.arange(dim) == 0, value, unit))
            pairs[f"{name} in every entry"] = worlds_of(
                np.full_like(unit, value)
            )
    return pairs


def _check_of_change(
    name: str,
    target: Target,
    pair: Pair,
    size: float,
    slack: float,
    seed: int,
    neighbours: int = 1,
) -> Check:
    """Check that a change is within the claim, or that the noise is larger in proportion.

    Args:
        name: the name of the check.
        target: the target and its claim.
        pair: the two inputs.
        size: the distance between their releases.
        slack: the part of the distance that may be noise.
        seed: the seed of the random numbers.
        neighbours: the number of neighbouring data sets from one input to the other.
    """
    allowed = neighbours * target.claimed_sensitivity
    claim = f"a change of at most {allowed:.4g} ({target.norm})"
    measured = f"{size:.4g}"
    with_noise = f"{measured}, noise included" if slack else measured
    if size <= allowed * (1 + _ROUNDING) + slack:
        return Check(name, "passed", claim, with_noise)
    # The ratio of the change to the allowed change, in units of the noise, is within these bounds.
    lowest = size / allowed
    highest = lowest
    if not slack:
        bounds = _ratio_in_noise(target, pair, seed)
        lowest, highest = (bound / neighbours for bound in bounds)
    if np.isnan(highest):
        why = "no law of the noise and no sensitivity is claimed: games are played instead"
        return Check(name, "unknown", claim, measured, why)
    if lowest > 1 + _ROUNDING:
        why = "the noise is for a smaller sensitivity than there is"
        severity = severity_of(1 / highest)
        return Check(name, "failed", claim, with_noise, why, severity)
    if highest <= 1 + _ROUNDING:
        measured += ", and the noise is larger in proportion"
        return Check(name, "passed", claim, measured)
    why = (
        "so few releases do not tell whether the noise is larger in proportion: "
        "games are played instead"
    )
    return Check(name, "unknown", claim, measured, why)


def _ratio_in_noise(
    target: Target, pair: Pair, seed: int
) -> tuple[float, float]:
    """Bounds on the ratio of a change to the claimed sensitivity, in units of the noise.

    A release that is scaled after noise was added has larger changes and larger noise in the
    same proportion. The lower bound assumes the largest noise that is consistent with the
    releases. The upper bound assumes more noise than is claimed only where the excess is
    significant. If no noise is claimed, the noise is assumed not to be scaled, and both bounds are
    the ratio itself; they are NaN if no sensitivity is claimed either.
    """
    needed = target.noise_std(target.claimed_sensitivity)
    if target.multiplier is not None:
        needed = target.multiplier * target.claimed_sensitivity
    if needed is None and target.sensitivity is None:
        return math.nan, math.nan
    norm = functools.partial(np.linalg.norm, ord=target.order)
    odd, ordinary = (_release(target, updates, seed, 0) for updates in pair)
    changes = odd - ordinary
    if needed is None:
        ratio = float(norm(changes)) / target.claimed_sensitivity
        return ratio, ratio
    runs = min(max(_RUNS, target.trials), _MAX_RUNS)
    releases = np.array(
        [_release(target, pair[1], seed, i) for i in range(runs)]
    )
    error = _STANDARD_ERRORS / math.sqrt(2 * runs)
    noise = releases.std(axis=0)
    in_noise = changes * needed / np.maximum(noise * (1 + error), needed)
    is_larger = noise * (1 - error) > needed
    lowest = float(norm(in_noise))
    highest = float(norm(np.where(is_larger, in_noise, changes)))
    if target.norm == "l2":
        whitened = _whitened(changes, releases) * needed
        lowest = min(lowest, whitened * (1 - error))
        # If a matrix has mixed the noise, entries alone say little, and the lower bound decides.
        if whitened * (1 + error) < highest:
            highest = lowest
    return (
        lowest / target.claimed_sensitivity,
        highest / target.claimed_sensitivity,
    )


def _whitened(changes: Floats, releases: Floats) -> float:
    """The length of a change in units of noise that a matrix may have mixed.

    It is infinite if the runs are too few, or if the change has a component without noise.

    Args:
        changes: the change of each entry, shape (d,).
        releases: the releases of one world, shape (m, d).
    """
    count, dim = releases.shape
    if dim * _RUNS_PER_ENTRY > count:
        return math.inf
    covariance = np.atleast_2d(np.cov(releases.T))
    inverse = np.linalg.pinv(covariance, rcond=_ROUNDING, hermitian=True)
    solution = inverse @ changes
    residual = np.linalg.norm(changes - covariance @ solution)
    if residual > _ROUNDING * np.linalg.norm(changes):
        return math.inf
    # The inverse of an estimated covariance is biased: its mean is that of an inverse Wishart
    # distribution.
    unbiased = (count - dim - 2) / (count - 1)
    return math.sqrt(unbiased * float(changes @ solution))


def sensitivity(
    target: Target, games: list[Game], level: float, seed: int
) -> tuple[float, Check]:
    """The largest change of a release by a game's canary, and the check of the sensitivity.

    Only games with as many other updates as ``target.rows`` count. The change is 0 if noise does
    not cancel.
    """
    largest = 0.0
    worst: Pair | None = None
    reason = "batches are sampled, or noise does not cancel: games are played instead"
    for game in games:
        if len(game.other_updates) != len(target.rows):
            continue
        step = int(np.abs(game.canary).sum(axis=1).argmax())
        pair = game.worlds(target, step)
        try:
            size, is_exact = change(target, pair, seed)
        except Exception as error:  # noqa: BLE001 (whatever the target raises)
            reason = f"refused: {describe(error)}"
            continue
        if is_exact and size > largest:
            largest = size
            worst = pair
    name = "sensitivity"
    if worst is None:
        claim = f"{target.claimed_sensitivity:.4g} at most"
        return 0.0, Check(name, "unknown", claim, "nothing", reason)
    failure = _without_noise(name, target, worst, seed, level)
    if failure is not None:
        return largest, failure
    check = _check_of_change(name, target, worst, largest, 0.0, seed)
    return largest, check


def changed_at_random(
    target: Target, noise: Floats, level: float, seed: int
) -> Check | None:
    """Check that a record that is rounded at random, to a few values, is within a Gaussian claim.

    With the same random numbers the noise cancels, and a release changes by the rounded record.
    Along a direction the release is then a mixture of Gaussians with these changes as means,
    and the tail probability of each Gaussian is known. A betting martingale (Waudby-Smith and
    Ramdas 2024) tests that its mean over changes is within the claim. Both worlds get the same
    random numbers only if a zero replaces the record.

    Args:
        target: the target and its claim.
        noise: the target's releases of zeros, shape (m, s, d).
        level: the probability of a false alarm.
        seed: the seed of the random numbers.

    Returns:
        The check; ``None`` for a target without a Gaussian claim, or that does not round at random.
    """
    changes = _random_changes(target, seed)
    if changes is None:
        return None
    # The first half of the runs selects the direction, and the second half tests.
    half = len(changes) // 2
    direction = changes[:half].mean(axis=0)
    if not direction.any():
        return None
    error = _STANDARD_ERRORS / math.sqrt(2 * noise.size)
    std = float(np.sqrt(noise.var(axis=0).mean())) * (1 + error)
    shifts = changes @ direction / (np.linalg.norm(direction) * std)
    mean = float(shifts[:half].mean())
    # The position at which the log-likelihood ratio for the mean shift is the claimed ε.
    cut = target.claimed_epsilon / mean + mean / 2
    beyond_cut = scipy.special.ndtr(shifts[half:] - cut)
    allowed = target.delta + math.exp(
        target.claimed_epsilon
    ) * scipy.special.ndtr(-cut)
    log_martingale = float(np.log1p(_BET * (beyond_cut / allowed - 1)).sum())
    epsilon = unknown_expected_score_epsilon(shifts.clip(0), target.delta)
    name = "records rounded at random"
    measured = f"ε of about {epsilon:.2f} with {_MAX_RUNS:,} changes between two records"
    if log_martingale <= -math.log(level):
        return Check(name, "passed", target.claim_text, measured)
    why = (
        "what is rounded at random before noise is added may be longer than the clip norm: the"
        " noise is for a smaller sensitivity than there is"
    )
    severity = severity_of(target.claimed_epsilon / epsilon)
    return Check(name, "failed", target.claim_text, measured, why, severity)


def _random_changes(target: Target, seed: int) -> Floats | None:
    """The changes of releases by a record that is rounded at random, shape (m, d)."""
    is_gaussian = target.noise == "gaussian" and target.multiplier is not None
    if (
        not is_gaussian
        or target.adjacency != "zero-out"
        or target.sampling_rate < 1
    ):
        return None
    length = _SHORT * target.clip_norm
    canary = np.full((1, target.dim), length / target.dim ** (1 / target.order))
    # One of the zeros is the absent record's, which `worlds` adds.
    present, absent = Game("", canary, target.zeros[1:]).worlds(target)
    changes = None
    # A few runs are enough for most targets, which do not round at random.
    for count in (_STREAMS, _MAX_RUNS):
        runs = _paired_runs(target, ([present], [absent]), seed, count)
        if runs is None or not _has_few_changes(runs):
            return None
        changes = runs[:, 0, 0] - runs[:, 1, 0]
    return changes


def _has_few_changes(runs: Floats) -> bool:
    """Whether changes have few values and more than one, although releases have many."""
    unit = _ROUNDING * np.abs(runs).max()
    changes = np.rint((runs[:, 0] - runs[:, 1]) / unit)
    releases = np.rint(runs[:, 1] / unit)
    if not np.ptp(changes, axis=0).any():
        return False
    distinct_changes = np.unique(changes).size / changes.size
    distinct_releases = np.unique(releases).size / releases.size
    return bool(
        distinct_changes < _MAX_DISTINCT_CHANGES
        and distinct_releases > _MIN_DISTINCT_RELEASES
    )
