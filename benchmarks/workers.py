"""What does another worker bring, what goes over the wire, and what does the audit add?

    python benchmarks/workers.py                       # one machine: threads, Ray, SuperNodes
    RAY_ADDRESS=host:6379 python benchmarks/workers.py --backends ray --workers 2 4 8

The digits task (1,206,590 parameters), each round with ``--cohort`` clients, through `DPFedAvg`,
whose workers train many clients a message and answer with a sum. "s/round" is the median over
rounds after the first, "with" and "without" the audit's canaries (in turn, in runs of their own).
"MB/round" is what all workers are sent and answer together: on SuperNodes as the SuperLink counts
it, elsewhere from the messages' arrays. Two cores of an EPYC, 2026-11-26, nothing beside it::

    backend      workers  clients/s  s/round  without  MB/round
    in-process         1       15.2     3.15     2.89      14.5
    in-process         2       27.4     1.75     1.74      29.0
    ray                1       15.7     3.06     3.34      14.5
    ray                2       24.0     2.00     1.86      29.0
    supernodes         1        3.5    13.66      nan      14.5
    supernodes         2        3.6    13.46      nan      29.0

Runs of six rounds: the audit's share is within their spread here.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fl_epe.config import RunConfig
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, simulate
from fl_epe.tasks import load_task

ROOT = Path(__file__).parents[1]
CLIENTS = 120
APP = ROOT / "simulations" / "apps" / "flower_app"
_DOWN, _UP = (
    4,
    8,
)  # bytes of a parameter: the model in float32, the sum in float64


def simulated(
    backend: str, workers: int, cohort: int, rounds: int, audited: bool
) -> float:
    """Seconds of a round."""
    canaries = None if audited else 0
    config = RunConfig(
        clients=CLIENTS,
        rounds=rounds,
        clients_per_round=cohort,
        num_canaries=canaries,
    )
    job = Job(
        load_task("digits", num_clients=CLIENTS),
        config,
        Seeds.derive(1),
        rounds,
    )
    ends: list[float] = []
    simulate(
        job,
        backend=backend,
        workers=workers,
        on_round=lambda progress: ends.append(time.perf_counter()),
    )
    return float(np.median(np.diff(ends)[1:-1]))


def on_supernodes(
    workers: int, cohort: int, rounds: int
) -> tuple[float, float]:
    """Seconds and bytes of a round, with the audit."""
    sys.path.insert(0, str(ROOT / "simulations" / "deployment"))
    from flower_processes import Processes, flwr_start, superlink, supernode

    with tempfile.TemporaryDirectory() as folder:
        processes, output = Processes(Path(folder)), Path(folder) / "out"
        database = Path(folder) / "superlink.db"
        try:
            address = superlink(processes, "--database", str(database))
            for worker in range(workers):
                supernode(processes, address, worker, workers)
            settings = {
                "num-clients": CLIENTS,
                "clients-per-round": cohort,
                "rounds": rounds,
                "evaluate-every": rounds,
                "checkpoint-every": 1,
                "output": str(output),
            }
            run = flwr_start(processes, APP, settings)
            ends = dict.fromkeys(_checkpoints(run, output / "checkpoint.npz"))
            seconds = float(np.median(np.diff(list(ends))[1:]))
            with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as state:
                (moved,) = state.execute(
                    "select sum(bytes_sent + bytes_recv) from run"
                ).fetchone()
            if not (output / "record.npz").exists():
                raise RuntimeError(processes.log("run"))
        finally:
            processes.end_all()
    return seconds, moved / rounds


def _checkpoints(run: object, path: Path) -> list[float]:
    """When each checkpoint was written, until the run has ended."""
    found: list[float] = []
    while run.poll() is None:  # type: ignore[attr-defined]
        if path.exists() and (not found or path.stat().st_mtime != found[-1]):
            found.append(path.stat().st_mtime)
        time.sleep(0.05)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--backends", nargs="+", default=["in-process", "ray", "supernodes"]
    )
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--cohort", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    dim = load_task("digits", num_clients=CLIENTS).dim
    print(
        f"{dim} parameters, {options.cohort} clients a round, {os.cpu_count()} cores"
    )
    print(
        f"{'backend':<12}{'workers':>8}{'clients/s':>11}{'s/round':>9}{'without':>9}{'MB/round':>10}"
    )
    for backend in options.backends:
        for workers in options.workers:
            moved, plain = float(workers * dim * (_DOWN + _UP)), float("nan")
            if backend == "supernodes":
                seconds, moved = on_supernodes(
                    workers, options.cohort, options.rounds
                )
            else:
                given = backend, workers, options.cohort, options.rounds
                seconds, plain = (
                    simulated(*given, audited) for audited in (True, False)
                )
            print(
                f"{backend:<12}{workers:>8}{options.cohort / seconds:>11.1f}{seconds:>9.2f}"
                f"{plain:>9.2f}{moved / 1e6:>10.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
