"""One broken mechanism of the zoo: which method finds it, with how many observations.

`hunt` does one of them; the methods are fixed in advance, and so is the one that is named for each
bug: the bound `NAMED` with the statistic that looks for this bug (`Specimen.statistics`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing import Scores, games, lower_bound

Counts = NDArray[np.int64]
Game = TypeVar("Game")
Method = tuple[str, str]
"""A statistic and a bound."""

BOUNDS_TRIED = ("clopper-pearson", "weighted", "gdp", "mean")
NAMED = "gdp"
SIGN_TEST = ("clip norm", "sign test")
_STEPS_OF_CLIP_NORM = 20


@dataclasses.dataclass(frozen=True)
class Hunt:
    """What was found of one bug.

    Attributes:
        name: in `games.ZOO`.
        claim: ε that broken mechanism and twin claim.
        named: the method named in advance for this bug.
        needed: for each method, the least number of observations, of those tried, with which the
            claim is disproved in every game; ``None`` if there is none.
        alarms: for each method, in how many games it disproves the twin's claim, with the most
            observations or with as many as the bug needs.
        games: that were played against each.
    """

    name: str
    claim: float
    named: Method
    needed: dict[Method, int | None]
    alarms: dict[Method, int]
    games: int


def doubling(most: int) -> list[int]:
    """Numbers of observations that are tried: 10, 20, 50, 100, … up to ``most``, and ``most``."""
    steps = [m * 10**e for e in range(1, 8) for m in (1, 2, 5)]
    return [*(n for n in steps if n < most), most]


def hunt(
    name: str,
    *,
    most: int,
    count: int,
    delta: float,
    confidence: float,
    seed: int,
    bounds: Sequence[str] = BOUNDS_TRIED,
) -> Hunt:
    """Play ``count`` games of ``most`` observations against a broken mechanism and its twin.

    Games with fewer observations are the first ones of these.

    Args:
        name: in `games.ZOO`.
        most: observations of each world.
        count: number of games, of which each has a seed of its own.
        delta: δ of the claim.
        confidence: of each disproof, one-sided.
        seed: of the first game.
        bounds: that are tried.
    """
    specimen = games.ZOO[name]
    claim = specimen.claim(delta)
    place = list(games.ZOO).index(name)
    seeds = [(seed + game) * len(games.ZOO) + place for game in range(count)]
    broken = [specimen.play(specimen.broken, most, s) for s in seeds]
    twins = [specimen.play(specimen.twin, most, s) for s in seeds]

    def disproved(bound: str, scores: Scores, n: int) -> bool:
        observed, unobserved = scores.both()
        first = Scores(observed[:n], unobserved[:n])
        return bool(lower_bound(first, delta, confidence=confidence, method=bound) > claim)

    needed: dict[Method, int | None] = {}
    alarms: dict[Method, int] = {}
    for i, statistic in enumerate(specimen.statistics):
        ours, theirs = ([game[i] for game in side] for side in (broken, twins))
        for bound in bounds:
            method, test = (statistic.name, bound), functools.partial(disproved, bound)
            needed[method], alarms[method] = _counted(ours, theirs, most, test)
    if specimen.leaks:
        return Hunt(name, claim, (specimen.statistics[-1].name, NAMED), needed, alarms, count)
    needed[SIGN_TEST], alarms[SIGN_TEST] = _signs(specimen, seeds, min(most, 100), confidence)
    return Hunt(name, claim, SIGN_TEST, needed, alarms, count)


def _signs(
    specimen: games.Specimen, seeds: Sequence[int], most: int, confidence: float
) -> tuple[int | None, int]:
    """Observations that the sign test needs to find the broken one, and its alarms of the twin.

    What is disproved is that a run's clip norm comes nearer to its quantile in half of all runs.
    """

    def strayed(mechanism: games.Mechanism, seed: int) -> Counts:
        if not isinstance(mechanism, games.zoo.AdaptiveSum):
            raise TypeError(f"Expected mechanism={mechanism!r} to be an AdaptiveSum.")
        rng = np.random.default_rng(seed)
        ends = [
            games.zoo.strays_from(mechanism, specimen.others, _STEPS_OF_CLIP_NORM, rng)
            for _ in range(most)
        ]
        return np.cumsum(ends)

    def disproved(counts: Counts, n: int) -> bool:
        tail = sum(math.comb(n, k) for k in range(int(counts[n - 1]), n + 1)) / 2**n
        return bool(tail <= 1 - confidence)

    broken, twins = ([strayed(m, seed) for seed in seeds] for m in (specimen.broken, specimen.twin))
    return _counted(broken, twins, most, disproved)


def _counted(
    broken: Sequence[Game], twins: Sequence[Game], most: int, disproved: Callable[[Game, int], bool]
) -> tuple[int | None, int]:
    """With how many observations the claim is disproved in all games, and alarms of the twin."""
    found = (n for n in doubling(most) if all(disproved(game, n) for game in broken))
    needed = next(found, None)
    sizes = {most, needed or most}
    return needed, sum(any(disproved(game, n) for n in sizes) for game in twins)


def check_sensitivity(specimen: games.Specimen, mechanism: games.Mechanism) -> tuple[float, bool]:
    """What the sanity checks say, with long canaries along all coordinates, the first and the last.

    Args:
        specimen: whose claim is checked.
        mechanism: its broken one or its twin.

    Returns:
        The largest change that neighbouring inputs made, and whether the claimed sensitivity is
        possible for the longest release of a batch of updates that are alike.
    """
    dim = specimen.canary.dim
    norm = float(np.linalg.norm(specimen.canary.vector(0)))
    canaries = [
        specimen.canary,
        games.constant(dim, norm),
        games.dirac(dim, norm),
        games.dirac(dim, norm, dim - 1),
    ]
    others = specimen.others
    measured = games.measured_sensitivity(mechanism, specimen.game, canaries, others=others)
    batch = len(others) + 1
    alike = [games.measured_batch(mechanism, canary, batch) for canary in canaries]
    possible = games.sensitivity_is_possible(specimen.sensitivity, batch, max(alike))
    return measured, possible
