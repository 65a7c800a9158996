"""The reviewers' table: how large must d and k be? d = 10^4 … 10^7 with k = √d.

    python simulations/andrew_2024/dimensions.py            # in the limit: seconds
    python simulations/andrew_2024/dimensions.py --vectors  # real vectors, d up to 10^6: 10 minutes

In the limit the k scores are N(1/z, 1) for every d. So only k matters, and the error falls as 1/√k.

Expected in the limit, 200 runs (seed 0), known variance::

    200 runs, δ = 1e-06, known variance, limit
            d     k   analytical            ours   the paper
        10000   100            1     0.98 ± 0.44   0.98 ± 0.41
        10000   100            3     2.98 ± 0.49   3.00 ± 0.46
        10000   100           10     9.97 ± 0.62   9.89 ± 0.71
       100000   316            1     1.03 ± 0.26   1.05 ± 0.23
       100000   316            3     3.04 ± 0.30   3.00 ± 0.31
       100000   316           10    10.04 ± 0.37   10.05 ± 0.41
      1000000  1000            1     1.00 ± 0.13   0.99 ± 0.14
      1000000  1000            3     3.00 ± 0.15   2.96 ± 0.15
      1000000  1000           10     9.99 ± 0.19   10.00 ± 0.23
     10000000  3162            1     1.00 ± 0.08   1.00 ± 0.07
     10000000  3162            3     3.01 ± 0.09   3.00 ± 0.08
     10000000  3162           10    10.00 ± 0.11   10.01 ± 0.10
"""

from __future__ import annotations

import argparse

import numpy as np

from fl_epe.auditing import Scores, epsilon_of
from simulations.andrew_2024.paper_tables import (
    ONE_SHOT_DELTA,
    ONE_SHOT_NOISES,
    PRINTED,
    mean_and_sd,
)
from simulations.andrew_2024.table2 import cosines_of_one_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--runs", type=int, help="runs a cell (default: 200, with vectors 10)"
    )
    parser.add_argument(
        "--vectors", action="store_true", help="real canaries, d up to 10^6"
    )
    options = parser.parse_args()
    runs = options.runs or (10 if options.vectors else 200)
    print(
        f"{runs} runs, δ = {ONE_SHOT_DELTA:g}, known variance, "
        + ("vectors" if options.vectors else "limit")
    )
    print("        d     k   analytical            ours   the paper")
    for dim, paper in PRINTED.items():
        if options.vectors and dim > 10**6:
            continue
        count = round(dim**0.5)
        drawn = [
            cosines_of_one_run(dim, count, s)
            for s in range(runs * options.vectors)
        ]
        for row, (z, analytical) in enumerate(ONE_SHOT_NOISES):
            rng = np.random.default_rng((0, dim))
            values = [
                epsilon_of(
                    Scores.from_cosines(
                        drawn[seed][row]
                        if options.vectors
                        else rng.normal(1 / z, 1, count) / np.sqrt(dim),
                        dim,
                    ),
                    ONE_SHOT_DELTA,
                ).epsilon
                for seed in range(runs)
            ]
            ours = mean_and_sd(values)
            print(
                f"{dim:9d} {count:5d} {analytical:12g} {ours:>15}   {paper[row]}",
                flush=True,
            )


if __name__ == "__main__":
    main()
