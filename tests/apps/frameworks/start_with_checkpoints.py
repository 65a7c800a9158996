"""A strategy whose own `start` goes on from its newest checkpoint, and keeps the best model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from app_case import AppCase
from digits_task import EVERYBODY
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from frameworks.in_torch import (
    ROUNDS,
    answer,
    central,
    cross_entropy,
    fit,
    fresh,
    my_digits,
    received,
    seeded,
)
from torch import nn

app = ClientApp()


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    rate = message.content.config_records["config"]["lr"]
    assert isinstance(rate, float)
    with seeded(message, context):
        model, data = received(net, message), my_digits(context)
        loss = fit(model, data, cross_entropy, rate)
        return answer(message, model.state_dict(), loss, len(data))


class Keeps(FedAvg):
    """Saves every second round, and the best model; halves the learning rate in the middle."""

    best = -1.0

    def __init__(self, folder: Path) -> None:
        super().__init__(**EVERYBODY)
        self.folder = folder

    def newest(self) -> tuple[int, dict[str, Any] | None]:
        """Rounds that are done, and the model after them."""
        kept = sorted(self.folder.glob("round-*.pt"))
        return (
            (int(kept[-1].stem[-3:]), torch.load(kept[-1]))
            if kept
            else (0, None)
        )

    def save(self, name: str, arrays: ArrayRecord) -> None:
        torch.save(arrays.to_torch_state_dict(), self.folder / f"{name}.pt")

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        evaluate_fn: Any = None,
    ) -> Result:
        result, (done, kept) = Result(), self.newest()
        result.arrays = ArrayRecord(kept) if kept else initial_arrays
        result.evaluate_metrics_serverapp[0] = evaluate_fn(0, result.arrays)
        config = ConfigRecord({"lr": 0.01})
        for number in range(done + 1, num_rounds + 1):
            if number == num_rounds // 2:
                config["lr"] = 0.005
            messages = self.configure_train(number, result.arrays, config, grid)
            replies = grid.send_and_receive(messages=messages, timeout=timeout)
            arrays, metrics = self.aggregate_train(number, replies)
            assert arrays is not None
            assert metrics is not None
            result.arrays, result.train_metrics_clientapp[number] = (
                arrays,
                metrics,
            )
            found = result.evaluate_metrics_serverapp[number] = evaluate_fn(
                number, arrays
            )
            if found["accuracy"] > self.best:
                self.best = found["accuracy"]
                self.save("best", arrays)
            if number % 2 == 0:
                self.save(f"round-{number:03}", arrays)
        return result


CASE = AppCase(
    strategy=Keeps,
    client_app=app,
    initial=lambda: fresh(net),
    rounds=ROUNDS,
    arguments=central(net),
    recorded=lambda strategy: (
        sorted(path.name for path in strategy.folder.iterdir()),
        strategy.newest()[0],
        strategy.best,
    ),
)
