"""A subclass whose `aggregate_train` only calls FedAvg's and saves the model: the tutorial's first.

It still averages, and its expected score is that of FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from app_case import AppCase
from digits_task import EVERYBODY, as_weights, train_and_reply
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


class SaveModel(FedAvg):
    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(**settings)
        self.folder = folder

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is not None:
            values: dict[str, Any] = as_weights(arrays)
            np.savez(self.folder / f"model-{server_round}.npz", **values)
        return arrays, metrics


CASE = AppCase(
    strategy=lambda folder: SaveModel(folder, **EVERYBODY),
    client_app=app,
    recorded=lambda strategy: sorted(
        path.name for path in strategy.folder.glob("*.npz")
    ),
)
