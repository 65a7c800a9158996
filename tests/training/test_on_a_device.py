"""Training on a device that is not the CPU, without one: costs and correlation.

It needs a module ``ghostdev`` in the folder ``FL_EPE_GHOST``, whose import makes a torch device
"ghost": real values, no tensors of two devices in one operation, and counts of launches, copies and
synchronisations. `.ci/run` builds it where its source is at hand. Run this file by itself, as a
process has one such device.
"""

import os
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from alone import Alone
from device_costs import (
    CLIENTS,
    TASKS,
    Attention,
    client_steps,
    costs,
    train,
    transformer,
)
from gpu_run import Prepared
from torch import nn

from fl_epe.mechanism import ClippedSum
from fl_epe.training import CohortTrainer, Execution, LocalTraining

PLACE = os.environ.get("FL_EPE_GHOST", "")
pytestmark = pytest.mark.skipif(
    not PLACE, reason="no FL_EPE_GHOST: there is no such device"
)


@pytest.fixture(scope="module")
def ghost() -> ModuleType:
    sys.path.insert(0, PLACE)
    import ghostdev

    return ghostdev


@pytest.mark.parametrize("chunk", [1, 8, 32])
@pytest.mark.parametrize("name", TASKS)
def test_a_device_trains_as_the_cpu_does_and_seldom_waits(
    name: str, chunk: int, ghost: ModuleType
):
    task = TASKS[name]()
    expected, _ = train(task, Execution("cpu", 1))
    found, trainer = train(task, Execution("ghost", chunk), 2, ghost.reset)
    assert trainer.chunk == chunk
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    counted, model, steps = costs(ghost), 4 * task.dim, client_steps(task)
    assert counted["waits"] == 2  # for the round's sum and its counts
    data = sum(task.client(i).inputs.nbytes for i in range(CLIENTS))
    masks = (
        steps
        * 16
        * {
            "cnn": 9216 + 128,
            "lstm": 0,
            "transformer": 2 * 32 * (128 + 64 + 64),
        }[name]
    )
    assert counted["bytes to it"] < 1.2 * model + 2 * data + masks
    assert (
        counted["bytes back"] < 2 * model + 4096
    )  # the float64 sum of the round
    if name == "lstm" and chunk == 8:
        assert counted["launches"] <= 120 * steps


def test_a_label_out_of_range_costs_one_client_and_no_chunk(ghost: ModuleType):
    task = TASKS["lstm"]()
    prepared = Prepared(task)
    prepared.prepare(range(CLIENTS))
    prepared.kept[3] = prepared.kept[3].map(lambda part: part + 20_000)
    trainer, total = (
        CohortTrainer(prepared, Execution("ghost", 8)),
        ClippedSum(task.dim, 1.0),
    )
    local = LocalTraining(0.05, 1, 16)
    theta = task.initial(1)
    counts = trainer.train(
        theta, range(CLIENTS), local, total, seed=1, round_number=1
    )
    assert (counts.clients, len(counts.faults), trainer.chunk) == (
        CLIENTS - 1,
        1,
        8,
    )
    assert counts.faults[0].text.startswith("client 3: IndexError")


def test_a_single_client_comes_back_to_the_host(ghost: ModuleType):
    task, local = TASKS["cnn"](), LocalTraining(0.05, 1, 16)
    updates = [
        Alone(task, Execution(device)).train(
            task.initial(1), 2, local, seed=1, round_number=1
        )
        for device in ("cpu", "ghost")
    ]
    np.testing.assert_allclose(
        updates[1].values, updates[0].values, rtol=0, atol=1e-5
    )
    assert updates[1].examples == updates[0].examples


def test_a_model_with_random_numbers_of_its_own_trains_at_once_by_default(
    ghost: ModuleType,
):
    class Drawing(Attention):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(super().forward(tokens), 0.1)

    _, trainer = train(transformer(Drawing), Execution("ghost"))
    assert trainer.chunk == 128
