"""Which method finds which broken mechanism with how many observations, and do correct ones pass?

    python simulations/tramer_2022/broken_mechanisms.py          # 20 games of 1,000 observations
    python simulations/tramer_2022/broken_mechanisms.py --quick  # one game of 200: only a check

Tramèr et al. (2022) debugged one mechanism by an audit, and list how its mistake is met elsewhere.
Here are twelve mistakes (`broken_examples.EXAMPLES`), each beside a correct version that claims the
same. The methods are fixed in advance: four bounds by the inner product with the canary, and by the
statistic that looks for the bug where there is one; and so is the one named for each bug, the bound
"gdp" with the latter. A bug counts as found by a number of observations of each world if every game
disproves the claim at 99%. A false alarm is a game that disproves the claim of the correct version.

The last table plays the same games with canaries just as long as the clip norm.

Expected (2026-11-23, two cores shared with much other work, where it took 29 minutes): the
named method finds 12 of 12 within 500 observations of each world, and disproves the claim of a
correct version in 0 of 240 games. Observations with which each of 20 games disproves the claim at
99%, of at most 1,000 (–: missed)::

    bug                     statistic              clopper-pearson  weighted  gdp  mean  sign test
    clips-the-mean          along the canary                   500       500   20    10          –
    sensitivity-over-batch  along the canary                   500       500   20    10          –
    few-seeds               along the canary                     –         –    –     –          –
    few-seeds               nearest of 100 noises              500       500   20    10          –
    too-little-noise        along the canary                     –         –  200    50          –
    shared-noise            along the canary                     –         –    –     –          –
    shared-noise            between tensors                    500       500   20    10          –
    repeated-noise          along the canary                     –         –    –     –          –
    repeated-noise          between steps 2 apart                –         –   50    10          –
    noise-of-workers        along the canary                     –         –  200    50          –
    weights-by-examples     along the canary                     –      1000   50    20          –
    one-tensor-unclipped    along the canary                   500       500   20    10          –
    adaptive-clip-sign      along the canary                     –         –    –     –          –
    adaptive-clip-sign      clip norm                            –         –    –     –         10
    wrong-clip-norm         along the canary                     –         –  200    50          –
    wrong-factor            along the canary                     –         –    –     –          –
    wrong-factor            whitened                             –         –  500   100          –

Of the methods that were not named, "mean" along the canary has 6 false alarms: few-seeds 2,
too-little-noise, shared-noise, weights-by-examples and wrong-clip-norm 1 each. It is exact, and 11
correct versions have just the noise that they claim, so that 1 in 100 of its 380 tests of them is
to fail: 3.8 are expected, and 6 or more come about in one of five such series. No other method has
any.

With canaries of the clip norm the named method finds clips-the-mean, sensitivity-over-batch,
one-tensor-unclipped and wrong-clip-norm in 0 of 20 games of 1,000 observations, and the seven
others that leak in 20 of 20.

The sanity checks of the sensitivity find clips-the-mean, sensitivity-over-batch,
weights-by-examples, one-tensor-unclipped and wrong-clip-norm; B·s ≥ L misses the first of these.

The paper gives no such table: it audits one bug, sensitivity-over-batch, with a trained network for
each observation, a loss as the statistic and Clopper-Pearson limits.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.auditing import Scores
from fl_epe.auditing.bounds import lower_bound
from fl_epe.conformance import Target, games
from fl_epe.conformance.game_checks import Game as TwoWorlds
from fl_epe.conformance.probes import change
from simulations.nasr_2023.other_bounds import any_lower_bound
from simulations.shared.audit_script import Result, Settings, Table, run
from simulations.tramer_2022.broken_examples import EXAMPLES, Canary, Example
from simulations.tramer_2022.sensitivity_bugs import AdaptiveSum, strays_from

Counts = NDArray[np.int64]
Game = TypeVar("Game")
Method = tuple[str, str]
"""A statistic and a bound."""

BOUNDS_TRIED = ("clopper-pearson", "weighted", "gdp", "mean")
NAMED = "gdp"
SIGN_TEST = ("clip norm", "sign test")
_STEPS_OF_CLIP_NORM = 20
_CLIP_NORM, _LONG = 1.0, 100.0
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Detection:
    """What was found of one bug.

    Attributes:
        name: in `EXAMPLES`.
        claim: ε that broken mechanism and correct version claim.
        named: the method named in advance for this bug.
        needed: for each method, the least number of observations, of those tried, with which the
            claim is disproved in every game; ``None`` if there is none.
        alarms: for each method, in how many games it disproves the claim of the correct version,
            with the most observations or with as many as the bug needs.
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


