"""Flower's example of a table: numbers and rare categories, a network, one target in five is 1."""

from __future__ import annotations

import torch
from app_case import AppCase
from digits_task import EVERYBODY
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from frameworks.in_torch import (
    ROUNDS,
    answer,
    fit,
    fresh,
    loaded,
    received,
    seeded,
)
from torch import Tensor, nn
from torch.utils.data import TensorDataset

NUMBERS, CATEGORIES, ROWS = 6, 24, 300

app = ClientApp()


def net() -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm1d(NUMBERS + CATEGORIES),
        nn.Linear(NUMBERS + CATEGORIES, 64),
        nn.ReLU(),
        nn.Linear(64, 1),
    )


def rows(seed: int, count: int = ROWS) -> TensorDataset:
    """Synthetic rows; of the categories few are frequent, and each moves the target."""
    rng = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, NUMBERS, generator=rng)
    shares = 0.7 ** torch.arange(CATEGORIES, dtype=torch.float32)
    which = torch.multinomial(shares, count, replacement=True, generator=rng)
    effects = torch.randn(
        NUMBERS + CATEGORIES, generator=torch.Generator().manual_seed(99)
    )
    inputs = torch.cat(
        [numbers, nn.functional.one_hot(which, CATEGORIES)], dim=1
    )
    return TensorDataset(inputs, (inputs @ effects > 2).float())


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(
        model(inputs)[:, 0], targets
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    data = rows(1 + int(context.node_config["partition-id"]))
    with seeded(message, context):
        model = received(net, message)
        return answer(
            message, model.state_dict(), fit(model, data, loss_of), len(data)
        )


@torch.no_grad()
def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    inputs, targets = rows(0, 2000).tensors
    return MetricRecord(
        {"loss": float(loss_of(loaded(net, arrays).eval(), inputs, targets))}
    )


CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY),
    client_app=app,
    initial=lambda: fresh(net),
    rounds=ROUNDS,
    arguments=lambda folder: {"evaluate_fn": central},
)
