"""A `start()` of its own, as in Flower's tutorial on strategies: its own loop, which saves models.

It takes an argument that Flower's does not know, keeps the best model, and lists its files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from app_case import AppCase
from digits_task import EVERYBODY, accuracy, as_weights, train_and_reply
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


class SavingFedAvg(FedAvg):
    """FedAvg that writes every model into a folder."""

    files: list[str]
    best = 0.0

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None]
        | None = None,
        save_to: Path | None = None,
    ) -> Result:
        assert save_to is not None
        self.files, arrays, result = [], initial_arrays, Result()
        config = train_config or ConfigRecord()
        for server_round in range(1, num_rounds + 1):
            messages = self.configure_train(server_round, arrays, config, grid)
            replies = grid.send_and_receive(messages, timeout=timeout)
            found, metrics = self.aggregate_train(server_round, replies)
            if found is None:
                continue
            arrays = result.arrays = found
            if metrics is not None:
                result.train_metrics_clientapp[server_round] = metrics
            self.best = max(self.best, accuracy(arrays))
            values: dict[str, Any] = as_weights(arrays)
            np.savez(save_to / f"round-{server_round}.npz", **values)
            self.files.append(f"round-{server_round}.npz")
        return result


CASE = AppCase(
    strategy=lambda folder: SavingFedAvg(**EVERYBODY),
    client_app=app,
    arguments=lambda folder: {"save_to": folder},
    recorded=lambda strategy: (strategy.files, strategy.best),
)