def detect(
    name: str,
    *,
    most: int,
    count: int,
    delta: float,
    confidence: float,
    seed: int,
    bounds: Sequence[str] = BOUNDS_TRIED,
) -> Detection:
    """Play ``count`` games of ``most`` observations against both versions of an example.

    Games with fewer observations are the first ones of these.

    Args:
        name: in `EXAMPLES`.
        most: observations of each world.
        count: number of games, of which each has a seed of its own.
        delta: δ of the claim.
        confidence: of each disproof, one-sided.
        seed: of the first game.
        bounds: that are tried.
    """
    example = EXAMPLES[name]
    claim = example.claim(delta)
    place = list(EXAMPLES).index(name)
    seeds = [(seed + game) * len(EXAMPLES) + place for game in range(count)]
    broken = [example.play(example.broken, most, s) for s in seeds]
    correct = [example.play(example.correct, most, s) for s in seeds]

    def disproved(bound: str, scores: Scores, n: int) -> bool:
        observed, unobserved = scores.both()
        first = Scores(observed[:n], unobserved[:n])
        return bool(
            any_lower_bound(first, delta, confidence=confidence, method=bound)
            > claim
        )

    needed: dict[Method, int | None] = {}
    alarms: dict[Method, int] = {}
    for i, statistic in enumerate(example.statistics):
        ours, theirs = (
            [game[i] for game in side] for side in (broken, correct)
        )
        for bound in bounds:
            method, test = (
                (statistic.name, bound),
                functools.partial(disproved, bound),
            )
            needed[method], alarms[method] = _counted(ours, theirs, most, test)
    if example.leaks:
        return Detection(
            name,
            claim,
            (example.statistics[-1].name, NAMED),
            needed,
            alarms,
            count,
        )
    needed[SIGN_TEST], alarms[SIGN_TEST] = _signs(
        example, seeds, min(most, 100), confidence
    )
    return Detection(name, claim, SIGN_TEST, needed, alarms, count)


def _signs(
    example: Example, seeds: Sequence[int], most: int, confidence: float
) -> tuple[int | None, int]:
    """Observations that the sign test needs for the broken version, and its alarms of the correct.

    What is disproved is that a run's clip norm comes nearer to its quantile in half of all runs.
    """

    def strayed(mechanism: games.AuditedMechanism, seed: int) -> Counts:
        if not isinstance(mechanism, AdaptiveSum):
            raise TypeError(
                f"Expected mechanism={mechanism!r} to be an AdaptiveSum."
            )
        rng = np.random.default_rng(seed)
        ends = [
            strays_from(mechanism, example.others, _STEPS_OF_CLIP_NORM, rng)
            for _ in range(most)
        ]
        return np.cumsum(ends)

    def disproved(counts: Counts, n: int) -> bool:
        tail = (
            sum(math.comb(n, k) for k in range(int(counts[n - 1]), n + 1))
            / 2**n
        )
        return bool(tail <= 1 - confidence)

    broken, correct = (
        [strayed(m, seed) for seed in seeds]
        for m in (example.broken, example.correct)
    )
    return _counted(broken, correct, most, disproved)


