"""The game with several canaries and statistics, of which nobody has to name the right one.

A quarter of the runs of a game fits the statistics, a quarter chooses one and its threshold, and
the other half proves: the error rates at that threshold. The level is split over the canaries.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from fl_epe.archive import error_text
from fl_epe.checks import Floats
from fl_epe.conformance import games
from fl_epe.conformance.claim import Profile, limits
from fl_epe.conformance.statistics import ALONG, DIGITS, RATIO, VALUES, Score, fitted
from fl_epe.conformance.target import Target
from fl_epe.noise import Check, severity_of
from fl_epe.seeding import generator

ORDINARY = "no longer than the clip norm"
NO_NOISE = "no noise is added, or the same in each run: ε is infinite"
_SMALL, _SHORT, _SOME_WAY, _LONG = 0.1, 0.999, 3.0, 100.0  # lengths in clip norms
_THRESHOLDS = 60
_NOT_NEGLIGIBLE = 0.98  # of what is claimed: a claim that is contradicted at some δ
_LESS = 0.9  # of the claimed noise, where noise is the cause
_ERRORS = 4.0  # standard errors
_FEW = 100  # values of a release that is one of a few
_STRICTER = 0.2  # level at which a statistic is chosen


@dataclasses.dataclass(frozen=True, eq=False)
class Game:
    """Two worlds.

    Attributes:
        name: of the canary.
        canary: its update in each step, zero where it takes no part, shape (s, d).
        others: updates of the others, shape (n, d).
    """

    name: str
    canary: Floats
    others: Floats

    def worlds(self, target: Target, step: int = 0) -> tuple[Floats, Floats]:
        """The updates of a step with the canary, which is last, and without it."""
        own = self.canary[step]
        if not own.any():
            return self.others, self.others
        parts = target.adjacency, own, self.others, target.none
        present, absent = games.world(True, *parts), games.world(False, *parts)
        if target.adjacency == "substitute" and target.nonnegative:
            absent[-1] = _replacement(target, own)
        return present, absent


def _replacement(target: Target, own: Floats) -> Floats:
    """What is far from an update and has no entry below 0, nor a larger norm."""
    if target.norm == "linf":
        return np.asarray(own.max() - own)
    reverse = own[::-1]
    return np.zeros_like(own) if np.array_equal(own, reverse) else reverse


def games_of(target: Target, quiet: int, seed: int) -> list[Game]:
    """The games that suit a target.

    Args:
        target: is played against.
        quiet: an entry of the array with the least noise.
        seed: of random canaries.
    """
    dim, rows, steps = target.dim, target.rows, np.arange(target.steps)[:, None]
    long, against, short = (
        target.clip_norm * (1.0 if target.has_clipped_inputs else length)
        for length in (_LONG, _SOME_WAY, _SHORT)
    )

    def scaled(vector: Floats, length: float = long) -> Floats:
        return np.asarray(vector * (length / np.linalg.norm(vector, target.order)))

    def every(vector: Floats) -> Floats:
        return np.where(steps < target.taken, vector, 0.0)

    drawn = generator(seed, 1).standard_normal((target.steps + 2, dim))
    drawn = np.abs(drawn) if target.nonnegative else drawn
    flat, (first, least) = np.ones(dim), np.eye(dim)[[0, quiet]]
    apart = (
        2 * first - flat if target.norm == "linf" and not target.nonnegative else first
    )
    rest = -apart
    if target.nonnegative:
        rest = flat - first if dim > 1 else flat
    vectors = {
        ORDINARY: scaled(drawn[0], short),
        "random": scaled(drawn[1]),
        "all entries": scaled(flat),
        "one entry": scaled(first),
        "least noised array": scaled(least),
    }
    if target.has_clipped_inputs:
        del vectors["random"]  # no longer than the first
    if target.categories:
        vectors["half of all entries"] = scaled(
            np.where(np.arange(dim) < dim / 2, 1.0, 0.0)
        )
    found = {name: (every(vector), rows) for name, vector in vectors.items()}
    toward = every(scaled(apart))
    if len(rows):
        opposed = scaled(rest, against)[None]
        found["opposed"] = toward, np.vstack([rows[:-1], opposed])
        if target.categories:
            found["beside an opposed one alone"] = toward, opposed
    if target.others is not None or target.categories:
        found["alone"] = toward, rows[:0]
    else:
        halves = np.where(np.arange(len(rows)) <= len(rows) // 2, _SMALL, _SOME_WAY)[
            :, None
        ]
        lengths = np.minimum(halves, against / target.clip_norm)
        two_lengths = lengths * scaled(drawn[1], target.clip_norm)
        found["others of two lengths"] = every(scaled(first)), two_lengths
        zeros = np.repeat(target.none, len(rows), axis=0)
        found["others of zeros"] = every(scaled(drawn[1], short)), zeros
    if target.taken > 1:
        canary = np.array([scaled(vector) for vector in drawn[2:]])
        found["another in each step"] = every(canary), rows
        found["in one step"] = np.where(steps == 0, scaled(first), 0.0), rows
    different = {
        c.tobytes() + o.tobytes(): Game(n, c, o)
        for n, (c, o) in reversed(found.items())
    }
    return list(different.values())[::-1]


def observed(
    target: Target, game: Game, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """What was released in each run with the canary and without it, each of shape (m, s, d)."""
    data = [game.worlds(target, step) for step in range(target.steps)]
    ours = not target.draws_batches and target.sampling_rate < 1
    seen: tuple[list[Floats], list[Floats]] = ([], [])
    for side in rng.permutation(np.repeat([0, 1], target.trials)):
        target.restart()
        rows = []
        for worlds in data:
            updates = worlds[side]
            if ours and rng.random() >= target.sampling_rate:
                updates = game.others
            rows.append(target(updates.copy(), rng))
        seen[side].append(target.seen(np.array(rows)))
    present, absent = map(np.array, seen)
    return present, absent


def judge_game(
    target: Target, game: Game, profile: Profile, level: float, rng: np.random.Generator
) -> Check:
    """One game, and what it proves at this level."""
    name, claim = (
        f"game: {game.name}",
        f"ε ≤ {target.claimed:.3g} at δ = {target.delta:.3g}",
    )
    try:
        with np.errstate(all="ignore"):
            runs = observed(target, game, rng)
    except Exception as error:  # noqa: BLE001 (whatever the target raises)
        return Check(
            name, "unknown", claim, f"refused: {describe(error)}", "no run to compare"
        )
    if not np.isfinite(runs).all():
        why = "what is not a number may tell who took part, and ends the training"
        return Check(
            name, "failed", claim, "NaN or infinity was released", why, "theoretical"
        )
    with_it, without = (np.split(side, quarters(target.trials)) for side in runs)
    fit, choose, prove = zip(with_it, without, strict=True)
    canary = target.seen(game.canary)
    statistics = fitted(*fit, canary, target.arrays, categories=target.categories)
    tried = (_chosen(name, score, choose, profile, level) for name, score in statistics)
    _, statistic, score, threshold = max(tried, key=lambda one: one[0])
    one, other = (score(side) for side in prove)
    count, false, missed = (
        len(one),
        int((other >= threshold).sum()),
        int((one < threshold).sum()),
    )
    fpr, fnr = (float(limit) for limit in limits(false, missed, count, level))
    rates = f"{count - missed} and {false} of {count} runs with and without it, by {statistic}"
    if not profile.excess(fpr, fnr) > 0:
        shown = profile.epsilon(fpr, fnr, target.delta)
        if profile.excess(*limits(0, 0, count, level)) > 0:
            return Check(name, "passed", claim, f"ε ≥ {shown:.2f} proved: {rates}")
        why = (
            "so few trials contradict no such claim, even if every run were told apart"
        )
        return Check(name, "unknown", claim, f"ε ≥ {shown:.2f} proved: {rates}", why)
    perfect = false == missed == 0
    least = max(target.claimed, profile.epsilon(fpr, fnr, target.delta))
    part = 0.0 if perfect else min(target.claimed / least, _NOT_NEGLIGIBLE)
    words = "told apart in every run" if perfect else f"ε ≥ {least:.2f} proved"
    why = cause(target, statistic, *runs)
    return Check(name, "failed", claim, f"{words}: {rates}", why, severity_of(part))


def cause(target: Target, statistic: str, present: Floats, absent: Floats) -> str:
    """What kind of mistake tells two worlds apart, as far as their releases say.

    Args:
        target: is not as claimed.
        statistic: by which that was found.
        present: released with the canary, shape (m, s, d).
        absent: released without it, shape (m, s, d).
    """
    if not (np.ptp(present, axis=0).any() or np.ptp(absent, axis=0).any()):
        return NO_NOISE
    rows = np.concatenate([present, absent]).reshape(2 * len(present), -1)
    values, places = np.unique(rows, axis=0, return_inverse=True)
    if len(values) <= _FEW:
        sides = np.split(places.ravel(), 2)
        one, other = (
            np.bincount(side, minlength=len(values)) / len(side) for side in sides
        )
        worst = int(np.abs(np.log((one + 1e-4) / (other + 1e-4))).argmax())
        return (
            f"{values[worst]} has probability {one[worst]:.3g} with the canary and"
            f" {other[worst]:.3g} without it, which are more than e^ε apart: probabilities are not"
            " those of this ε, sensitivity, number of categories"
        )
    moved = present.mean(axis=0) - absent.mean(axis=0)
    size = float(np.linalg.norm(moved, target.order, axis=1).max())
    error = (
        _ERRORS
        * float(np.linalg.norm(absent.std(axis=0), axis=1).max())
        / len(absent) ** 0.5
    )
    if statistic != DIGITS and size - error > target.allowed:
        return (
            f"the canary moves the release by {size:.3g}, the claim is of {target.allowed:.3g}:"
            " clipping does not bound it, or weights or sensitivity are others"
        )
    needed, spread = target.noise_std(target.allowed), float(absent.std(axis=0).min())
    if needed is not None and spread < _LESS * needed:
        return f"noise has a standard deviation of {spread:.3g}, and the claim needs {needed:.3g}"
    sampled = "the canary is in more steps than the sampling rate says, or batches are not random"
    causes = {
        DIGITS: "noise is on a coarse grid, and what it is added to is not: the last digits tell",
        VALUES: "one world alone releases some values: noise is bounded, missing, or on a grid",
        "": sampled if target.sampling_rate < 1 else "",
        RATIO: "noise of entries, arrays or steps is missing in some or not independent, or a"
        " record is in more steps than is claimed",
        ALONG: "noise is too small for this change, or is not what is accounted for",
    }
    fits = (
        words for name, words in causes.items() if words and statistic.startswith(name)
    )
    return next(fits, "how much the release varies depends on the canary")


def quarters(trials: int) -> list[int]:
    """Where trials that choose a statistic and its threshold begin, and those that prove."""
    return [trials // 4, trials // 2]


def describe(error: Exception) -> str:
    """An error in a line."""
    return " ".join(error_text(error).split())[:120]


def _chosen(
    name: str, score: Score, runs: tuple[Floats, Floats], profile: Profile, level: float
) -> tuple[float, str, Callable[[Floats], Floats], float]:
    """How far beyond the claim a statistic gets at its best threshold, itself, and that."""
    one, other = (np.sort(score(side)) for side in runs)
    values = np.unique(np.concatenate([one, other]))
    if len(values) > 2 * _THRESHOLDS:  # close to each other in both tails
        steps = np.geomspace(1, len(values) / 2, _THRESHOLDS).astype(int)
        values = values[np.unique(np.concatenate([steps - 1, len(values) - steps]))]
    middle = np.append(values[:-1] + np.diff(values) / 2, values[-1:])
    false = len(other) - np.searchsorted(other, middle)
    missed = np.searchsorted(one, middle)
    count = len(one)
    excess = profile.excess(
        *limits(2 * false, 2 * missed, 2 * count, _STRICTER * level)
    )
    best = int(np.argmax(excess))
    return float(excess[best]), name, score, float(middle[best])
