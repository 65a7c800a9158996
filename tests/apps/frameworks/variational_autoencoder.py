"""Flower's autoencoder: variational, without labels; the server evaluates the loss alone."""

from __future__ import annotations

import torch
from app_case import AppCase
from digits_task import EVERYBODY, digits
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from frameworks.in_torch import (
    ROUNDS,
    answer,
    fit,
    fresh,
    loaded,
    my_digits,
    received,
    seeded,
    tensors,
)
from torch import Tensor, nn

LATENT = 4
app = ClientApp()


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2 * LATENT)
        )
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, 64), nn.ReLU(), nn.Linear(64, 64)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        noise = (
            torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        )
        latent = mean + noise * (log_variance / 2).exp()
        return self.decoder(latent), mean, log_variance


def loss_of(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    decoded, mean, log_variance = model(images)
    error = (decoded - images).square().sum(1)
    divergence = (mean.square() + log_variance.exp() - log_variance - 1).sum(
        1
    ) / 2
    return (error + 0.1 * divergence).mean()


@app.train()
def train(message: Message, context: Context) -> Message:
    with seeded(message, context):
        model, data = received(Autoencoder, message), my_digits(context)
        return answer(
            message, model.state_dict(), fit(model, data, loss_of), len(data)
        )


@torch.no_grad()
def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = loaded(Autoencoder, arrays).eval()
    return MetricRecord(
        {"loss": float(loss_of(model, *tensors(*digits()).tensors))}
    )


CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY),
    client_app=app,
    initial=lambda: fresh(Autoencoder),
    rounds=ROUNDS,
    arguments=lambda folder: {"evaluate_fn": central},
)
