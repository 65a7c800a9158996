"""How much memory does a run take, in models: the server, the transport and the audit.

    python benchmarks/memory.py                         # a minute
    python benchmarks/memory.py --dim 100_000_000       # 400 MB a model

Each run is a process of its own: ``workers`` nodes in it, as in ``fl-epe run``, three rounds of a
model that is one vector, trained for a step on one number a client. A model is 4 bytes a parameter.
A row says how much larger than before the run the resident memory was at most, in models: while
nodes train (the server's state included), while the server adds up, steps and scores, in an
evaluation, a checkpoint, and the record. "audit" is 20 canaries, 8 of them observed. While a client
trains, its weights and gradient are two of the models of each worker, and the exact sum is two.

With 10⁷ parameters, momentum 0.9, on a busy machine with two cores, torch 2.13, 2026-11-26::

    workers audit      train  aggregate   evaluate checkpoint     record       peak
          1   yes        8.4        8.4        6.8        3.8        7.4        8.4
          2   yes       12.2        9.8        6.8        3.8        7.5       12.2

With 10⁸ parameters, on the same day::

          1   yes        7.6        7.6        6.2        3.2        6.6        7.6

Before models and sums were shared and the server worked block by block, one worker took 22.5, with
the libraries that a run loads.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fl_epe.config import RunConfig
from fl_epe.seeding import Seeds
from fl_epe.simulation import DPFedAvg, InProcessGrid, simulate
from fl_epe.simulation import run as running
from fl_epe.simulation.checkpoint import Job
from fl_epe.tasks import ClientData, LossSum, Task

_CLIENTS, _ROUNDS, _SMALL = 8, 3, 70_000
_STAGES = ("train", "aggregate", "evaluate", "checkpoint", "record")


class Vector(torch.nn.Module):
    """A model that is one vector."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return x * self.weight[:1]


@dataclasses.dataclass(frozen=True)
class OneVector(Task):
    """Clients of one number each."""

    parameters: int
    num_clients: int = _CLIENTS

    def model(self) -> torch.nn.Module:  # noqa: D102
        return Vector(self.parameters)

    def client(self, client_id: int) -> ClientData:  # noqa: D102
        return ClientData(
            torch.ones(1, 1), torch.full((1, 1), float(client_id))
        )

    def held_out(self) -> ClientData:  # noqa: D102
        return self.client(0)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> LossSum:  # noqa: D102
        error = (outputs - targets).square().sum()
        return LossSum(error, torch.zeros(()), torch.tensor(len(targets)))


def resident(name: str = "VmRSS") -> int:
    """Bytes that this process holds; as "VmHWM" the most since `peaks` began."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(
        int(line.split()[1]) for line in lines if line.startswith(name)
    )


@contextlib.contextmanager
def peak(found: dict[str, int], stage: str) -> Iterator[None]:
    """Note the most memory while the context is open."""
    Path("/proc/self/clear_refs").write_text("5")
    try:
        yield
    finally:
        found[stage] = max(found.get(stage, 0), resident("VmHWM"))


def measured(found: dict[str, int], stage: str, owner: Any, name: str) -> None:
    """Have each call of a function note its memory."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        with peak(found, stage):
            return original(*arguments, **named)

    setattr(owner, name, call)


def play(dim: int, workers: int, audit: bool, momentum: float) -> None:
    """A run with a checkpoint and an evaluation after each round."""
    config = RunConfig(
        clients=_CLIENTS,
        rounds=_ROUNDS,
        clients_per_round=4,
        participation="fixed-size",
        canary_design="paper",
        num_canaries=8 if audit else 0,
        canary_participations=1 if audit else None,
        unobserved=12 if audit else 0,
        server_momentum=momentum,
        local_epochs=1,
    )
    job = Job(OneVector(dim), config, Seeds.derive(1), evaluate_every=1)
    with tempfile.TemporaryDirectory() as folder:
        simulate(
            job,
            workers=workers,
            checkpoint=Path(folder, "run.npz"),
            checkpoint_every=1,
        )


def run(dim: int, workers: int, audit: bool, momentum: float) -> None:
    """Print a run's memory, in models, above that after a run with a small model."""
    found: dict[str, int] = {}
    measured(found, "train", InProcessGrid, "send_and_receive")
    measured(found, "aggregate", DPFedAvg, "aggregate_train")
    measured(found, "evaluate", OneVector, "evaluate")
    measured(found, "checkpoint", running, "write_checkpoint")
    measured(found, "record", DPFedAvg, "record")
    torch.set_num_threads(1)
    play(_SMALL, workers, audit, momentum)
    found.clear()
    before = resident()
    play(dim, workers, audit, momentum)
    models = [(found[stage] - before) / (4 * dim) for stage in _STAGES]
    print("".join(f"{value:11.1f}" for value in (*models, max(models))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=10_000_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--audit", nargs="+", default=["yes", "no"], choices=["yes", "no"]
    )
    parser.add_argument(
        "--momentum", type=float, default=0.9, help="of the server"
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        run(
            options.dim,
            options.workers[0],
            options.audit == ["yes"],
            options.momentum,
        )
        return
    print(
        "workers audit" + "".join(f"{name:>11}" for name in (*_STAGES, "peak")),
        flush=True,
    )
    for workers in options.workers:
        for audit in options.audit:
            print(f"{workers:7} {audit:>5}", end="", flush=True)
            values = {"dim": options.dim, "workers": workers, "audit": audit}
            values["momentum"] = options.momentum
            flags = [f"--{name}={value}" for name, value in values.items()]
            subprocess.run(
                [sys.executable, __file__, "--here", *flags], check=True
            )


if __name__ == "__main__":
    main()
