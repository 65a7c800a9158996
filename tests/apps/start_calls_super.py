"""A `start()` of its own that prepares a folder, calls Flower's, and saves the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app_case import AppCase
from digits_task import EVERYBODY, train_and_reply
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


class Prepared(FedAvg):
    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(**settings)
        self.folder = folder
        self.losses: dict[int, float] = {}

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **more: Any
    ) -> Result:
        results = self.folder / "results"
        results.mkdir(parents=True)
        result = super().start(grid, initial_arrays, *args, **more)
        for server_round, metrics in result.train_metrics_clientapp.items():
            loss = metrics["loss"]
            assert isinstance(loss, float)
            self.losses[server_round] = loss
        (results / "losses.json").write_text(json.dumps(self.losses))
        return result


CASE = AppCase(
    strategy=lambda folder: Prepared(folder, **EVERYBODY),
    client_app=app,
    recorded=lambda strategy: (
        strategy.losses,
        (strategy.folder / "results").is_dir(),
    ),
)
