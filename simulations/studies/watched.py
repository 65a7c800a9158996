"""How often does an ε that is shown after every round mislead, and how soon may one stop?

    python simulations/studies/watched.py    # three minutes on one core

Scores are N(μ, 1), one canary after the other, as in the limit of a large model (δ = 10⁻⁵).

1. Peeking: 2,000 runs of 1,000 rounds with a canary each, whose true ε is 1. In how many does the
   lower end that is shown EVER exceed the truth? "fixed-time" is an interval for one look that is
   computed anew after every round, as it was shown before; the others are confidence sequences.
2. Width of the interval at the end over that of the fixed-time interval.
3. Stopping: the truth is twice the claimed ε. The fixed design has as many canaries as give one
   look at the end, at the same (one-sided) confidence, the stated power. Which share of them has
   been used when the watched lower end exceeds the claim, in the median of 2,000 runs? "declared"
   is the share of runs in which it did within the fixed design's canaries.
4. Exponents Δ of the boundary c·t^Δ: c at a one-sided 2.5%, the width at the end over that of one
   look, and the share of the fixed design's canaries at which the mean path meets the boundary, if
   its power is 95% or 90%.

5. Uneven runs: 2,000 runs of 60 rounds with 100 canaries who take part as a schedule says. "ever"
   is the share of runs in which the lower end is ever above the truth of that moment: the mean
   expected score of the canaries that took part so far, times κ, which is 1. (Where κ falls from
   1.5 to 0.5, times its mean over the participations so far.) "end" is the share in which it is
   ever above that truth at the end of the run. "above" is as "ever", for the upper end below the
   truth.
Expected::

    1. lower end ever above the truth in 1000 rounds, share of 2000 runs
       fixed-time      30.30%
       planned          2.80%
       plan 10% off     2.30%
       no plan          1.80%
    2. width in ε at the end, over that of the fixed-time interval
       fixed-time       1.000
       planned          1.203
       plan 10% off     1.238
       no plan          1.653
    3. a violation of factor 2, and the share of the fixed design's canaries
       confidence  power  claim  canaries  median share  declared
            0.975   0.95    0.5       821         53.1%     93.0%
            0.975   0.95    1.0       239         54.0%     93.1%
            0.975   0.95    4.0        24         58.3%     90.7%
            0.975   0.95   10.0         7         57.1%     94.0%
             0.99   0.95    0.5       996         56.7%     93.8%
             0.99   0.95    1.0       290         57.2%     93.0%
             0.99   0.95    4.0        29         58.6%     92.2%
             0.99   0.95   10.0         8         62.5%     93.1%
            0.975    0.9    0.5       664         61.0%     87.0%
            0.975    0.9    1.0       193         61.1%     87.3%
            0.975    0.9    4.0        20         65.0%     85.4%
            0.975    0.9   10.0         6         66.7%     89.4%
    4. exponents of the boundary
             Δ      c  width  power 95%  power 90%
           0.0  2.241  1.144      62.2%      69.1%
           0.1  2.283  1.165      60.2%      67.8%
           0.2  2.343  1.195      58.4%      66.6%
          0.25  2.383  1.216      57.6%      66.4%
           0.3  2.435  1.243      57.1%      66.5%
           0.4  2.613  1.333      58.5%      69.8%
    5. uneven runs
                                  ever    end  above
       five times                 1.7%   0.7%   2.0%
       Poisson, 3 on average      1.4%   0.5%   1.4%
       device classes             1.8%   0.9%   1.8%
       capped at 6                1.5%   0.8%   2.1%
       most rounds empty          0.9%   0.9%   0.5%
       30% of rounds lost         0.5%   0.3%   0.7%
       scores fall to a tenth     0.1%  13.8%   0.0%

(and two rows more in 5. Rounds that agree: whitened_runs.py.)
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing.answer.epsilon_so_far import UNPLANNED
from fl_epe.auditing.estimate.confidence_sequence import (
    boundary,
    crossing_probability,
)
from fl_epe.schedules import Capped, Poisson, Schedule, make_schedule, presence
from fl_epe.schedules.availability import DeviceClasses

DELTA = 1e-5
RUNS, ROUNDS = 2000, 1000
TRUTH = 1.0
CLAIMS = (0.5, 1.0, 4.0, 10.0)

Floats = NDArray[np.float64]


def shift(epsilon: float) -> float:
    """The μ whose ε at δ is ``epsilon``."""
    return float(
        scipy.optimize.brentq(
            lambda mu: (
                float(epsilon_two_gaussians(0, 1, mu, 1, DELTA)) - epsilon
            ),
            1e-3,
            100,
        )
    )


def halves(rounds: int, confidence: float = 0.95) -> dict[str, Floats]:
    """Half the width of each kind of interval after 1 … ``rounds`` scores."""
    observed = np.arange(1, rounds + 1)
    out = {
        "fixed-time": scipy.special.ndtri((1 + confidence) / 2)
        / np.sqrt(observed)
    }
    for name, horizon in (
        ("planned", rounds),
        ("plan 10% off", 1.1 * rounds),
        ("no plan", None),
    ):
        error, end = (1 - confidence) / 2, horizon or UNPLANNED
        out[name] = (
            boundary(observed, error, end, horizon is not None) / observed
        )
    return out


def walks(runs: int, rounds: int, seed: int) -> Iterator[Floats]:
    """Means so far of scores N(0, 1), a run after the other."""
    rng, observed = np.random.default_rng(seed), np.arange(1, rounds + 1)
    for _ in range(runs):
        yield np.cumsum(rng.standard_normal(rounds)) / observed


def misleading(runs: int, rounds: int, seed: int = 1) -> dict[str, float]:
    """Share of runs in which the lower end ever exceeds the truth, by the kind of interval."""
    kinds = halves(rounds)
    counts = dict.fromkeys(kinds, 0)
    for means in walks(runs, rounds, seed):
        for name, half in kinds.items():
            counts[name] += bool(np.any(means > half))
    return {name: count / runs for name, count in counts.items()}


def widths(rounds: int) -> dict[str, float]:
    """Width at the end over that of the fixed-time interval, in ε, around the truth."""
    out = {}
    for name, half in halves(rounds).items():
        low, high = (
            float(
                epsilon_two_gaussians(
                    0, 1, max(shift(TRUTH) + side * half[-1], 0), 1, DELTA
                )
            )
            for side in (-1, 1)
        )
        out[name] = high - low
    return {name: width / out["fixed-time"] for name, width in out.items()}


def fixed_design(claim: float, confidence: float, power: float) -> int:
    """Canaries with which one look at the end declares a violation of factor 2 with ``power``."""
    drift = shift(2 * claim) - shift(claim)
    quantiles = scipy.special.ndtri(confidence) + scipy.special.ndtri(power)
    return math.ceil(float(quantiles / drift) ** 2)


def stopping(
    claim: float, confidence: float, power: float, runs: int, seed: int = 2
) -> tuple[int, float, float]:
    """Canaries of the fixed design, the median share of them that is used, and runs that declare.

    ``confidence`` is one-sided. A run that does not declare counts as more than all canaries.
    """
    count = fixed_design(claim, confidence, power)
    drift = shift(2 * claim) - shift(claim)
    observed = np.arange(1, count + 1)
    height = boundary(observed, 1 - confidence, count)
    rng = np.random.default_rng(seed)
    used = np.full(runs, np.inf)
    for run in range(runs):
        above = np.cumsum(rng.normal(drift, 1.0, count)) > height
        if above.any():
            used[run] = np.argmax(above) + 1
    return (
        count,
        float(np.median(used)) / count,
        float(np.mean(np.isfinite(used))),
    )


def heights(error: float = 0.025) -> Iterator[tuple[float, float]]:
    """Exponents Δ and their c."""
    for exponent in (0.0, 0.1, 0.2, 0.25, 0.3, 0.4):

        def excess(height: float, exponent: float = exponent) -> float:
            return crossing_probability(height, exponent=exponent) - error

        yield (
            exponent,
            float(scipy.optimize.brentq(excess, 1.96, 4.0, xtol=1e-6)),
        )


PERIOD, WATCHED = 60, 100  # rounds and canaries of the uneven runs


@dataclasses.dataclass(frozen=True)
class Uneven:
    """Runs in which canaries, or rounds, differ.

    Attributes:
        schedule: the participation schedule.
        canaries: how many.
        falls: each round's expected score is this much smaller at the end than at the start.
        lost: share of rounds that are lost.
        drifts: whether κ falls from 1.5 to 0.5, instead of being 1.
    """

    schedule: Schedule
    canaries: int = WATCHED
    falls: float = 1.0
    lost: float = 0.0
    drifts: bool = False


UNEVEN = {
    "five times": Uneven(make_schedule("balls-in-bins", PERIOD, 5)),
    "Poisson, 3 on average": Uneven(Poisson(PERIOD, 3 / PERIOD)),
    "device classes": Uneven(DeviceClasses(PERIOD, (0.5, 0.02), (0.1, 0.9))),
    "capped at 6": Uneven(Capped(Poisson(PERIOD, 5 / PERIOD), per_run=6)),
    "most rounds empty": Uneven(Poisson(PERIOD, 1 / PERIOD), canaries=8),
    "30% of rounds lost": Uneven(Poisson(PERIOD, 3 / PERIOD), lost=0.3),
    "scores fall to a tenth": Uneven(
        DeviceClasses(PERIOD, (0.5, 0.02), (0.1, 0.9)), falls=10
    ),
    "scores rise tenfold": Uneven(
        DeviceClasses(PERIOD, (0.5, 0.02), (0.1, 0.9)), falls=0.1
    ),
    "κ falls": Uneven(
        DeviceClasses(PERIOD, (0.5, 0.02), (0.1, 0.9)), drifts=True
    ),
}


def uneven(setting: Uneven, runs: int, seed: int = 3) -> dict[str, float]:
    """Share of runs in which an end of the interval is ever on the wrong side of the truth."""
    rng = np.random.default_rng(seed)
    signal = np.geomspace(1, 1 / setting.falls, PERIOD)
    kappa = np.linspace(1.5, 0.5, PERIOD) if setting.drifts else np.ones(PERIOD)
    planned = setting.canaries * setting.schedule.participations()
    wrong = {"ever": 0, "end": 0, "above": 0}
    for _ in range(runs):
        is_present = presence(setting.schedule, setting.canaries, rng)
        is_present &= (rng.random(PERIOD) >= setting.lost)[:, None]
        count = is_present.sum(axis=1)
        scores = count * kappa * signal + np.sqrt(count) * rng.standard_normal(
            PERIOD
        )
        gained, shown = np.cumsum(signal**2 * count), np.cumsum(signal * scores)
        true = np.cumsum(signal**2 * count * kappa)
        some = np.flatnonzero(
            np.cumsum(is_present, axis=0).astype(bool).sum(axis=1) >= 2
        )
        if not len(some):
            continue
        expected_scores = np.sqrt(
            np.cumsum(signal[:, None] ** 2 * is_present, axis=0)
        )[some]
        mean = expected_scores.sum(axis=1) / np.count_nonzero(
            expected_scores, axis=1
        )
        unit = signal[np.flatnonzero(count)[0]] ** 2
        half = boundary(gained[some], 0.025, 1.1 * planned * unit)
        truth = mean * true[some] / gained[some]
        low, high = (
            mean * (shown[some] + side * half) / gained[some]
            for side in (-1, 1)
        )
        wrong["ever"] += bool(np.any(low > truth))
        wrong["end"] += bool(np.any(low > truth[-1]))
        wrong["above"] += bool(np.any(high < truth))
    return {name: wrong_runs / runs for name, wrong_runs in wrong.items()}


def main(runs: int, rounds: int) -> None:
    """Print the tables."""
    print(
        f"1. lower end ever above the truth in {rounds} rounds, share of {runs} runs"
    )
    for name, share in misleading(runs, rounds).items():
        print(f"   {name:14} {share:7.2%}")
    print("2. width in ε at the end, over that of the fixed-time interval")
    for name, ratio in widths(rounds).items():
        print(f"   {name:14} {ratio:7.3f}")
    print(
        "3. a violation of factor 2, and the share of the fixed design's canaries"
    )
    print("   confidence  power  claim  canaries  median share  declared")
    for confidence, power in ((0.975, 0.95), (0.99, 0.95), (0.975, 0.9)):
        for claim in CLAIMS:
            count, share, declared = stopping(claim, confidence, power, runs)
            print(
                f"   {confidence:10} {power:6} {claim:6} {count:9} {share:13.1%} {declared:9.1%}"
            )
    print(
        "4. exponents of the boundary\n         Δ      c  width  power 95%  power 90%"
    )
    once = float(scipy.special.ndtri(0.975))
    for exponent, height in heights():
        early = [
            (height / (once + float(scipy.special.ndtri(power))))
            ** (1 / (1 - exponent))
            for power in (0.95, 0.9)
        ]
        times = f"{early[0]:10.1%} {early[1]:10.1%}"
        print(f"   {exponent:7} {height:6.3f} {height / once:6.3f} {times}")
    print("5. uneven runs\n                              ever    end  above")
    for name, setting in UNEVEN.items():
        shares = "".join(
            f"{share:7.1%}" for share in uneven(setting, runs).values()
        )
        print(f"   {name:24}{shares}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="200 runs of 200 rounds"
    )
    quick = parser.parse_args().quick
    main(*((200, 200) if quick else (RUNS, ROUNDS)))
