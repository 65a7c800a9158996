"""Table 3 of Andrew et al. (2024), StackOverflow, in the noise-dominated limit: no training.

    python simulations/paper/table3.py    # a minute

T = 2048 rounds, one participation, 1,000 + 1,000 canaries, δ = 341000^-1.1. It shows two things:

- The paper's maximum over rounds depends on the server's momentum. Without momentum it is many
  times the analytical ε; with momentum 0.9 it is what the paper prints. The matched filter meets
  the analytical ε with and without momentum.
- ε-final can be predicted without training. With fitted variance it is what the paper prints; with
  known variance it has no bias.

Expected (10 seeds, mean ± sd)::

    z = 0.0496: analytical 299.0, paper: all 382.0, final 1.97
      momentum 0.0  every round, maximum           2067.13 ± 88.09
      momentum 0.0  every round, matched filter     299.04 ± 0.74
      momentum 0.0  every round, rounds unknown     291.41 ± 0.74
      momentum 0.0  final model, fitted variance      2.54 ± 0.44
      momentum 0.0  final model, known variance       2.04 ± 0.17
      momentum 0.9  every round, maximum            339.41 ± 16.64
      momentum 0.9  every round, matched filter     299.04 ± 0.74
      momentum 0.9  every round, rounds unknown     291.41 ± 0.74
      momentum 0.9  final model, fitted variance      2.55 ± 0.42
      momentum 0.9  final model, known variance       2.04 ± 0.17
    z = 0.0986: analytical 99.2, paper: all 89.4, final 1.18
      momentum 0.0  every round, maximum            577.18 ± 29.39
      momentum 0.0  every round, matched filter      99.26 ± 0.44
      momentum 0.0  every round, rounds unknown      91.63 ± 0.44
      momentum 0.0  final model, fitted variance      1.43 ± 0.39
      momentum 0.0  final model, known variance       0.98 ± 0.16
      momentum 0.9  every round, maximum             87.74 ± 4.87
      momentum 0.9  every round, matched filter      99.26 ± 0.44
      momentum 0.9  every round, rounds unknown      91.63 ± 0.44
      momentum 0.9  final model, fitted variance      1.44 ± 0.38
      momentum 0.9  final model, known variance       0.98 ± 0.16
    z = 0.2317: analytical 29.3, paper: all 2.693, final 0.569
      momentum 0.0  every round, maximum             97.66 ± 7.11
      momentum 0.0  every round, matched filter      29.35 ± 0.27
      momentum 0.0  every round, rounds unknown      21.73 ± 0.27
      momentum 0.0  final model, fitted variance      0.82 ± 0.36
      momentum 0.0  final model, known variance       0.41 ± 0.15
      momentum 0.9  every round, maximum              2.46 ± 0.74
      momentum 0.9  every round, matched filter      29.35 ± 0.27
      momentum 0.9  every round, rounds unknown      21.73 ± 0.27
      momentum 0.9  final model, fitted variance      0.83 ± 0.35
      momentum 0.9  final model, known variance       0.41 ± 0.15
"""

from __future__ import annotations

import argparse
from typing import Any

from paper_tables import mean_and_sd
from stackoverflow import TABLE

from fl_epe import epsilon_from_record, epsilon_two_gaussians
from fl_epe.asymptotics import limit_record
from fl_epe.mechanism import ServerSGD
from fl_epe.schedules import ShuffledEpochs

STATISTICS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("every round, maximum", {"threat": "all", "statistic": "maximum"}),
    ("every round, matched filter", {"threat": "all", "statistic": "matched-filter"}),
    ("every round, rounds unknown", {"threat": "all", "statistic": "likelihood-ratio"}),
    ("final model, fitted variance", {"statistic": "model", "variance": "fitted"}),
    ("final model, known variance", {"statistic": "model"}),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="runs of each row (default: 10)")
    seeds = range(parser.parse_args().seeds)
    for paper in TABLE.rows[1:]:  # the first row has no noise
        z = paper.noise_multiplier
        analytical = epsilon_two_gaussians(0, 1, 1 / z, 1, TABLE.delta)
        print(f"z = {z}: analytical {analytical:.1f}, paper: all {paper.all}, final {paper.final}")
        for momentum in (0.0, 0.9):
            server = ServerSGD(1.0, momentum)
            schedule = ShuffledEpochs(TABLE.rounds, TABLE.epochs)
            records = [limit_record(schedule, z, TABLE.delta, server=server, seed=s) for s in seeds]
            for name, options in STATISTICS:
                values = [epsilon_from_record(record, **options).epsilon for record in records]
                print(f"  momentum {momentum}  {name:29} {mean_and_sd(values, 8)}", flush=True)


if __name__ == "__main__":
    main()
