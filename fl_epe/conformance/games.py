"""The game with several canaries and statistics, of which nobody has to name the right one.

A quarter of the runs of a game fits the statistics, a quarter chooses one and its threshold, and
the other half proves: the error rates at that threshold. The level is split over the canaries.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from fl_epe.checks import Floats
from fl_epe.conformance.claim import Profile, limits
from fl_epe.conformance.statistics import Score, fitted
from fl_epe.conformance.target import ORDERS, Target
from fl_epe.noise import Check, Severity
from fl_epe.seeding import generator

ORDINARY = "no longer than the clip norm"
_LONG, _SOME_WAY = 100.0, 3.0  # lengths in clip norms
_THRESHOLDS = 60
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
        own = self.canary[step][None]
        if not own.any():
            return self.others, self.others
        absent = {"add-or-remove": own[:0], "zero-out": target.none, "substitute": -own}
        gone = absent[target.adjacency]
        return np.vstack([self.others, own]), np.vstack([self.others, gone])


def games_of(target: Target, quiet: int, seed: int) -> list[Game]:
    """The games that suit a target.

    Args:
        target: is played against.
        quiet: an entry of the array with the least noise.
        seed: of random canaries.
    """
    dim, rng = target.dim, generator(seed, 1)
    long = target.clip_norm * (1.0 if target.inputs == "clipped" else _LONG)

    def scaled(vector: Floats, length: float) -> Floats:
        return np.asarray(vector * (length / np.linalg.norm(vector, ORDERS[target.norm])))

    def drawn() -> Floats:
        vector = rng.standard_normal(dim)
        return np.abs(vector) if target.nonnegative else vector

    def every(vector: Floats) -> Floats:
        return np.where(np.arange(target.steps)[:, None] < target.taken, vector, 0.0)

    first, least, flat = np.eye(1, dim)[0], np.eye(1, dim, quiet)[0], np.ones(dim)
    apart = scaled(2 * first - flat, long) if dim > 1 and target.norm == "linf" else first * long
    if target.nonnegative:
        apart, against = first * long, scaled(flat - first if dim > 1 else flat, long)
    else:
        against = -apart
    against = against * (1.0 if target.inputs == "clipped" else _SOME_WAY / _LONG)
    found = {
        "random": (every(scaled(drawn(), long)), target.rows),
        "all entries": (every(scaled(flat, long)), target.rows),
        "one entry": (every(scaled(first, long)), target.rows),
        "least noised array": (every(scaled(least, long)), target.rows),
        ORDINARY: (every(scaled(drawn(), 0.999 * target.clip_norm)), target.rows),
    }
    if len(target.rows):
        found["opposed"] = (every(apart), np.vstack([target.rows[:-1], against]))
    if target.steps > 1 and target.taken > 1:
        rows = [scaled(drawn(), long) for _ in range(target.taken)]
        rows += [np.zeros(dim)] * (target.steps - target.taken)
        found["another in each step"] = (np.array(rows), target.rows)
        found["in one step"] = (every(first * long) * np.eye(1, target.steps).T, target.rows)
    games, known = [], set[bytes]()
    for name, (canary, others) in found.items():
        if (key := canary.tobytes() + others.tobytes()) not in known:
            games.append(Game(name, canary, others))
            known.add(key)
    return games


def observed(
    target: Target, game: Game, trials: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """What was released in each run with the canary and without it, each of shape (m, s, d)."""
    data = [game.worlds(target, step) for step in range(target.steps)]
    ours = not target.draws_batches and target.sampling_rate < 1
    seen: tuple[list[Floats], list[Floats]] = ([], [])
    for side in rng.permutation(np.repeat([0, 1], trials)):
        target.restart()
        rows = []
        for worlds in data:
            updates = worlds[side]
            if ours and rng.random() >= target.sampling_rate:
                updates = game.others
            rows.append(target(updates.copy(), rng))
        seen[side].append(np.array(rows[-1:] if target.adversary == "last" else rows))
    present, absent = map(np.array, seen)
    return present, absent


def play(
    target: Target, game: Game, profile: Profile, trials: int, level: float, seed: int
) -> Check:
    """One game, and what it proves at this level."""
    name = f"game: {game.name}"
    claim = f"ε ≤ {profile.epsilons[-1]:.3g} at δ = {target.delta:.3g}"
    try:
        with np.errstate(all="ignore"):
            present, absent = observed(target, game, trials, generator(seed, 2))
    except Exception as error:  # noqa: BLE001 (whatever the target raises)
        return Check(name, "unknown", claim, f"refused: {describe(error)}", "no run to compare")
    if not (np.isfinite(present).all() and np.isfinite(absent).all()):
        measured = "NaN or infinity was released of finite updates"
        why = "what is not a number may tell who took part, and ends the training"
        return Check(name, "failed", claim, measured, why, "theoretical")
    quarter = trials // 4
    fit, choose, prove = (
        (present[part], absent[part])
        for part in (slice(quarter), slice(quarter, 2 * quarter), slice(2 * quarter, None))
    )
    canary = game.canary[-1:] if target.adversary == "last" else game.canary
    statistics = fitted(*fit, canary, target.arrays, categories=target.categories)
    chosen = max(
        (_chosen(name, score, choose, profile, level) for name, score in statistics),
        key=lambda one: one[0],
    )
    _, statistic, score, threshold = chosen
    one, other = (score(side) for side in prove)
    count = len(one)
    false, missed = int((other >= threshold).sum()), int((one < threshold).sum())
    fpr, fnr = (float(limit) for limit in limits(false, missed, count, level))
    proved = profile.epsilon(fpr, fnr, target.delta)
    rates = f"{count - missed} and {false} of {count} runs with and without it, by {statistic}"
    if not profile.excess(fpr, fnr) > 0:
        return Check(name, "passed", claim, f"ε ≥ {proved:.2f} proved: {rates}")
    perfect = false == missed == 0
    severity = severity_of(math.inf if perfect else proved / max(profile.epsilons[-1], 1e-12))
    why = "these error rates are not possible if the claim holds"
    words = "told apart in every run: " if perfect else f"ε ≥ {proved:.2f} proved: "
    return Check(name, "failed", claim, words + rates, why, severity)


def severity_of(ratio: float) -> Severity:
    """Of an ε or a sensitivity that is as many times the claimed one."""
    return "critical" if ratio >= 2 else "theoretical"


def describe(error: Exception) -> str:
    """An error in a line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:120]


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
    excess = profile.excess(*limits(2 * false, 2 * missed, 2 * count, _STRICTER * level))
    best = int(np.argmax(excess))
    return float(excess[best]), name, score, float(middle[best])
