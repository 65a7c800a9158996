"""Games with several canaries and statistics, none of which the user has to choose.

A quarter of the runs of a game fits the statistics, a second quarter selects one statistic and
its threshold, and the other half bounds the error rates at that threshold. The level is split
equally over the games.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from fl_epe.archive import error_text, one_line
from fl_epe.checks import Floats
from fl_epe.conformance import games
from fl_epe.conformance.claim import Profile, limits
from fl_epe.conformance.statistics import (
    ALONG,
    DIGITS,
    RATIO,
    VALUES,
    Score,
    fitted_statistics,
)
from fl_epe.conformance.target import Target
from fl_epe.noise import Check, severity_of
from fl_epe.seeding import generator

NO_NOISE = "no noise is added, or the same in each run: ε is infinite"

# Lengths of updates in clip norms.
_SMALL = 0.1
_SHORT = 0.999
_MODERATE = 3.0
_LONG = 100.0

# Largest number of thresholds that are tried for a statistic.
_MAX_THRESHOLDS = 120
# The largest ratio of the claimed to the proved ε that a violation is reported with. `severity_of`
# then does not call a violation negligible that is statistically significant.
_MAX_RATIO_OF_VIOLATION = 0.98
# With a larger share of the claimed noise, too little noise is not the cause of a violation.
_MIN_NOISE_SHARE = 0.9
# Number of standard errors that are subtracted from the measured shift of a mean.
_STANDARD_ERRORS = 4.0
# A release with at most this number of distinct values counts as a category.
_MAX_CATEGORIES = 100
# Added to the frequencies of categories, some of which are 0.
_MIN_FREQUENCY = 1e-4
# A statistic is selected at this share of the level at which the claim is tested.
_SELECTION_LEVEL = 0.2
# Index of the random stream of the canaries.
_CANARY_STREAM = 1

_MAX_CHARACTERS = 120  # of the text of an error


@dataclasses.dataclass(frozen=True, eq=False)
class Game:
    """A membership game: a canary and the updates of the other records.

    Attributes:
        name: the canary's name in reports.
        canary: the canary's update in each step, zero where it takes no part, shape (s, d).
        other_updates: the updates of the other records, shape (n, d).
    """

    name: str
    canary: Floats
    other_updates: Floats

    def worlds(self, target: Target, step: int = 0) -> tuple[Floats, Floats]:
        """The updates of a step with the canary, which is the last row, and without it."""
        update = self.canary[step]
        if not update.any():
            return self.other_updates, self.other_updates
        present, absent = (
            games.world(
                is_present,
                target.adjacency,
                update,
                self.other_updates,
                target.zero_update,
            )
            for is_present in (True, False)
        )
        if target.adjacency == "substitute" and target.nonnegative:
            absent[-1] = _nonnegative_substitute(target, update)
        return present, absent


def _nonnegative_substitute(target: Target, update: Floats) -> Floats:
    """An update without negative entries that is far from ``update`` and has no larger norm."""
    if target.norm == "linf":
        return np.asarray(update.max() - update)
    reverse = update[::-1]
    if np.array_equal(update, reverse):
        return np.zeros_like(update)
    return reverse


def games_of(target: Target, quiet_entry: int, seed: int) -> list[Game]:
    """The games that suit a target; the first has an ordinary update as canary.

    Args:
        target: the target under test.
        quiet_entry: the index of an entry of the array with the least noise.
        seed: the seed of the random canaries.
    """
    rows = target.rows
    drawn = generator(seed, _CANARY_STREAM).standard_normal(
        (target.steps + 2, target.dim)
    )
    if target.nonnegative:
        drawn = np.abs(drawn)
    candidates = [
        *_games_of_canaries(target, quiet_entry, drawn),
        *_games_of_other_updates(target, drawn),
    ]
    if target.canary_steps > 1:
        # The first two vectors are for canaries that are the same in all steps.
        changing = np.array([_scaled(target, vector) for vector in drawn[2:]])
        once = np.zeros((target.steps, target.dim))
        once[0] = _scaled(target, np.eye(target.dim)[0])
        candidates += [
            Game("another in each step", _in_steps(target, changing), rows),
            Game("in one step", once, rows),
        ]
    # Of games that differ only in their names, the first is played, in the place of the last.
    unique: dict[bytes, Game] = {}
    for game in reversed(candidates):
        unique[game.canary.tobytes() + game.other_updates.tobytes()] = game
    return list(unique.values())[::-1]


def _games_of_canaries(
    target: Target, quiet_entry: int, drawn: Floats
) -> Iterator[Game]:
    """Games of canaries beside the target's other updates."""
    dim = target.dim
    unit_vectors = np.eye(dim)
    short = _scaled(target, drawn[0], _SHORT)
    canaries = {"no longer than the clip norm": short}
    # With clipped inputs, a random canary would be no longer than the first one.
    if not target.has_clipped_inputs:
        canaries["random"] = _scaled(target, drawn[1])
    canaries["all entries"] = _scaled(target, np.ones(dim))
    canaries["one entry"] = _scaled(target, unit_vectors[0])
    canaries["least noised array"] = _scaled(target, unit_vectors[quiet_entry])
    if target.categories:
        half = np.where(np.arange(dim) < dim / 2, 1.0, 0.0)
        canaries["half of all entries"] = _scaled(target, half)
    for name, canary in canaries.items():
        yield Game(name, _in_steps(target, canary), target.rows)


