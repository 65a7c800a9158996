"""Training on a device that is not the CPU, without one: costs and correlation.

It needs a module ``ghostdev`` in the folder ``FL_EPE_GHOST``, whose import makes a torch device
"ghost": real values, no tensors of two devices in one operation, and counts of launches, copies and
synchronisations. `.ci/run` builds it where its source is at hand. Run this file by itself, as a
process has one such device.
"""

import os
import sys
from types import ModuleType

import datasets
import numpy as np
import pytest
import torch
from alone import Alone
from gpu_run import Prepared
from torch import nn

from fl_epe.mechanism import ClippedSum
from fl_epe.tasks import Task, from_datasets, load_task
from fl_epe.training import CohortTrainer, Execution, LocalTraining

PLACE = os.environ.get("FL_EPE_GHOST", "")
pytestmark = pytest.mark.skipif(not PLACE, reason="no FL_EPE_GHOST: there is no such device")

CLIENTS = 8


@pytest.fixture(scope="module")
def ghost() -> ModuleType:
    sys.path.insert(0, PLACE)
    import ghostdev

    return ghostdev


class Attention(nn.Module):
    """A transformer with dropout in its modules, and a tensor made without a device."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(400, 64), nn.Embedding(32, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        layer.self_attn.dropout = 0.0  # in a function: another generator, other masks
        self.encoder, self.output = nn.TransformerEncoder(layer, 2), nn.Linear(64, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = self.places(torch.arange(tokens.shape[1]))
        return self.output(self.encoder(self.embedding(tokens) + places).mean(1))


def transformer(model: type[nn.Module] = Attention) -> Task:
    random, rows = np.random.default_rng(0), CLIENTS * 24
    columns = {"x": random.integers(0, 400, (rows, 32)), "y": random.integers(0, 10, rows)}
    rows = datasets.Dataset.from_dict({**columns, "owner": np.repeat(np.arange(CLIENTS), 24)})
    held = rows.select(range(16))
    return from_datasets(model, rows, inputs="x", targets="y", partition="by:owner", held_out=held)


TASKS = {
    "cnn": lambda: load_task("synthetic-emnist", num_clients=60, max_examples=20),
    "lstm": lambda: load_task("synthetic-stackoverflow", num_clients=60, max_examples=16),
    "transformer": transformer,
}


def train(task: Task, execution: Execution, ghost: ModuleType | None = None) -> tuple:
    prepared = Prepared(task)
    prepared.prepare(range(CLIENTS))
    trainer, local, theta = CohortTrainer(prepared, execution), LocalTraining(0.05, 1, 16), None
    theta = task.initial(1)
    for _ in range(1 if ghost is None else 2):  # the first round looks at the model
        if ghost is not None:
            ghost.reset()
        total = ClippedSum(task.dim, 16.0)
        counts = trainer.train(theta, range(CLIENTS), local, total, seed=1, round_number=1)
    assert (counts.faults, counts.clients) == ([], CLIENTS)
    return total.total(), trainer.chunk, counts


@pytest.mark.parametrize("chunk", [1, 8, 32])
@pytest.mark.parametrize("name", TASKS)
def test_a_device_trains_as_the_cpu_does_and_seldom_waits(name: str, chunk: int, ghost: ModuleType):
    task = TASKS[name]()
    expected, _, _ = train(task, Execution("cpu", 1))
    found, used, _ = train(task, Execution("ghost", chunk), ghost)
    assert used == chunk
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    counts, model = ghost.counts(), 4 * task.dim
    steps = sum(-(-len(task.client(i)) // 16) for i in range(CLIENTS))
    waits = counts["D2H"][0] + sum(n for kind, (n, _) in counts.items() if kind[:4] == "SYNC")
    waves = steps if chunk == 1 else -(-steps // CLIENTS)
    assert waits <= waves + 1  # one more for the sum of the round
    data = sum(task.client(i).inputs.nbytes for i in range(CLIENTS))
    masks = (
        steps * 16 * {"cnn": 9216 + 128, "lstm": 0, "transformer": 2 * 32 * (128 + 64 + 64)}[name]
    )
    assert counts["H2D"][1] < 1.2 * model + 2 * data + masks
    assert counts["D2H"][1] < 2 * model + 4096  # the float64 sum of the round
    print(f"\n{name}, chunk {used}: {counts['launch'][0] / steps:.0f} launches a client-step,")
    print(f"  {waits / steps:.2f} waits, {counts['H2D'][1] / steps / 1e6:.2f} MB to the device")
    if name == "lstm" and chunk == 8:
        assert counts["launch"][0] <= 120 * steps


def test_a_label_out_of_range_costs_one_client_and_no_chunk(ghost: ModuleType):
    task = TASKS["lstm"]()
    prepared = Prepared(task)
    prepared.prepare(range(CLIENTS))
    prepared.kept[3] = prepared.kept[3].map(lambda part: part + 20_000)
    trainer, total = CohortTrainer(prepared, Execution("ghost", 8)), ClippedSum(task.dim, 1.0)
    local = LocalTraining(0.05, 1, 16)
    theta = task.initial(1)
    counts = trainer.train(theta, range(CLIENTS), local, total, seed=1, round_number=1)
    assert (counts.clients, len(counts.faults), trainer.chunk) == (CLIENTS - 1, 1, 8)
    assert counts.faults[0].text.startswith("client 3: IndexError")


def test_a_single_client_comes_back_to_the_host(ghost: ModuleType):
    task, local = TASKS["cnn"](), LocalTraining(0.05, 1, 16)
    updates = [
        Alone(task, Execution(device)).train(task.initial(1), 2, local, seed=1, round_number=1)
        for device in ("cpu", "ghost")
    ]
    np.testing.assert_allclose(updates[1].values, updates[0].values, rtol=0, atol=1e-5)
    assert updates[1].examples == updates[0].examples


def test_a_model_with_random_numbers_of_its_own_trains_at_once_by_default(ghost: ModuleType):
    class Drawing(Attention):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(super().forward(tokens), 0.1)

    task = transformer(Drawing)
    _, used, _ = train(task, Execution("ghost"), ghost)
    assert used == 32