def _counted(
    broken: Sequence[Game],
    correct: Sequence[Game],
    largest_count: int,
    disproved: Callable[[Game, int], bool],
) -> tuple[int | None, int]:
    """With how many observations the claim is disproved in all games, and false alarms."""
    enough = (
        n
        for n in doubling(largest_count)
        if all(disproved(game, n) for game in broken)
    )
    needed = next(enough, None)
    sizes = {largest_count, needed or largest_count}
    return needed, sum(
        any(disproved(game, n) for n in sizes) for game in correct
    )


def check_sensitivity(
    example: Example, mechanism: games.AuditedMechanism
) -> tuple[float, bool]:
    """What the sanity checks say, with long canaries along all coordinates, the first and the last.

    Args:
        example: whose claim is checked.
        mechanism: its broken or its correct version.

    Returns:
        The largest change that neighbouring inputs made, and whether B·s ≥ L: whether B updates,
        each of which changes the release by at most the claimed s, can change it by as much as a
        batch of B updates that are alike does (triangle inequality; Tramèr et al. 2022, section 4).
    """
    canary, updates = example.canary(0), example.others
    norm, dim = float(np.linalg.norm(canary)), canary.size
    canaries = [
        canary,
        np.full(dim, norm / np.sqrt(dim)),
        *(norm * np.eye(dim)[[0, -1]]),
    ]
    measured = largest_change(mechanism, example.game, canaries, updates)
    batch = len(updates) + 1
    length = largest_change(
        _Repeated(mechanism, batch), "add-or-remove", canaries
    )
    return measured, batch * example.sensitivity >= length * (1 - _ROUNDING)


def largest_change(
    mechanism: games.AuditedMechanism,
    adjacency: games.Adjacency,
    canaries: Sequence[NDArray[np.float64]],
    others: ArrayLike = (),
) -> float:
    """The largest change of what one step releases, noise aside, between neighbouring inputs.

    Raises:
        ValueError: if noise does not cancel where both inputs meet the same random numbers.
    """
    sizes = []
    for canary in canaries:
        target = Target(
            mechanism.release,
            epsilon=1.0,  # of no game that is played here
            adjacency=adjacency,
            arrays=(len(canary),),
            others=others,
            reset=mechanism.reset,
        )
        size, exact = change(
            target, TwoWorlds("", canary[None], target.rows).worlds(target), 1
        )
        if not exact:
            raise ValueError(
                "Expected a mechanism whose noise cancels with the same numbers."
            )
        sizes.append(size)
    return max(sizes)


class _Repeated(games.AuditedMechanism):
    """A mechanism on a batch of updates that are alike: each update is given ``times`` times."""

    def __init__(self, mechanism: games.AuditedMechanism, times: int) -> None:
        self.mechanism, self.times = mechanism, times

    def reset(self) -> None:
        self.mechanism.reset()

    def release(
        self, updates: NDArray[np.float64], rng: np.random.Generator
    ) -> ArrayLike:
        return self.mechanism.release(
            np.repeat(updates, self.times, axis=0), rng
        )


def audit(settings: Settings) -> Result:
    """Every bug; passes if its named method finds it and no named method has a false alarm."""
    largest_count = settings.count(1000, 200)
    count = 1 if settings.quick else 20
    settings = dataclasses.replace(
        settings, confidence=max(settings.confidence, 0.99)
    )
    detections = []
    for name in EXAMPLES:
        detections.append(
            detect(
                name,
                most=largest_count,
                count=count,
                delta=settings.delta,
                confidence=settings.confidence,
                seed=settings.seed,
                bounds=(NAMED,) if settings.quick else BOUNDS_TRIED,
            )
        )
        print(f"… {name}", file=sys.stderr, flush=True)
    needed = [detection.needed[detection.named] for detection in detections]
    alarms = sum(detection.alarms[detection.named] for detection in detections)
    detected = len(detections) - needed.count(None)
    enough = max((n for n in needed if n), default=0)
    summary = (
        f"The method named for each bug in advance detects {detected} of "
        f"{len(detections)} broken mechanisms, each within {enough:,} "
        f"observations of each world, and disproves the claim of a correct version in {alarms} of "
        f"{len(detections) * count} games."
    )
    notes = [
        f"Every disproof is at {settings.confidence:.0%}, one-sided, and each method stands on its "
        "own: the largest of several bounds is no bound. Adjacency: add-or-remove. Canaries are a "
        "hundred times as long as the clip norm, but in the last table.",
        "The adaptive clip norm with the wrong sign leaks nothing: noise is in proportion to the "
        "clip norm of the step. Bounds on ε are right to miss it; a sign test of where the clip "
        "norm goes finds it, with as many runs as said, of 20 steps.",
        "gdp and mean disprove that the mechanism is Gaussian with the claimed noise, which is "
        "what each claims; clopper-pearson and weighted disprove (ε, δ) whatever the mechanism.",
    ]
    tables = [
        _needed_table(detections),
        _alarms_table(detections),
        sensitivity_table(),
        short_canaries(settings, largest_count, count),
    ]
    return Result(
        summary, tables, notes, False if alarms else all(needed) or None
    )