def _games_of_other_updates(target: Target, drawn: Floats) -> Iterator[Game]:
    """Games whose other updates are chosen for the canary."""
    rows = target.rows
    first = np.eye(target.dim)[0]
    ones = np.ones(target.dim)
    direction = first
    if target.norm == "linf" and not target.nonnegative:
        direction = 2 * first - ones
    opposite = -direction
    if target.nonnegative:
        opposite = ones - first if target.dim > 1 else ones
    canary = _in_steps(target, _scaled(target, direction))
    if len(rows):
        opposed = _scaled(target, opposite, _MODERATE)[None]
        yield Game("opposed", canary, np.vstack([rows[:-1], opposed]))
        if target.categories:
            yield Game("beside an opposed one alone", canary, opposed)
    if target.others is not None or target.categories:
        yield Game("alone", canary, rows[:0])
        return
    # More than half of the other updates are small, and the rest are longer than the clip norm,
    # unless inputs are clipped.
    is_small = np.arange(len(rows)) <= len(rows) // 2
    lengths = np.where(is_small, _SMALL, _MODERATE)[:, None]
    longest = _norm(target, _MODERATE) / target.clip_norm
    two_lengths = np.minimum(lengths, longest) * _scaled(target, drawn[1], 1.0)
    canary = _in_steps(target, _scaled(target, first))
    yield Game("others of two lengths", canary, two_lengths)
    zeros = np.repeat(target.zero_update, len(rows), axis=0)
    canary = _in_steps(target, _scaled(target, drawn[1], _SHORT))
    yield Game("others of zeros", canary, zeros)


def _norm(target: Target, clip_norms: float) -> float:
    """The norm of an update of this many clip norms, or of one if inputs are clipped."""
    return target.clip_norm * (1.0 if target.has_clipped_inputs else clip_norms)


def _scaled(
    target: Target, vector: Floats, clip_norms: float = _LONG
) -> Floats:
    """The vector with the length `_norm`, in ``target.norm``."""
    norm = _norm(target, clip_norms)
    return np.asarray(vector * (norm / np.linalg.norm(vector, target.order)))


def _in_steps(target: Target, vectors: Floats) -> Floats:
    """A canary's update in each step, shape (s, d), zero where it takes no part.

    Args:
        target: the target under test.
        vectors: the update in all steps, shape (d,), or in each, shape (s, d).
    """
    steps = np.arange(target.steps)[:, None]
    return np.where(steps < target.canary_steps, vectors, 0.0)


