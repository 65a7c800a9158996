"""Games with several canaries and statistics, none of which the user has to choose.

A quarter of the runs of a game fits the statistics, a quarter chooses one and its threshold, and
the other half proves: the error rates at that threshold. The level is split over the canaries.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from fl_epe.archive import error_text
from fl_epe.checks import Floats
from fl_epe.conformance import games
from fl_epe.conformance.claim import Profile, limits
from fl_epe.conformance.statistics import (
    ALONG,
    DIGITS,
    RATIO,
    VALUES,
    Score,
    fitted,
)
from fl_epe.conformance.target import Target
from fl_epe.noise import Check, severity_of
from fl_epe.seeding import generator

ORDINARY = "no longer than the clip norm"
NO_NOISE = "no noise is added, or the same in each run: ε is infinite"

# Lengths of updates in clip norms.
_SMALL = 0.1
_SHORT = 0.999
_MODERATE = 3.0
_LONG = 100.0

_MAX_THRESHOLDS = 120
_NOT_NEGLIGIBLE = (
    0.98  # of what is claimed: a claim that is contradicted at some δ
)
_TOO_LITTLE_NOISE = (
    0.9  # of the claimed noise, from which on the noise is not the cause
)
_STANDARD_ERRORS = 4.0
_MAX_CATEGORIES = 100  # distinct values of a release that counts as a category
_STRICTER = 0.2  # share of the level at which a statistic is chosen


@dataclasses.dataclass(frozen=True, eq=False)
class Game:
    """Two worlds.

    Attributes:
        name: of the canary.
        canary: its update in each step, zero where it takes no part, shape (s, d).
        other_updates: shape (n, d).
    """

    name: str
    canary: Floats
    other_updates: Floats

    def worlds(self, target: Target, step: int = 0) -> tuple[Floats, Floats]:
        """The updates of a step with the canary, which is last, and without it."""
        update = self.canary[step]
        if not update.any():
            return self.other_updates, self.other_updates
        parts = target.adjacency, update, self.other_updates, target.zero_update
        present = games.world(True, *parts)
        absent = games.world(False, *parts)
        if target.adjacency == "substitute" and target.nonnegative:
            absent[-1] = _nonnegative_substitute(target, update)
        return present, absent


def _nonnegative_substitute(target: Target, update: Floats) -> Floats:
    """An update far from this one that has no entry below 0 and no larger norm."""
    if target.norm == "linf":
        return np.asarray(update.max() - update)
    reverse = update[::-1]
    if np.array_equal(update, reverse):
        return np.zeros_like(update)
    return reverse


def games_of(target: Target, quiet_entry: int, seed: int) -> list[Game]:
    """The games that suit a target.

    Args:
        target: is played against.
        quiet_entry: an entry of the array with the least noise.
        seed: of random canaries.
    """
    rows = target.rows
    drawn = generator(seed, 1).standard_normal((target.steps + 2, target.dim))
    if target.nonnegative:
        drawn = np.abs(drawn)
    candidates = [
        *_games_of_canaries(target, quiet_entry, drawn),
        *_games_of_other_updates(target, drawn),
    ]
    if target.canary_steps > 1:
        changing = np.array([_scaled(target, vector) for vector in drawn[2:]])
        first = _scaled(target, np.eye(target.dim)[0])
        once = np.where(np.arange(target.steps)[:, None] == 0, first, 0.0)
        candidates += [
            Game("another in each step", _repeated(target, changing), rows),
            Game("in one step", once, rows),
        ]
    # Of equal games the last is kept, under the name of the first.
    unique: dict[bytes, Game] = {}
    for game in reversed(candidates):
        unique[game.canary.tobytes() + game.other_updates.tobytes()] = game
    return list(unique.values())[::-1]


def _games_of_canaries(
    target: Target, quiet_entry: int, drawn: Floats
) -> Iterator[Game]:
    """Games of canaries beside the target's other updates."""
    dim = target.dim
    vectors = {ORDINARY: _scaled(target, drawn[0], _SHORT)}
    if (
        not target.has_clipped_inputs
    ):  # otherwise it is no longer than the first
        vectors["random"] = _scaled(target, drawn[1])
    vectors["all entries"] = _scaled(target, np.ones(dim))
    vectors["one entry"] = _scaled(target, np.eye(dim)[0])
    vectors["least noised array"] = _scaled(target, np.eye(dim)[quiet_entry])
    if target.categories:
        half = np.where(np.arange(dim) < dim / 2, 1.0, 0.0)
        vectors["half of all entries"] = _scaled(target, half)
    for name, vector in vectors.items():
        yield Game(name, _repeated(target, vector), target.rows)


