"""Flower's Lightning example: a module that Lightning's trainer fits, with batch normalisation."""

from __future__ import annotations

import lightning
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
from torch import Tensor, nn
from torch.utils.data import DataLoader

app = ClientApp()


class Digits(lightning.LightningModule):
    """Pixels that are always 0 have a variance that goes to 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm1d(64),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.BatchNorm1d(64),
            nn.Linear(64, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits

    def training_step(
        self, batch: tuple[Tensor, Tensor], number: int
    ) -> Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.003)


@app.train()
def train(message: Message, context: Context) -> Message:
    with seeded(message, context):
        model, data = received(Digits, message), my_digits(context)
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, DataLoader(data, 16, shuffle=True, drop_last=True))
        loss = float(trainer.callback_metrics["train_loss"])
        return answer(message, model.state_dict(), loss, len(data))


CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY),
    client_app=app,
    initial=lambda: fresh(Digits),
    rounds=ROUNDS,
    arguments=central(Digits),
)
