"""Does the interval of a difference of two ε hold, and how often are equal runs told apart?

    python simulations/studies/differences.py    # minutes on one core; --quick: seconds

Scores are N(μ, 1), as in the limit of a large model (δ = 10⁻⁵). All intervals are at 95%.

1. Independent runs: pairs of runs whose true ε are known, each with its own number of canaries.
   "covers" is the share of pairs whose interval contains the true difference, "called" the share in
   which the difference is called larger than chance. Where both ε are equal that is a false alarm.
   "fitted" estimates each ε by two fitted Gaussians, as the paper's maximum.
2. Runs that share their chance: scores of the second are those of the first, shifted, or mirrored.
   "squares" is the interval for independent runs, "any" the one that holds whatever they share.
3. Equal runs in the limit, 60 canaries each, by their headlines: the share of comparisons of two
   or three runs with any false alarm, for each adversary. Of three, as in `compare_runs`, each
   pair's interval is at 1 − 0.05/3.

Expected::

    1. independent runs, 2000 pairs       covers  called
       equal, 100 and 100                  94.2%    5.8%
       equal, 30 and 1000                  95.5%    4.5%
       both 0                              98.6%    1.5%
       0 and small                         95.9%   51.5%
       small and large                     93.8%  100.0%
       close, many                         94.2%   60.5%
       large                               95.5%    4.5%
       equal, 100 and 100, fitted          99.9%    0.1%
    2. runs that share their chance      squares     any
       the same                           100.0%  100.0%
       mirrored                            83.7%   97.2%
    3. 200 comparisons of equal runs     final     all
       epochs, 2 runs                       5.5%    2.0%
       epochs, 3 runs                       2.0%    3.0%
       poisson, 2 runs                      7.5%    5.0%
       poisson, 3 runs                      4.0%    4.5%
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fl_epe import AuditRecord, epsilon_from_record, epsilon_two_gaussians
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    Adversary,
    EpsilonEstimate,
    Scores,
    epsilon_difference,
    epsilon_of,
)
from fl_epe.limit import limit_record
from fl_epe.schedules import Poisson, Schedule, ShuffledEpochs

Floats = NDArray[np.float64]

DELTA = 1e-5
INDEPENDENT: dict[str, tuple[float, int, float, int]] = {
    "equal, 100 and 100": (1.0, 100, 1.0, 100),
    "equal, 30 and 1000": (1.0, 30, 1.0, 1000),
    "both 0": (0.0, 100, 0.0, 100),
    "0 and small": (0.0, 100, 0.3, 100),
    "small and large": (0.3, 100, 2.0, 100),
    "close, many": (1.0, 1000, 1.1, 1000),
    "large": (6.0, 50, 6.0, 50),
}
"""Mean score and number of canaries of either run."""

SHARED: dict[str, float] = {"the same": 1.0, "mirrored": -1.0}
"""How the second run's chance follows from that of the first."""

SCHEDULES: dict[str, Callable[[], Schedule]] = {
    "epochs": lambda: ShuffledEpochs(6, 2),
    "poisson": lambda: Poisson(6, 0.3),
}


def truth(mean: float) -> float:
    """ε of scores with this mean."""
    return float(epsilon_two_gaussians(0.0, 1.0, mean, 1.0, DELTA))


def known(scores: Floats, confidence: float = 0.95) -> EpsilonEstimate:
    """ε of scores whose null is N(0, 1)."""
    return epsilon_of(
        Scores(scores, standard_null=True), DELTA, confidence=confidence
    )


def independent(
    name: str, runs: int, *, fitted: bool = False
) -> tuple[float, float]:
    """Shares of pairs whose interval covers, and which are called larger than chance."""
    rng = np.random.default_rng(1)
    first, many, second, more = INDEPENDENT[name]
    wanted = truth(first) - truth(second)
    covers = called = 0
    for _ in range(runs):
        estimates = []
        for mean, count in ((first, many), (second, more)):
            scores = mean + rng.standard_normal(count)
            null = rng.standard_normal(count)
            estimates.append(
                epsilon_of(Scores(scores, null), DELTA)
                if fitted
                else known(scores)
            )
        difference = epsilon_difference(*estimates)
        covers += difference.low <= wanted <= difference.high
        called += difference.larger_than_chance
    return covers / runs, called / runs


def shared(
    sign: float, runs: int, means: tuple[float, float] = (1.0, 1.2)
) -> tuple[float, float]:
    """Coverage of both intervals where the runs share their chance."""
    rng = np.random.default_rng(2)
    wanted = truth(means[0]) - truth(means[1])
    hits = [0, 0]
    for _ in range(runs):
        chance = rng.standard_normal(100)
        scores = means[0] + chance, means[1] + sign * chance
        for place, confidence in enumerate((0.95, 0.975)):
            first, second = (known(values, confidence) for values in scores)
            difference = epsilon_difference(
                first, second, independent=place == 0
            )
            hits[place] += difference.low <= wanted <= difference.high
    return hits[0] / runs, hits[1] / runs


def headline(
    record: AuditRecord, adversary: Adversary, confidence: float
) -> EpsilonEstimate:
    """The answer of a run."""
    return epsilon_from_record(
        record, adversary=adversary, confidence=confidence
    )


def whole(kind: str, count: int, runs: int) -> dict[Adversary, float]:
    """Share of comparisons of ``count`` equal runs with a false alarm, for each adversary."""
    alarms: dict[Adversary, int] = {FINAL_MODEL: 0, EVERY_ROUND: 0}
    pairs = list(itertools.combinations(range(count), 2))
    confidence = 1 - 0.05 / len(pairs)
    for number in range(runs):
        records = [
            limit_record(
                SCHEDULES[kind](),
                0.5,
                DELTA,
                num_canaries=60,
                unobserved=2,
                seed=10 * number + at,
            )
            for at in range(count)
        ]
        for adversary in alarms:
            results = [
                headline(record, adversary, confidence) for record in records
            ]
            alarms[adversary] += any(
                epsilon_difference(
                    results[first], results[second]
                ).larger_than_chance
                for first, second in pairs
            )
    return {adversary: total / runs for adversary, total in alarms.items()}


def main(
    runs: int = 2000, comparisons: int = 200, say: Callable[[str], None] = print
) -> None:
    """Print every table.

    Args:
        runs: pairs for each row of the first two tables.
        comparisons: for each row of the third.
        say: takes a line.
    """
    say(f"1. independent runs, {runs} pairs       covers  called")
    for name in INDEPENDENT:
        covers, called = independent(name, runs)
        say(f"   {name:32} {covers:8.1%} {called:7.1%}")
    covers, called = independent("equal, 100 and 100", runs, fitted=True)
    say(f"   {'equal, 100 and 100, fitted':32} {covers:8.1%} {called:7.1%}")
    say("2. runs that share their chance      squares     any")
    for name, sign in SHARED.items():
        squares, anything = shared(sign, runs)
        say(f"   {name:32} {squares:8.1%} {anything:7.1%}")
    say(f"3. {comparisons} comparisons of equal runs     final     all")
    for kind in SCHEDULES:
        for count in (2, 3):
            counts = whole(kind, count, comparisons)
            name = f"{kind}, {count} runs"
            say(
                f"   {name:32} {counts[FINAL_MODEL]:8.1%} {counts[EVERY_ROUND]:7.1%}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Does the interval of a difference of two ε hold?"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few runs of each kind"
    )
    main(*((100, 10) if parser.parse_args().quick else (2000, 200)))
