"""The strategy remembers whom it asked, and looks every reply up by its node id.

A reply from a node that it did not ask is a `KeyError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app_case import AppCase
from digits_task import EVERYBODY, answered, number, train_and_reply
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


class KnowsItsClients(FedAvg):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.losses: dict[int, list[float]] = {}

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        messages = list(
            super().configure_train(server_round, arrays, config, grid)
        )
        for message in messages:
            self.losses.setdefault(message.metadata.dst_node_id, [])
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        for message in answered(replies):
            self.losses[message.metadata.src_node_id].append(
                number(message, "loss")
            )
        return super().aggregate_train(server_round, replies)


CASE = AppCase(
    strategy=lambda folder: KnowsItsClients(**EVERYBODY),
    client_app=app,
    recorded=lambda strategy: strategy.losses,
)
