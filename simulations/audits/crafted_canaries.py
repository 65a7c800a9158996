"""Is a final model that private, or are random canaries that weak? Canaries made to be remembered.

    python simulations/audits/crafted_canaries.py             # twenty minutes, busy cores
    python simulations/audits/crafted_canaries.py --quick     # seconds
    python simulations/audits/crafted_canaries.py --start     # the quick start's run as well

The tables are those of `fl-epe audit final-model`, for several seeds (each has another model,
data, canary and noise). ``--start`` trains the digits of the quick start on Flower, in process, and
says what theory leaves to a canary of its best round where training does not react.

The noise of other rounds hides a canary that takes part once: the model is mostly that private. The
canary that training amplifies finds twice the ε of a random one, an eighth of the way to what
theory allows. One that takes part in every round is as visible in the final model as in all models.
Linear theory is not met late in the run, where noise has moved the model away from the run near
which the best direction was found. The bound for any distribution cannot pass 4.58 with 400 runs.

Expected (2026-11-23, two cores of a Xeon shared with other work)::

    mean over 3 seeds: μ by theory, best, ε, low, high, bound, GDP bound, allowed
    random direction, loudest round     0.59    2.41    2.31    1.68    2.97    0.54    1.48   24.38
    still coordinates, loudest round    0.59    2.38    2.76    2.10    3.43    0.37    1.71   24.38
    best of round 1 (early)             1.36    6.29    5.22    4.44    6.02    1.44    4.58   24.38
    best of round 56 (late)             1.30    5.93    1.86    1.26    2.50    0.52    1.37   24.38
    still coordinates, every round     29.99  576.72  596.28  545.04  649.77    4.58   29.85  611.21
    quick start, seed 1, δ = 1e-05: ε = 1.72 (1.45 – 1.99) on average, κ = 0.87; best round, no
    feedback: 3.66; allowed: 24.20
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import epsilon_from_record, footprint_fit, round_footprints
from fl_epe.audits import AUDITS, AuditSettings
from fl_epe.reporting import AuditResult


def main(
    seeds: int = 3, *, quick: bool = False, say: Callable[[str], object] = print
) -> list[AuditResult]:
    """Print the audit of each seed, then the mean of every column."""
    results = []
    for seed in range(1, seeds + 1):
        results.append(AUDITS["final-model"].run(AuditSettings(seed=seed, quick=quick)))
        say(f"seed {seed}: {results[-1].finding}\n{results[-1].tables[0].text()}\n")
    tables = [result.tables[0] for result in results]
    say(f"mean over {seeds} seeds: " + ", ".join(tables[0].columns[2:]))
    for number in range(len(tables[0].rows)):
        rows = [table.rows[number] for table in tables]
        means = np.mean([[float(cell or 0.0) for cell in row[2:]] for row in rows], axis=0)
        name = str(rows[0][0]).partition(" (")[0] if seeds == 1 else _common(rows)
        say(f"{name:32}" + "".join(f"{value:8.2f}" for value in means))
    return results


def _common(rows: Sequence[Sequence[object]]) -> str:
    """The name of a row, without a round that differs from seed to seed."""
    names = {str(row[0]) for row in rows}
    if len(names) == 1:
        return names.pop()
    return "best, " + next(iter(names)).rpartition("(")[2].rstrip(")") + " round"


def quick_start(seed: int, say: Callable[[str], object] = print) -> None:
    """The run of the quick start: what its canaries find, and the best round without feedback."""
    from fl_epe.config import RunConfig
    from fl_epe.flower import Job, simulate
    from fl_epe.seeding import Seeds
    from fl_epe.tasks import load_task

    task = load_task("digits")
    config = RunConfig(clients=task.num_clients, delta=1e-5)
    record = simulate(Job(task, config, Seeds.derive(seed), config.rounds))
    found, fit = epsilon_from_record(record), footprint_fit(record, threat="final")
    loudest = float(round_footprints(record, "final")[0].max())
    noise = config.sum_noise_multiplier()
    say(
        f"quick start, seed {seed}, δ = 1e-05: ε = {found.epsilon:.2f} ({found.low:.2f} – "
        f"{found.high:.2f}) on average, κ = {fit.scale:.2f}; best round, no feedback: "
        f"{gaussian_epsilon(1 / loudest, 1e-5):.2f}; allowed: {gaussian_epsilon(noise, 1e-5):.2f}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--start", action="store_true", help="also the quick start's run")
    options = parser.parse_args()
    if options.start:
        quick_start(1)
    main(1 if options.quick else options.seeds, quick=options.quick)
