"""What does it cost to score all canaries in a round? Rotated ones against independent ones.

    python benchmarks/scoring.py            # 2 minutes on two cores; --quick: seconds

At the size of the StackOverflow LSTM a `CanaryScorer` is shown the released mean of 60 rounds, as a
run shows it to them, with the further canaries on which the null is measured. Independent canaries
wait until `SCORE_MEMORY` is full and are then scored together, so one full block of rounds is timed
and divided by its rounds. Memory is the peak of what NumPy holds beyond the vectors of the caller,
in vectors of the model (float32), while the first rounds are scored; the family's signs and its
base are in it.

2,000 canaries and 129,072 further ones, two cores, 2026-11-22::

    4,050,748 parameters, 2,000 canaries, 60 rounds
    rotated         0.123 s a round (median), the first 0.379 s
                 all rounds 7.6 s; peak 4.5 vectors of the model
    independent     3.268 s a round, 27 times as long

       dimension       ms   ns / (d log2 d)        canaries       ms   at 4,050,748 parameters
         100,000      4.1              2.44             100     91.4
         300,000     11.4              2.09           1,000     93.4
       1,206,590     59.5              2.44          10,000     89.4
       4,050,748     99.4              1.12         100,000     98.4
      10,000,000    437.7              1.88       1,000,000    158.9

A dimension just below a power of two, as 4,050,748 is, costs least.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np

from fl_epe.canaries import SCORE_MEMORY, CanaryScorer, CanarySet
from fl_epe.canaries.directions import rotation
from fl_epe.seeding import generator

LSTM, CNN = 4_050_748, 1_206_590
CANARIES, ROUNDS = 2000, 60


def released(dim: int, rounds: int) -> Iterator[np.ndarray]:
    """The means of some rounds: float64, as a server has them, each new."""
    for t in range(rounds):
        yield generator(1, t).standard_normal(dim)


def rotated(dim: int, rounds: int) -> tuple[list[float], float]:
    """Seconds of each round, the first with all that is made once; and the peak in vectors."""
    rotation.cache_clear()
    scorer = CanaryScorer(CanarySet(dim, CANARIES, 1))
    times = []
    for mean in released(dim, rounds):
        began = time.perf_counter()
        scorer.add("mean", mean)
        times.append(time.perf_counter() - began)
    rotation.cache_clear()
    means = list(released(dim, 2))
    tracemalloc.start()
    scorer = CanaryScorer(CanarySet(dim, CANARIES, 1))
    before = tracemalloc.get_traced_memory()[0]
    for mean in means:
        scorer.add("mean", mean)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return times, peak / (4 * dim)


def independent(dim: int, canaries: int) -> float:
    """Seconds of a round, of a full block of them."""
    scorer = CanaryScorer(CanarySet(dim, canaries, 1, "sphere"))
    block = max(1, SCORE_MEMORY // (4 * dim))
    seconds = 0.0
    for mean in released(dim, block):
        began = time.perf_counter()
        scorer.add("mean", mean)
        seconds += time.perf_counter() - began
    return seconds / block


def growth(dims: tuple[int, ...], counts: tuple[int, ...]) -> None:
    """Print how long a vector takes by dimension, and by the number of canaries."""
    print(f"\n{'dimension':>12}{'ms':>9}{'ns / (d log2 d)':>18}")
    for dim in dims:
        ms = 1e3 * one_vector(dim, CANARIES)
        print(
            f"{dim:>12,}{ms:9.1f}{1e6 * ms / dim / np.log2(dim):18.2f}",
            flush=True,
        )
    print(f"\n{'canaries':>12}{'ms':>9}   at {dims[-2]:,} parameters")
    for count in counts:
        print(
            f"{count:>12,}{1e3 * one_vector(dims[-2], count):9.1f}", flush=True
        )


def one_vector(dim: int, count: int) -> float:
    """Median of seven."""
    canaries, mean = CanarySet(dim, count, 1), next(released(dim, 1))
    canaries.dot(mean)
    times = []
    for _ in range(7):
        began = time.perf_counter()
        canaries.dot(mean)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a hundredth of the size"
    )
    small = parser.parse_args().quick
    dim, rounds, canaries = (
        (LSTM // 50, 3, 20) if small else (LSTM, ROUNDS, CANARIES)
    )
    times, vectors = rotated(dim, rounds)
    slow = independent(dim, canaries)
    fast = statistics.median(times[1:])
    print(f"{dim:,} parameters, {canaries:,} canaries, {rounds} rounds")
    print(
        f"rotated      {fast:8.3f} s a round (median), the first {times[0]:.3f} s"
    )
    print(
        f"             all rounds {sum(times):.1f} s; peak {vectors:.1f} vectors of the model"
    )
    print(
        f"independent  {slow:8.3f} s a round, {slow / fast:.0f} times as long"
    )
    scale = 100 if small else 1
    dims = (100_000, 300_000, CNN, LSTM, 10_000_000)
    growth(
        tuple(d // scale for d in dims),
        tuple(max(2, 10**p // scale) for p in range(2, 7)),
    )


if __name__ == "__main__":
    main()
