"""Table 5 of Andrew et al. (2024): one run with 1,000 canaries, or ten runs with 100 each.

    python simulations/andrew_2024/table5.py             # in the limit: a minute
    python simulations/andrew_2024/table5.py --vectors   # with real canaries and noise: minutes

Quantiles of ε-final over 50 repetitions, for T = 2048 rounds and one participation where noise
outweighs the real updates. With ``--vectors``, real canaries in d = 20,000 dimensions are added up
with noise of the same size.

Expected in the limit (seed 0)::

                                 quantiles of ε-final over 50 repetitions
         z  runs × canaries  variance    0.1   0.3   0.5   0.7   0.9   mean ± sd
    0.0496     1 × 1000       fitted    2.03  2.19  2.33  2.43  2.84   2.37 ± 0.32
    0.0496     1 × 1000       known     1.82  1.92  2.00  2.06  2.21   2.01 ± 0.15
                             the paper 1.59 1.75 1.97 2.15 2.46
    0.0496    10 × 100        fitted    2.04  2.20  2.33  2.60  2.93   2.43 ± 0.35
    0.0496    10 × 100        known     1.85  1.95  2.04  2.08  2.16   2.02 ± 0.14
                             the paper 1.65 1.80 1.92 2.16 2.32
    0.0986     1 × 1000       fitted    0.97  1.11  1.24  1.34  1.68   1.28 ± 0.29
    0.0986     1 × 1000       known     0.78  0.87  0.95  1.00  1.14   0.96 ± 0.14
                             the paper 0.81 1.06 1.18 1.33 1.54
    0.0986    10 × 100        fitted    0.98  1.12  1.24  1.47  1.78   1.33 ± 0.32
    0.0986    10 × 100        known     0.80  0.90  0.98  1.02  1.10   0.97 ± 0.13
                             the paper 0.87 1.03 1.16 1.36 1.78
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from fl_epe import CanarySet
from fl_epe.auditing import Scores, epsilon_of
from fl_epe.limit import limit_record
from fl_epe.schedules import ShuffledEpochs
from simulations.andrew_2024.paper_tables import (
    cosines_with_noisy_sum,
    mean_and_sd,
)
from simulations.andrew_2024.stackoverflow import TABLE

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
PAPER = {
    (0.0496, 1): "1.59 1.75 1.97 2.15 2.46",
    (0.0496, 10): "1.65 1.80 1.92 2.16 2.32",
    (0.0986, 1): "0.81 1.06 1.18 1.33 1.54",
    (0.0986, 10): "0.87 1.03 1.16 1.36 1.78",
}
_DIM = 20_000


def cosines_in_the_limit(
    z: float, count: int, seed: int
) -> NDArray[np.float64]:
    """Cosines of the observed canaries with the final model, in 10^9 dimensions."""
    schedule = ShuffledEpochs(TABLE.rounds, TABLE.epochs)
    record = limit_record(
        schedule, z, TABLE.delta, num_canaries=count, unobserved=2, seed=seed
    )
    return np.asarray(record.observed.final * np.sqrt(record.dim / _DIM))


def cosines_of_vectors(z: float, count: int, seed: int) -> NDArray[np.float64]:
    """The same with real vectors: canaries that take part once in noise of the same size."""
    rng = np.random.default_rng((seed, 2))
    noise = rng.standard_normal(_DIM) * z * np.sqrt(TABLE.rounds)
    return cosines_with_noisy_sum(CanarySet(_DIM, count, seed), noise)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument(
        "--vectors", action="store_true", help="real canaries, d = 20,000"
    )
    options = parser.parse_args()
    sample = cosines_of_vectors if options.vectors else cosines_in_the_limit
    print(
        f"{'':28} quantiles of ε-final over {options.repetitions} repetitions"
    )
    print(
        "     z  runs × canaries  variance    0.1   0.3   0.5   0.7   0.9   mean ± sd"
    )
    for z in (0.0496, 0.0986):
        for runs, count in ((1, 1000), (10, 100)):
            for variance in ("fitted", "known"):
                values = []
                for repetition in range(options.repetitions):
                    seeds = range(repetition * 10, repetition * 10 + runs)
                    cosines = np.concatenate(
                        [sample(z, count, seed) for seed in seeds]
                    )
                    values.append(
                        epsilon_of(
                            Scores.from_cosines(cosines, _DIM),
                            TABLE.delta,
                            variance,
                        ).epsilon
                    )
                cells = " ".join(
                    f"{q:5.2f}" for q in np.quantile(values, QUANTILES)
                )
                print(
                    f"{z:6}  {runs:4} × {count:<9}  {variance:8} {cells}   {mean_and_sd(values)}",
                    flush=True,
                )
            print(f"{'':23}  the paper {PAPER[z, runs]}")


if __name__ == "__main__":
    main()
