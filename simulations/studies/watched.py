"""How often does an ε that is shown after every round mislead, and how soon may one stop?

    python simulations/studies/watched.py    # a minute on one core

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
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing import confidence_sequence
from fl_epe.auditing.sequential import Boundary, crossing_probability

DELTA = 1e-5
RUNS, ROUNDS = 2000, 1000
TRUTH = 1.0
CLAIMS = (0.5, 1.0, 4.0, 10.0)

Floats = NDArray[np.float64]


def shift(epsilon: float) -> float:
    """The μ whose ε at δ is ``epsilon``."""
    return float(
        scipy.optimize.brentq(
            lambda mu: float(epsilon_two_gaussians(0, 1, mu, 1, DELTA)) - epsilon, 1e-3, 100
        )
    )


def halves(rounds: int, confidence: float = 0.95) -> dict[str, Floats]:
    """Half the width of each kind of interval after 1 … ``rounds`` scores."""
    seen = np.arange(1, rounds + 1)
    out = {"fixed-time": scipy.special.ndtri((1 + confidence) / 2) / np.sqrt(seen)}
    for name, horizon in (("planned", rounds), ("plan 10% off", 1.1 * rounds), ("no plan", None)):
        low, high = confidence_sequence(np.zeros(rounds), horizon=horizon, confidence=confidence)
        out[name] = (high - low) / 2
    return out


def walks(runs: int, rounds: int, seed: int) -> Iterator[Floats]:
    """Means so far of scores N(0, 1), a run after the other."""
    rng, seen = np.random.default_rng(seed), np.arange(1, rounds + 1)
    for _ in range(runs):
        yield np.cumsum(rng.standard_normal(rounds)) / seen


def misleading(runs: int, rounds: int, seed: int = 1) -> dict[str, float]:
    """Share of runs in which the lower end ever exceeds the truth, by the kind of interval."""
    kinds = halves(rounds)
    found = dict.fromkeys(kinds, 0)
    for means in walks(runs, rounds, seed):
        for name, half in kinds.items():
            found[name] += bool(np.any(means > half))
    return {name: count / runs for name, count in found.items()}


def widths(rounds: int) -> dict[str, float]:
    """Width at the end over that of the fixed-time interval, in ε, around the truth."""
    out = {}
    for name, half in halves(rounds).items():
        low, high = (
            float(epsilon_two_gaussians(0, 1, max(shift(TRUTH) + side * half[-1], 0), 1, DELTA))
            for side in (-1, 1)
        )
        out[name] = high - low
    return {name: width / out["fixed-time"] for name, width in out.items()}


def fixed_design(claim: float, confidence: float, power: float) -> int:
    """Canaries with which one look at the end declares a violation of factor 2 with ``power``."""
    drift = shift(2 * claim) - shift(claim)
    both = scipy.special.ndtri(confidence) + scipy.special.ndtri(power)
    return math.ceil(float(both / drift) ** 2)


def stopping(
    claim: float, confidence: float, power: float, runs: int, seed: int = 2
) -> tuple[int, float, float]:
    """Canaries of the fixed design, the median share of them that is used, and runs that declare.

    ``confidence`` is one-sided. A run that does not declare counts as more than all canaries.
    """
    count = fixed_design(claim, confidence, power)
    drift = shift(2 * claim) - shift(claim)
    seen = np.arange(1, count + 1)
    height = Boundary(1 - confidence, count).at(seen)
    rng = np.random.default_rng(seed)
    used = np.full(runs, np.inf)
    for run in range(runs):
        above = np.cumsum(rng.normal(drift, 1.0, count)) > height
        if above.any():
            used[run] = np.argmax(above) + 1
    return count, float(np.median(used)) / count, float(np.mean(np.isfinite(used)))


def heights(error: float = 0.025) -> Iterator[tuple[float, float]]:
    """Exponents Δ and their c."""
    for exponent in (0.0, 0.1, 0.2, 0.25, 0.3, 0.4):

        def excess(height: float, exponent: float = exponent) -> float:
            return crossing_probability(height, shape=exponent) - error

        yield exponent, float(scipy.optimize.brentq(excess, 1.96, 4.0, xtol=1e-6))


def main(runs: int, rounds: int) -> None:
    """Print the three tables."""
    print(f"1. lower end ever above the truth in {rounds} rounds, share of {runs} runs")
    for name, share in misleading(runs, rounds).items():
        print(f"   {name:14} {share:7.2%}")
    print("2. width in ε at the end, over that of the fixed-time interval")
    for name, ratio in widths(rounds).items():
        print(f"   {name:14} {ratio:7.3f}")
    print("3. a violation of factor 2, and the share of the fixed design's canaries")
    print("   confidence  power  claim  canaries  median share  declared")
    for confidence, power in ((0.975, 0.95), (0.99, 0.95), (0.975, 0.9)):
        for claim in CLAIMS:
            count, share, declared = stopping(claim, confidence, power, runs)
            print(f"   {confidence:10} {power:6} {claim:6} {count:9} {share:13.1%} {declared:9.1%}")
    print("4. exponents of the boundary\n         Δ      c  width  power 95%  power 90%")
    once = float(scipy.special.ndtri(0.975))
    for exponent, height in heights():
        early = [
            (height / (once + float(scipy.special.ndtri(power)))) ** (1 / (1 - exponent))
            for power in (0.95, 0.9)
        ]
        times = f"{early[0]:10.1%} {early[1]:10.1%}"
        print(f"   {exponent:7} {height:6.3f} {height / once:6.3f} {times}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="200 runs of 200 rounds")
    quick = parser.parse_args().quick
    main(*((200, 200) if quick else (RUNS, ROUNDS)))
