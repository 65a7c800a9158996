"""Table 3 of Andrew et al. (2024), StackOverflow, in the noise-dominated limit: no training.

    python simulations/andrew_2024/table3.py    # half a minute

T = 2048 rounds, one participation, 1,000 + 1,000 canaries, δ = 341000^-1.1. The script prints the
mean and the standard deviation of ε over the seeds beside `EXPECTED`, and ends with status 1 if a
mean is more than four standard errors from it. It shows two things:

- The paper's maximum over rounds depends on the server's momentum. Without momentum it is many
  times the analytical ε; with momentum 0.9 it is near what the paper prints, which is one run of
  real training. The matched filter meets the analytical ε with and without momentum.
- ε-final can be predicted without training. With known variance it has no bias: theory says ε of
  the Gaussian mechanism with noise z·√T. With fitted variance it is larger and spreads twice as
  far. The paper's value is that of known variance at the lowest noise, and lies between both
  at the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from fl_epe import epsilon_from_record, epsilon_two_gaussians
from fl_epe.auditing import EVERY_ROUND, Adversary
from fl_epe.limit import limit_record
from fl_epe.schedules import ShuffledEpochs
from simulations.andrew_2024.paper_tables import apart, mean_and_sd
from simulations.andrew_2024.stackoverflow import TABLE

ROWS: tuple[tuple[str, float, dict[str, Any]], ...] = (
    (
        "every round, maximum",
        0.0,
        {"adversary": EVERY_ROUND, "statistic": "maximum"},
    ),
    (
        "every round, maximum",
        0.9,
        {"adversary": EVERY_ROUND, "statistic": "maximum"},
    ),
    ("every round, matched filter", 0.0, {"statistic": "matched-filter"}),
    ("every round, matched filter", 0.9, {"statistic": "matched-filter"}),
    (
        "every round, rounds unknown",
        0.9,
        {"adversary": Adversary("all", knows_rounds=False)},
    ),
    (
        "final model, fitted variance",
        0.9,
        {"statistic": "model", "variance": "fitted"},
    ),
    ("final model, known variance", 0.9, {"statistic": "model"}),
)
"""What is printed for each noise multiplier: name, server momentum, options of the estimate."""

EXPECTED = {
    0.0496: (
        (2069.05, 123.55),
        (346.66, 21.35),
        (299.07, 0.77),
        (299.07, 0.77),
        (291.49, 0.78),
        (2.42, 0.33),
        (2.01, 0.15),
    ),
    0.0986: (
        (580.61, 36.27),
        (90.62, 7.08),
        (99.28, 0.46),
        (99.28, 0.46),
        (91.66, 0.46),
        (1.32, 0.30),
        (0.95, 0.14),
    ),
    0.2317: (
        (100.11, 7.66),
        (2.82, 1.16),
        (29.36, 0.28),
        (29.36, 0.28),
        (21.74, 0.28),
        (0.72, 0.28),
        (0.39, 0.13),
    ),
}
"""By z, for each of `ROWS`: mean and standard deviation of ε over seeds 1000 to 1199."""

EXPECTED_SEEDS = 200


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seeds", type=int, default=10, help="runs of each row (default: 10)"
    )
    seeds = range(parser.parse_args(arguments).seeds)
    schedule = ShuffledEpochs(TABLE.rounds, TABLE.epochs)
    failed = False
    for paper in TABLE.rows[1:]:  # the first row has no noise
        z = paper.noise_multiplier
        analytical = epsilon_two_gaussians(0, 1, 1 / z, 1, TABLE.delta)
        print(
            f"z = {z}: analytical {analytical:.1f}, paper: all {paper.all}, final {paper.final}"
        )
        records = {
            momentum: [
                limit_record(
                    schedule, z, TABLE.delta, momentum=momentum, seed=s
                )
                for s in seeds
            ]
            for momentum in (0.0, 0.9)
        }
        for (name, momentum, options), (mean, sd) in zip(
            ROWS, EXPECTED[z], strict=True
        ):
            values = [
                epsilon_from_record(record, **options).epsilon
                for record in records[momentum]
            ]
            wrong = apart(values, mean, sd, EXPECTED_SEEDS)
            failed |= wrong
            print(
                f"  {name:29} momentum {momentum}  {mean_and_sd(values, 8):18}"
                f"expected {mean:8.2f} ± {sd:.2f}{'  PARTS' if wrong else ''}",
                flush=True,
            )
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
