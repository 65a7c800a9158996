"""What does a client's step cost a device that is not the CPU, against how many train at once?

    FL_EPE_GHOST=folder python benchmarks/device_costs.py

The folder has a module ``ghostdev``, whose import makes a torch device "ghost" that computes on the
CPU and counts: kernels launched, bytes copied to it and back, and how often the host waits for it.
None of that depends on how fast anything is. Eight clients train as in `CohortTrainer`, on batches
of 16. The model goes to the device once a round, and only the sum of the updates, in float64, comes
back; both are spread over the round's 16 steps here, 8 of the LSTM::

    model         parameters  chunk  launches  waits   to it     back   (a client-step)
    cnn            1,206,590      1        66   0.12     427 kB   603 kB
    cnn            1,206,590      2        40   0.12     501 kB   603 kB
    cnn            1,206,590      4        21   0.12     501 kB   603 kB
    cnn            1,206,590      8        11   0.12     501 kB   603 kB
    lstm           4,050,748      1       616   0.25    2030 kB  4051 kB
    lstm           4,050,748      2       315   0.25    2030 kB  4051 kB
    lstm           4,050,748      4       159   0.25    2030 kB  4051 kB
    lstm           4,050,748      8        81   0.25    2030 kB  4051 kB
    transformer       95,242      1       191   0.12     224 kB    48 kB
    transformer       95,242      2       119   0.12     290 kB    48 kB
    transformer       95,242      4        60   0.12     290 kB    48 kB
    transformer       95,242      8        31   0.12     290 kB    48 kB

Clients that train at once share launches. The host waits twice a round, for the sum and for the
counts; before that it prepares the next clients' data while the device trains. Masks of dropout
are drawn on the host, so that a client has the same ones in any chunk.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import datasets
import numpy as np
import torch
from gpu_run import Prepared
from torch import nn

from fl_epe.checks import Floats
from fl_epe.mechanism import ClippedSum
from fl_epe.tasks import Task, from_datasets, load_task
from fl_epe.training import CohortTrainer, Execution, LocalTraining

CLIENTS, BATCH = 8, 16


class Attention(nn.Module):
    """A transformer with dropout in its modules, and a tensor made without a device."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = (
            nn.Embedding(400, 64),
            nn.Embedding(32, 64),
        )
        layer = nn.TransformerEncoderLayer(
            64, 4, 128, dropout=0.1, batch_first=True
        )
        layer.self_attn.dropout = (
            0.0  # in a function: another generator, other masks
        )
        self.encoder, self.output = (
            nn.TransformerEncoder(layer, 2),
            nn.Linear(64, 10),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of ten classes, of sequences of 32 tokens."""
        places = self.places(torch.arange(tokens.shape[1]))
        output: torch.Tensor = self.output(
            self.encoder(self.embedding(tokens) + places).mean(1)
        )
        return output


def transformer(model: type[nn.Module] = Attention) -> Task:
    """Eight clients with 24 sequences each."""
    random, rows = np.random.default_rng(0), CLIENTS * 24
    columns = {
        "x": random.integers(0, 400, (rows, 32)),
        "y": random.integers(0, 10, rows),
    }
    table = datasets.Dataset.from_dict(
        {**columns, "owner": np.repeat(np.arange(CLIENTS), 24)}
    )
    held = table.select(range(16))
    return from_datasets(
        model,
        table,
        inputs="x",
        targets="y",
        partition="by:owner",
        held_out=held,
    )


TASKS: Mapping[str, Callable[[], Task]] = {
    "cnn": lambda: load_task(
        "synthetic-emnist", num_clients=60, max_examples=20
    ),
    "lstm": lambda: load_task(
        "synthetic-stackoverflow", num_clients=60, max_examples=16
    ),
    "transformer": transformer,
}


def client_steps(task: Task) -> int:
    """How many steps the clients take in a round."""
    return sum(-(-len(task.client(i)) // BATCH) for i in range(CLIENTS))


def train(
    task: Task,
    execution: Execution,
    rounds: int = 1,
    before_each: Callable[[], object] = int,
) -> tuple[Floats, CohortTrainer]:
    """The sum of the clients' updates in the last of some equal rounds, and the trainer."""
    prepared = Prepared(task)
    prepared.prepare(range(CLIENTS))
    trainer, local = (
        CohortTrainer(prepared, execution),
        LocalTraining(0.05, 1, BATCH),
    )
    theta = task.initial(1)
    for _ in range(rounds):
        before_each()
        total = ClippedSum(task.dim, 16.0)
        counts = trainer.train(
            theta, range(CLIENTS), local, total, seed=1, round_number=1
        )
        if counts.faults:
            raise RuntimeError(counts.faults[0].text)
    return total.total(), trainer


def costs(ghost: Any) -> dict[str, int]:
    """What was counted since `ghostdev.reset`."""
    counted = ghost.counts()
    waits = sum(
        n
        for kind, (n, _) in counted.items()
        if kind == "D2H" or kind[:4] == "SYNC"
    )
    return {
        "launches": counted["launch"][0],
        "waits": waits,
        "bytes to it": counted["H2D"][1],
        "bytes back": counted["D2H"][1],
    }


def main() -> None:
    """Print a row for each model and chunk."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    sys.path.insert(0, os.environ["FL_EPE_GHOST"])
    ghost = import_module("ghostdev")
    print(
        "model         parameters  chunk  launches  waits   to it     back   (a client-step)"
    )
    for name, made in TASKS.items():
        task = made()
        steps = client_steps(task)
        for chunk in options.chunks:
            train(
                task, Execution("ghost", chunk), 2, ghost.reset
            )  # the first looks at the model
            launches, waits, sent, back = (
                n / steps for n in costs(ghost).values()
            )
            print(
                f"{name:12}{task.dim:12,}{chunk:7}{launches:10.0f}{waits:7.2f}"
                f"{sent / 1e3:8.0f} kB{back / 1e3:6.0f} kB"
            )


if __name__ == "__main__":
    main()