def _games_of_other_updates(target: Target, drawn: Floats) -> Iterator[Game]:
    """Games in which the other updates are chosen for the canary."""
    rows = target.rows
    first = np.eye(target.dim)[0]
    ones = np.ones(target.dim)
    direction = first
    if target.norm == "linf" and not target.nonnegative:
        direction = 2 * first - ones
    opposite = -direction
    if target.nonnegative:
        opposite = ones - first if target.dim > 1 else ones
    canary = _repeated(target, _scaled(target, direction))
    if len(rows):
        opposed = _scaled(target, opposite, _MODERATE)[None]
        yield Game("opposed", canary, np.vstack([rows[:-1], opposed]))
        if target.categories:
            yield Game("beside an opposed one alone", canary, opposed)
    if target.others is not None or target.categories:
        yield Game("alone", canary, rows[:0])
        return
    is_small = np.arange(len(rows)) <= len(rows) // 2
    lengths = np.where(is_small, _SMALL, _MODERATE)[:, None]
    longest = _norm(target, _MODERATE) / target.clip_norm
    two_lengths = np.minimum(lengths, longest) * _scaled(target, drawn[1], 1.0)
    canary = _repeated(target, _scaled(target, first))
    yield Game("others of two lengths", canary, two_lengths)
    zeros = np.repeat(target.zero_update, len(rows), axis=0)
    canary = _repeated(target, _scaled(target, drawn[1], _SHORT))
    yield Game("others of zeros", canary, zeros)


def _norm(target: Target, clip_norms: float) -> float:
    """The norm of an update of this length, if updates may be longer than the clip norm."""
    return target.clip_norm * (1.0 if target.has_clipped_inputs else clip_norms)


def _scaled(
    target: Target, vector: Floats, clip_norms: float = _LONG
) -> Floats:
    norm = _norm(target, clip_norms)
    return np.asarray(vector * (norm / np.linalg.norm(vector, target.order)))


def _repeated(target: Target, vector: Floats) -> Floats:
    """A canary's update in each step, from that in the steps in which it takes part."""
    steps = np.arange(target.steps)[:, None]
    return np.where(steps < target.canary_steps, vector, 0.0)


