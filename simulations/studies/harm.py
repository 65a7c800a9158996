"""Does the audit harm the training, and is it true? Real runs with canaries and without.

    python simulations/studies/harm.py --seeds 3  # 3 minutes a seed on two cores
    python simulations/studies/harm.py --task fashion-mnist --rounds 10

Each seed is trained twice, with the default canaries and with none (``num_canaries=0``), on the
same data, with the same initial model, cohorts and DP noise. Printed are both accuracies (R² of a
regression), and κ of an adversary with full knowledge: by how much scores are larger than what
theory expects from the rounds in which each canary took part, which is 1. The last lines are the
means over seeds and their standard errors.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

import numpy as np

from fl_epe.auditing import STATISTICS, AuditRecord, scores_of, seen_by
from fl_epe.config import RunConfig
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, simulate
from fl_epe.tasks import Task, load_task


def trained(
    task: Task, seed: int, canaries: int | None, rounds: int
) -> AuditRecord:
    """The record of a run."""
    settings = {"rounds": rounds, **task.defaults, "num_canaries": canaries}
    config = RunConfig(
        clients=task.num_clients, full_knowledge=canaries is None, **settings
    )
    job = Job(task, config, Seeds.derive(seed), evaluate_every=rounds)
    return simulate(job, workers=min(os.cpu_count() or 1, 8))


def quality(record: AuditRecord) -> float:
    """Accuracy or R² on held-out data after the last round."""
    name = "eval_accuracy" if "eval_accuracy" in record.metrics else "eval_r2"
    return float(record.metrics[name][-1])


def kappa(record: AuditRecord) -> float:
    """The least-squares slope of the scores over what theory expects of each."""
    scores = scores_of(seen_by(record, STATISTICS["full-knowledge"]))
    z = record.mechanism.sum_noise_multiplier
    assert scores.expected is not None
    assert z is not None
    return float(
        z * scores.observed @ scores.expected / np.sum(scores.expected**2)
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Print the values of each seed, their means and standard errors."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--task", default="digits")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument(
        "--only-audited", action="store_true", help="no run without canaries"
    )
    options = parser.parse_args(argv)
    task = load_task(options.task)
    print("seed  with canaries  without  difference      κ   share", flush=True)
    rows = []
    for seed in range(options.first, options.first + options.seeds):
        audited = trained(task, seed, None, options.rounds)
        without = np.nan
        if not options.only_audited:
            without = quality(trained(task, seed, 0, options.rounds))
        canaries = float(audited.presence.sum(axis=1).mean())
        share = canaries / (canaries + audited.mechanism.cohort_size)
        accuracies = quality(audited), without
        rows.append(
            (*accuracies, accuracies[0] - accuracies[1], kappa(audited), share)
        )
        _show(f"{seed:4}", rows[-1])
    _show("mean", np.mean(rows, axis=0))
    if len(rows) > 1:
        _show("s.e.", np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows)))


def _show(what: str, values: Sequence[float] | np.ndarray) -> None:
    with_canaries, without, difference, slope, share = values
    print(
        f"{what}  {with_canaries:13.2%}  {without:7.2%}  {difference:+10.2%}  {slope:.3f}  "
        f"{share:.1%}",
        flush=True,
    )


if __name__ == "__main__":
    main()
