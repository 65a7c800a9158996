"""A strategy from scratch: no FedAvg below it, names of records and metrics of its own, no weights.

It has no attribute that Flower's strategies have.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from app_case import AppCase
from digits_task import answered, as_record, as_weights, number, train_locally
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
from flwr.serverapp.strategy import Strategy

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    new, loss, _ = train_locally(
        as_weights(message.content.array_records["model"]), context
    )
    content = RecordDict(
        {"trained": as_record(new), "seen": MetricRecord({"loss": loss})}
    )
    return Message(content, reply_to=message)


class FromScratch(Strategy):
    def __init__(self) -> None:
        self.worst: list[float] = []

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        content = RecordDict(
            {"model": arrays, "settings": ConfigRecord({"round": server_round})}
        )
        return (Message(content, node, "train") for node in grid.get_node_ids())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        good = answered(replies)
        models = [
            as_weights(message.content.array_records["trained"])
            for message in good
        ]
        mean = {
            name: np.mean([model[name] for model in models], axis=0)
            for name in models[0]
        }
        losses = [number(message, "loss") for message in good]
        self.worst.append(max(losses))
        return as_record(mean), MetricRecord({"loss": float(np.mean(losses))})

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        return ()

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """There is nothing to say."""


CASE = AppCase(
    strategy=lambda folder: FromScratch(),
    client_app=app,
    recorded=lambda strategy: strategy.worst,
)
