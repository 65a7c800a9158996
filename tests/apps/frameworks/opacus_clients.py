"""Flower's Opacus example: every client trains with DP-SGD, some with more noise than others."""

from __future__ import annotations

import torch
from app_case import AppCase
from digits_task import EVERYBODY
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from frameworks.in_torch import (
    ROUNDS,
    answer,
    central,
    fresh,
    my_digits,
    received,
    seeded,
)
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader

app = ClientApp()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


@app.train()
def train(message: Message, context: Context) -> Message:
    number = int(context.node_config["partition-id"])
    with seeded(message, context):
        data, engine = my_digits(context), PrivacyEngine(accountant="rdp")
        model = received(net, message)
        private, optimizer, batches = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            data_loader=DataLoader(data, 32),
            noise_multiplier=1.0 if number % 2 == 0 else 1.5,
            max_grad_norm=1.0,
        )
        loss = torch.tensor(0.0)
        for _ in range(2):
            for images, targets in batches:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(private(images), targets)
                loss.backward()
                optimizer.step()
        spent = engine.get_epsilon(1e-5)
        return answer(
            message, model.state_dict(), loss.item(), len(data), epsilon=spent
        )


CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY),
    client_app=app,
    initial=lambda: fresh(net),
    rounds=ROUNDS,
    arguments=central(net),
)