def _needed_table(detections: Sequence[Detection]) -> Table:
    bounds = list(
        dict.fromkeys(
            bound for detection in detections for _, bound in detection.needed
        )
    )
    rows = [
        (
            detection.name,
            statistic,
            *(detection.needed.get((statistic, bound)) for bound in bounds),
        )
        for detection in detections
        for statistic in dict.fromkeys(
            statistic for statistic, _ in detection.needed
        )
    ]
    title = (
        "Observations of each world with which the claim is disproved in every game "
        "(–: missed, or not for this statistic)"
    )
    return Table(title, ("bug", "statistic", *bounds), rows)


def _alarms_table(detections: Sequence[Detection]) -> Table:
    rows = [
        (
            detection.name,
            EXAMPLES[detection.name].bug,
            detection.claim,
            *method,
            alarms,
            detection.games,
        )
        for detection in detections
        for method, alarms in detection.alarms.items()
        if alarms or method == detection.named
    ]
    columns = (
        "bug",
        "what is wrong",
        "claimed ε",
        "statistic",
        "bound",
        "alarms",
        "of",
    )
    title = "False alarms for the correct versions, by the named methods and whichever has any"
    return Table(title, columns, rows)


def sensitivity_table() -> Table:
    """What the sanity checks of the sensitivity say of each example."""
    rows = []
    for name, example in EXAMPLES.items():
        measured, possible = check_sensitivity(example, example.broken)
        correct = check_sensitivity(example, example.correct)
        too_large = measured > example.sensitivity * (1 + _ROUNDING)
        rows.append(
            (
                name,
                example.sensitivity,
                measured,
                too_large,
                not possible,
                *correct,
            )
        )
    columns = (
        "bug",
        "claimed",
        "measured",
        "too large",
        "B·s < L",
        "correct",
        "correct: B·s ≥ L",
    )
    return Table(
        "Sensitivity without any noise: two runs of the code", columns, rows
    )


def short_canaries(settings: Settings, observations: int, count: int) -> Table:
    """In how many games the named bound finds a bug if the canary is as long as the clip norm."""
    rows = []
    for name, example in EXAMPLES.items():
        if example.leaks:
            short = dataclasses.replace(example, canary=_scaled(example.canary))
            claim = short.claim(settings.delta)
            bounds = [
                lower_bound(
                    short.play(short.broken, observations, seed)[-1],
                    settings.delta,
                    confidence=settings.confidence,
                    method=NAMED,
                )
                for seed in range(count)
            ]
            rows.append(
                (
                    name,
                    short.statistics[-1].name,
                    sum(b > claim for b in bounds),
                    count,
                )
            )
    title = f"With canaries of the clip norm: bound {NAMED}, {observations:,} observations"
    return Table(title, ("bug", "statistic", "games that find it", "of"), rows)


def _scaled(canary: Canary) -> Canary:
    return lambda step: canary(step) * (_CLIP_NORM / _LONG)


if __name__ == "__main__":
    run(audit, __doc__)
