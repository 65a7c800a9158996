"""Does the audit harm the training? Accuracy of ``fl-epe run digits`` with canaries and without.

    python simulations/studies/harm.py --seeds 3  # 3 minutes a seed on two cores

Each seed is trained twice, with the default canaries and with none (``num_canaries=0``), on the
same data, with the same initial model, cohorts and DP noise. The last column is the mean difference
over seeds with its standard error.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

import numpy as np

from fl_epe.config import RunConfig
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, simulate
from fl_epe.tasks import load_task


def accuracy(seed: int, canaries: int | None, task_name: str, rounds: int) -> float:
    """Accuracy on held-out data after the last round."""
    task = load_task(task_name)
    settings = {"rounds": rounds, **task.defaults, "num_canaries": canaries}
    config = RunConfig(clients=task.num_clients, **settings)
    job = Job(task, config, Seeds.derive(seed), evaluate_every=rounds)
    record = simulate(job, workers=min(os.cpu_count() or 1, 8))
    return float(record.metrics["eval_accuracy"][-1])


def main(argv: Sequence[str] | None = None) -> None:
    """Print both accuracies of each seed, their means and their difference."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args(argv)
    print("seed  with canaries  without  difference")
    found = []
    for seed in range(options.seeds):
        both = [accuracy(seed, count, options.task, options.rounds) for count in (None, 0)]
        found.append((*both, both[0] - both[1]))
        print(f"{seed:4}  {both[0]:13.2%}  {both[1]:7.2%}  {both[0] - both[1]:+10.2%}", flush=True)
    means = np.mean(found, axis=0)
    print(f"mean  {means[0]:13.2%}  {means[1]:7.2%}  {means[2]:+10.2%}")
    if len(found) > 1:
        errors = np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
        print(f"s.e.  {errors[0]:13.2%}  {errors[1]:7.2%}  {errors[2]:10.2%}")


if __name__ == "__main__":
    main()
