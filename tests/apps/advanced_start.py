"""Flower's advanced example: a `start()` with a results folder, evaluation, and the best model.

The strategy changes the learning rate between rounds, logs every metric of every round into one
JSON file, and the loop is its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from app_case import AppCase
from digits_task import accuracy, as_weights, setting, share, train_and_reply
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context, rate=setting(message, "lr"))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    right = accuracy(message.content.array_records["arrays"])
    metrics = MetricRecord(
        {"accuracy": right, "num-examples": len(share(context)[1])}
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": accuracy(arrays)})


class BestOnDisk(FedAvg):
    """FedAvg whose `start` writes a results folder."""

    best = -1.0

    def set_results_folder(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.history: dict[str, list[dict[str, Any]]] = {}

    def _store(
        self, tag: str, metrics: MetricRecord | None, server_round: int
    ) -> None:
        if metrics is None:
            return
        self.history.setdefault(tag, []).append(
            {"round": server_round, **dict(metrics)}
        )
        (self.folder / "results.json").write_text(json.dumps(self.history))

    def _keep_best(
        self, arrays: ArrayRecord, metrics: MetricRecord | None
    ) -> None:
        right = metrics["accuracy"] if metrics else -1.0
        assert isinstance(right, float)
        if right > self.best:
            self.best = right
            values: dict[str, Any] = as_weights(arrays)
            np.savez(self.folder / "best.npz", **values)

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> list[Message]:
        if server_round % 2 == 0:
            rate = config["lr"]
            assert isinstance(rate, float)
            config["lr"] = rate * 0.5
        return list(super().configure_train(server_round, arrays, config, grid))

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
    ) -> Result:
        self.summary()
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        result, arrays = Result(), initial_arrays
        for server_round in range(1, num_rounds + 1):
            train_replies = grid.send_and_receive(
                messages=self.configure_train(
                    server_round, arrays, train_config, grid
                ),
                timeout=timeout,
            )
            new, train_metrics = self.aggregate_train(
                server_round, train_replies
            )
            if new is not None:
                result.arrays = arrays = new
            if train_metrics is not None:
                result.train_metrics_clientapp[server_round] = train_metrics
            self._store("train", train_metrics, server_round)
            replies = grid.send_and_receive(
                messages=self.configure_evaluate(
                    server_round, arrays, evaluate_config, grid
                ),
                timeout=timeout,
            )
            metrics = self.aggregate_evaluate(server_round, replies)
            if metrics is not None:
                result.evaluate_metrics_clientapp[server_round] = metrics
            self._store("evaluate", metrics, server_round)
            if evaluate_fn:
                found = evaluate_fn(server_round, arrays)
                if found is not None:
                    result.evaluate_metrics_serverapp[server_round] = found
                self._keep_best(arrays, found)
                self._store("central", found, server_round)
        return result


def make(folder: Path) -> BestOnDisk:
    strategy = BestOnDisk(fraction_train=1.0, fraction_evaluate=0.5)
    strategy.set_results_folder(folder / "results")
    return strategy


CASE = AppCase(
    strategy=make,
    client_app=app,
    arguments=lambda folder: {
        "train_config": ConfigRecord({"lr": 0.2}),
        "evaluate_fn": central,
    },
    recorded=lambda strategy: (
        strategy.best,
        {tag: len(rows) for tag, rows in strategy.history.items()},
        (strategy.folder / "best.npz").exists(),
    ),
)