def releases(
    target: Target, game: Game, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """What the adversary sees of each run with the canary and without it, each (m, s, d)."""
    worlds = [game.worlds(target, step) for step in range(target.steps)]
    samples_here = not target.draws_batches and target.sampling_rate < 1
    runs: tuple[list[Floats], list[Floats]] = ([], [])
    for side in rng.permutation(np.repeat([0, 1], target.trials)):
        target.restart()
        rows = []
        for pair in worlds:
            updates = pair[side]
            if samples_here and rng.random() >= target.sampling_rate:
                updates = game.other_updates
            rows.append(target(updates.copy(), rng))
        runs[side].append(target.observed_steps(np.array(rows)))
    return np.array(runs[0]), np.array(runs[1])


def judge_game(
    target: Target,
    game: Game,
    profile: Profile,
    level: float,
    rng: np.random.Generator,
) -> Check:
    """One game, and what it proves at this level."""
    name = f"game: {game.name}"
    claim = f"ε ≤ {target.claimed:.3g} at δ = {target.delta:.3g}"
    try:
        with np.errstate(all="ignore"):
            present, absent = releases(target, game, rng)
    except Exception as error:  # noqa: BLE001 (whatever the target raises)
        measured = f"refused: {describe(error)}"
        return Check(name, "unknown", claim, measured, "no run to compare")
    if not (np.isfinite(present).all() and np.isfinite(absent).all()):
        measured = "NaN or infinity was released"
        why = (
            "what is not a number may tell who took part, and ends the training"
        )
        return Check(name, "failed", claim, measured, why, "theoretical")
    cuts = quarters(target.trials)
    fit_present, choose_present, prove_present = np.split(present, cuts)
    fit_absent, choose_absent, prove_absent = np.split(absent, cuts)
    choices = [
        _choice(statistic, score, choose_present, choose_absent, profile, level)
        for statistic, score in fitted(
            fit_present,
            fit_absent,
            target.observed_steps(game.canary),
            target.arrays,
            categories=target.categories,
        )
    ]
    chosen = max(choices, key=lambda choice: choice.excess)
    count = len(prove_present)
    missed = int((chosen.score(prove_present) < chosen.threshold).sum())
    false = int((chosen.score(prove_absent) >= chosen.threshold).sum())
    fpr, fnr = (float(limit) for limit in limits(false, missed, count, level))
    epsilon = profile.epsilon(fpr, fnr, target.delta)
    rates = (
        f"{count - missed} and {false} of {count} runs with and without it, by"
        f" {chosen.statistic}"
    )
    if not profile.excess(fpr, fnr) > 0:
        measured = f"ε ≥ {epsilon:.2f} proved: {rates}"
        if profile.excess(*limits(0, 0, count, level)) > 0:
            return Check(name, "passed", claim, measured)
        why = "so few trials contradict no such claim, even if every run were told apart"
        return Check(name, "unknown", claim, measured, why)
    why = cause(target, chosen.statistic, present, absent)
    if false == missed == 0:
        measured = f"told apart in every run: {rates}"
        return Check(name, "failed", claim, measured, why, severity_of(0.0))
    epsilon = max(target.claimed, epsilon)
    severity = severity_of(min(target.claimed / epsilon, _NOT_NEGLIGIBLE))
    measured = f"ε ≥ {epsilon:.2f} proved: {rates}"
    return Check(name, "failed", claim, measured, why, severity)


def cause(
    target: Target, statistic: str, present: Floats, absent: Floats
) -> str:
    """What kind of mistake tells two worlds apart, as far as their releases show.

    Args:
        target: is not as claimed.
        statistic: by which that was found.
        present: releases with the canary, shape (m, s, d).
        absent: releases without it, shape (m, s, d).
    """
    if not (np.ptp(present, axis=0).any() or np.ptp(absent, axis=0).any()):
        return NO_NOISE
    rows = np.concatenate([present, absent]).reshape(2 * len(present), -1)
    values, indices = np.unique(rows, axis=0, return_inverse=True)
    if len(values) <= _MAX_CATEGORIES:
        shares = [
            np.bincount(side, minlength=len(values)) / len(side)
            for side in np.split(indices.ravel(), 2)
        ]
        ratios = np.log((shares[0] + 1e-4) / (shares[1] + 1e-4))
        worst = int(np.abs(ratios).argmax())
        return (
            f"{values[worst]} has probability {shares[0][worst]:.3g} with the canary and"
            f" {shares[1][worst]:.3g} without it, which are more than e^ε apart: probabilities are"
            " not those of this ε, sensitivity, number of categories"
        )
    std = absent.std(axis=0)
    shift = present.mean(axis=0) - absent.mean(axis=0)
    size = float(np.linalg.norm(shift, target.order, axis=1).max())
    error = _STANDARD_ERRORS * float(np.linalg.norm(std, axis=1).max())
    error /= len(absent) ** 0.5
    if statistic != DIGITS and size - error > target.allowed:
        return (
            f"the canary moves the release by {size:.3g}, the claim is of {target.allowed:.3g}:"
            " clipping does not bound it, or weights or sensitivity are others"
        )
    needed = target.noise_std(target.allowed)
    spread = float(std.min())
    if needed is not None and spread < _TOO_LITTLE_NOISE * needed:
        return f"noise has a standard deviation of {spread:.3g}, and the claim needs {needed:.3g}"
    if statistic.startswith(DIGITS):
        return "noise is on a coarse grid, and what it is added to is not: the last digits tell"
    if statistic.startswith(VALUES):
        return "one world alone releases some values: noise is bounded, missing, or on a grid"
    if target.sampling_rate < 1:
        return "the canary is in more steps than the sampling rate says, or batches are not random"
    if statistic.startswith(RATIO):
        return (
            "noise of entries, arrays or steps is missing in some or not independent, or a"
            " record is in more steps than is claimed"
        )
    if statistic.startswith(ALONG):
        return "noise is too small for this change, or is not what is accounted for"
    return "how much the release varies depends on the canary"


def quarters(trials: int) -> list[int]:
    """The indices at which the trials begin that choose a statistic, and those that prove."""
    return [trials // 4, trials // 2]


def describe(error: Exception) -> str:
    """An error in a line."""
    return " ".join(error_text(error).split())[:120]


@dataclasses.dataclass(frozen=True, eq=False)
class _Choice:
    """A statistic with its best threshold.

    Attributes:
        statistic: its name.
        score: the statistic.
        threshold: from which on a run counts as one with the canary.
        excess: by how much the error rates at that threshold exceed the claim.
    """

    statistic: str
    score: Callable[[Floats], Floats]
    threshold: float
    excess: float


def _choice(
    statistic: str,
    score: Score,
    present: Floats,
    absent: Floats,
    profile: Profile,
    level: float,
) -> _Choice:
    members = np.sort(score(present))
    nonmembers = np.sort(score(absent))
    values = np.unique(np.concatenate([members, nonmembers]))
    if (
        len(values) > _MAX_THRESHOLDS
    ):  # then they are close to each other in both tails
        steps = np.geomspace(1, len(values) / 2, _MAX_THRESHOLDS // 2).astype(
            int
        )
        values = values[
            np.unique(np.concatenate([steps - 1, len(values) - steps]))
        ]
    thresholds = np.append(values[:-1] + np.diff(values) / 2, values[-1:])
    false = len(nonmembers) - np.searchsorted(nonmembers, thresholds)
    missed = np.searchsorted(members, thresholds)
    # The runs that prove are twice as many.
    upper = limits(2 * false, 2 * missed, 2 * len(members), _STRICTER * level)
    excess = profile.excess(*upper)
    best = int(np.argmax(excess))
    return _Choice(
        statistic, score, float(thresholds[best]), float(excess[best])
    )
