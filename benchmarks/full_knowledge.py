"""Does an adversary with full knowledge measure the analytical ε in real training?

    python benchmarks/full_knowledge.py                  # ten minutes on two cores
    python benchmarks/full_knowledge.py --repeated 100   # six minutes of processor time

Trains `digits` with its defaults and scores two adversaries: the matched filter, and the adversary
in the definition of DP, who knows all but the canary. The second should meet the analytical ε of
the noisy sum at every noise multiplier, even where the real updates are larger than the noise and
the matched filter stays below.

Two cores, CPU, 2026-11-21, seed 1::

        z  analytical  of the sum   full knowledge           matched filter           error
     0.02     1377.26     1377.17   1378.98 (1375.67 – 1382.29) 1234.27 (1231.19 – 1237.35) 0.1%
     0.05      250.35      250.26    251.04 (249.64 – 252.45)  246.43 (245.04 – 247.82) 0.3%
      0.1       74.76       74.65     75.09 (74.31 – 75.87)    74.73 (73.96 – 75.51)  0.4%
     0.25       17.49       17.35     17.58 (17.18 – 17.99)    17.56 (17.16 – 17.97)  0.5%
      0.5        6.49        6.30      6.45 (6.18 – 6.73)       6.45 (6.18 – 6.73)    0.6%

With ``--repeated`` it asks the same of 150 canaries that take part in every one of 8 rounds of a
small network, a tenth of its dimensions, in as many runs: "error" is the distance of the mean score
from theory, in standard errors over all runs, "found" the deviation of √k mean scores, which should
be 1. Expected::

        z  theory    mean  error  found  covers
      0.3   9.424   9.436    1.6   0.95   96.0%
      1.0   2.814   2.827    1.6   0.95   96.0%
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from fl_epe import epsilon_from_record
from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import STATISTICS, scores_of, seen_by
from fl_epe.config import RunConfig
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, simulate
from fl_epe.tasks import load_task
from fl_epe.tasks.images import Digits

ROUNDS = 8


class _SmallDigits(Digits):
    """Digits of 7×7 pixels and a network of 1,450 parameters."""

    def model(self) -> torch.nn.Module:
        layers = (
            torch.nn.Linear(49, 24),
            torch.nn.ReLU(),
            torch.nn.Linear(24, 10),
        )
        return torch.nn.Sequential(
            torch.nn.AvgPool2d(4), torch.nn.Flatten(), *layers
        )


def repeated(runs: int) -> None:
    """Canaries of every round that fill a tenth of the dimension."""
    print("    z  theory    mean  error  found  covers")
    task = _SmallDigits()
    for z in (0.3, 1.0):
        config = RunConfig(
            clients=task.num_clients,
            rounds=ROUNDS,
            num_canaries=150,
            unobserved=50,
            canary_participations=ROUNDS,
            noise_multiplier=z,
            clip_count_std=5.0,
            full_knowledge=True,
        )
        records = [
            simulate(
                Job(task, config, Seeds.derive(seed), evaluate_every=ROUNDS)
            )
            for seed in range(1, runs + 1)
        ]
        theory = np.sqrt(ROUNDS) / config.sum_noise_multiplier()
        epsilon = gaussian_epsilon(
            config.sum_noise_multiplier(), records[0].delta, ROUNDS
        )
        knowing = STATISTICS["full-knowledge"]
        means = np.array(
            [scores_of(seen_by(r, knowing)).observed.mean() for r in records]
        )
        found = float(np.sqrt(150 * np.mean((means - theory) ** 2)))
        error = (means.mean() - theory) / (means.std(ddof=1) / np.sqrt(runs))
        estimates = [
            epsilon_from_record(record, adversary=knowing) for record in records
        ]
        covers = np.mean([e.low <= epsilon <= e.high for e in estimates])
        print(
            f"{z:5}{theory:8.3f}{means.mean():8.3f}{error:7.1f}{found:7.2f}{covers:8.1%}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--noise", type=float, nargs="*", default=[0.02, 0.05, 0.1, 0.25, 0.5]
    )
    parser.add_argument(
        "--repeated", type=int, metavar="RUNS", help="canaries of every round"
    )
    options = parser.parse_args()
    if options.repeated:
        repeated(options.repeated)
        return
    task = load_task("digits")
    print(
        "    z  analytical  of the sum   full knowledge           matched filter           error"
    )
    for z in options.noise:
        config = RunConfig(
            clients=task.num_clients,
            noise_multiplier=z,
            unobserved=100,
            full_knowledge=True,
        )
        record = simulate(Job(task, config, Seeds.derive(1), evaluate_every=60))
        claimed = gaussian_epsilon(z, record.delta)
        of_the_sum = gaussian_epsilon(
            config.sum_noise_multiplier(), record.delta
        )
        full, known = (
            epsilon_from_record(record, statistic=statistic)
            for statistic in ("full-knowledge", "matched-filter")
        )
        cells = [
            f"{e.epsilon:8.2f} ({e.low:.2f} – {e.high:.2f})"
            for e in (full, known)
        ]
        error = np.abs(full.epsilon / claimed - 1)
        print(
            f"{z:5}  {claimed:10.2f}  {of_the_sum:10.2f}  {cells[0]:<25}{cells[1]:<25}{error:5.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