def releases(
    target: Target, game: Game, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """The releases that the adversary sees in each run with and without the canary.

    Returns:
        Two arrays of shape (m, s, d).
    """
    worlds = [game.worlds(target, step) for step in range(target.steps)]
    suite_samples = not target.draws_batches and target.sampling_rate < 1
    runs: tuple[list[Floats], list[Floats]] = ([], [])
    # Index 0 is the world with the canary, and 1 the one without it.
    for world in rng.permutation(np.repeat([0, 1], target.trials)):
        target.restart()
        rows = []
        for updates_of_worlds in worlds:
            updates = updates_of_worlds[world]
            if suite_samples and rng.random() >= target.sampling_rate:
                updates = game.other_updates
            rows.append(target(updates.copy(), rng))
        runs[world].append(target.observed_steps(np.array(rows)))
    present, absent = runs
    return np.array(present), np.array(absent)


def judge_game(
    target: Target, game: Game, level: float, rng: np.random.Generator
) -> Check:
    """Play one game and test the claim at ``level``."""
    name = f"game: {game.name}"
    claim = target.claim_text
    try:
        with np.errstate(all="ignore"):
            present, absent = releases(target, game, rng)
    except Exception as error:  # noqa: BLE001 (whatever the target raises)
        measured = f"refused: {describe(error)}"
        return Check(name, "unknown", claim, measured, "no run to compare")
    if not (np.isfinite(present).all() and np.isfinite(absent).all()):
        measured = "NaN or infinity was released"
        why = "NaN or infinity may show who took part, and ends the training"
        return Check(name, "failed", claim, measured, why, "theoretical")
    return _tested(name, target, game, level, present, absent)


def _tested(
    name: str,
    target: Target,
    game: Game,
    level: float,
    present: Floats,
    absent: Floats,
) -> Check:
    """Select a statistic, and test the claim with it.

    Args:
        name: the name of the check.
        target: the target and its claim.
        game: the game.
        level: the probability of a false alarm.
        present: releases with the canary, shape (m, s, d), finite.
        absent: releases without it, shape (m, s, d), finite.
    """
    claim = target.claim_text
    profile = Profile.of(target)
    choice = _selected(target, game, profile, level, present, absent)
    count = proving_trials(target.trials)
    misses = int((choice.score(present[-count:]) < choice.threshold).sum())
    false_alarms = int(
        (choice.score(absent[-count:]) >= choice.threshold).sum()
    )
    fpr, fnr = limits(false_alarms, misses, count, level)
    epsilon = profile.epsilon(float(fpr), float(fnr), target.delta)
    rates = (
        f"{count - misses} and {false_alarms} of {count} runs with and without it, by"
        f" {choice.statistic}"
    )
    if not profile.excess(fpr, fnr) > 0:
        measured = f"ε ≥ {epsilon:.2f} proved: {rates}"
        if profile.excess(*limits(0, 0, count, level)) > 0:
            return Check(name, "passed", claim, measured)
        why = "so few trials contradict no such claim, even if every run were told apart"
        return Check(name, "unknown", claim, measured, why)
    why = _likely_mistake(target, choice.statistic, present, absent)
    if false_alarms == misses == 0:
        measured = f"told apart in every run: {rates}"
        return Check(name, "failed", claim, measured, why, "critical")
    # The violated pair of the claim's profile may have another δ than the claimed one.
    epsilon = max(target.claimed_epsilon, epsilon)
    ratio = min(target.claimed_epsilon / epsilon, _MAX_RATIO_OF_VIOLATION)
    measured = f"ε ≥ {epsilon:.2f} proved: {rates}"
    return Check(name, "failed", claim, measured, why, severity_of(ratio))


def proving_trials(trials: int) -> int:
    """The number of trials of each world that test the claim."""
    return trials - trials // 2


def describe(error: Exception) -> str:
    """The text of an error in one line."""
    return one_line(error_text(error), _MAX_CHARACTERS)


def _likely_mistake(
    target: Target, statistic: str, present: Floats, absent: Floats
) -> str:
    """The likely mistake of a mechanism that violates its claim, as far as its releases show.

    Args:
        target: the target, which is not as claimed.
        statistic: the name of the statistic that distinguished the worlds.
        present: releases with the canary, shape (m, s, d).
        absent: releases without it, shape (m, s, d).
    """
    if not (np.ptp(present, axis=0).any() or np.ptp(absent, axis=0).any()):
        return NO_NOISE
    category = _most_revealing_category(present, absent)
    if category:
        return category
    std = absent.std(axis=0)
    shift = present.mean(axis=0) - absent.mean(axis=0)
    size = float(np.linalg.norm(shift, target.order, axis=1).max())
    error = _STANDARD_ERRORS * float(np.linalg.norm(std, axis=1).max())
    error /= len(absent) ** 0.5
    sensitivity = target.claimed_sensitivity
    if statistic != DIGITS and size - error > sensitivity:
        return (
            f"the canary moves the release by {size:.3g}, and the claimed sensitivity is"
            f" {sensitivity:.3g}: updates are not clipped, or weights or the sensitivity are not"
            " those of the claim"
        )
    needed = target.noise_std(sensitivity)
    spread = float(std.min())
    if needed is not None and spread < _MIN_NOISE_SHARE * needed:
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


def _most_revealing_category(present: Floats, absent: Floats) -> str:
    """The category whose frequencies differ most; empty if releases have too many values."""
    rows = np.concatenate([present, absent]).reshape(2 * len(present), -1)
    values, indices = np.unique(rows, axis=0, return_inverse=True)
    if len(values) > _MAX_CATEGORIES:
        return ""
    present_frequencies, absent_frequencies = (
        np.bincount(in_world, minlength=len(values)) / len(in_world)
        for in_world in np.split(indices.ravel(), 2)
    )
    log_ratios = np.log(
        (present_frequencies + _MIN_FREQUENCY)
        / (absent_frequencies + _MIN_FREQUENCY)
    )
    worst = int(np.abs(log_ratios).argmax())
    return (
        f"{values[worst]} has probability {present_frequencies[worst]:.3g} with the canary and"
        f" {absent_frequencies[worst]:.3g} without it, which are more than e^ε apart:"
        " probabilities are not those of this ε, sensitivity, number of categories"
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Choice:
    """A statistic with its best threshold.

    Attributes:
        statistic: the statistic's name.
        score: the statistic.
        threshold: the score from which on a run counts as one with the canary.
        excess: the amount by which the error rates at the threshold violate the claim.
    """

    statistic: str
    score: Score
    threshold: float
    excess: float


def _selected(
    target: Target,
    game: Game,
    profile: Profile,
    level: float,
    present: Floats,
    absent: Floats,
) -> _Choice:
    """The statistic that violates the claim most, fitted and selected on half of the runs."""
    quarter = target.trials // 4
    half = target.trials // 2
    statistics = fitted_statistics(
        present[:quarter],
        absent[:quarter],
        target.observed_steps(game.canary),
        target.arrays,
        releases_categories=target.categories,
    )
    choices = [
        _best_threshold(
            statistic,
            score,
            present[quarter:half],
            absent[quarter:half],
            profile,
            level,
        )
        for statistic, score in statistics
    ]
    return max(choices, key=lambda choice: choice.excess)


def _best_threshold(
    statistic: str,
    score: Score,
    present: Floats,
    absent: Floats,
    profile: Profile,
    level: float,
) -> _Choice:
    """The threshold of a statistic at which the error rates violate the claim most."""
    members = np.sort(score(present))
    nonmembers = np.sort(score(absent))
    values = np.unique(np.concatenate([members, nonmembers]))
    if len(values) > _MAX_THRESHOLDS:
        # A subset of the values, which is dense in both tails. Ranks count from either end.
        ranks = np.geomspace(1, len(values) / 2, _MAX_THRESHOLDS // 2)
        ranks = ranks.astype(int)
        indices = np.unique(np.concatenate([ranks - 1, len(values) - ranks]))
        values = values[indices]
    # Between neighbouring values, and at the largest one.
    thresholds = np.append(values[:-1] + np.diff(values) / 2, values[-1:])
    false_alarms = len(nonmembers) - np.searchsorted(nonmembers, thresholds)
    misses = np.searchsorted(members, thresholds)
    # The runs that test the claim are twice as many.
    upper = limits(
        2 * false_alarms, 2 * misses, 2 * len(members), _SELECTION_LEVEL * level
    )
    excess = profile.excess(*upper)
    best = int(np.argmax(excess))
    return _Choice(
        statistic, score, float(thresholds[best]), float(excess[best])
    )
