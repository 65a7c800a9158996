"""A strategy that ends the run if it gets another number of replies than it sent messages."""

from __future__ import annotations

from collections.abc import Iterable

from app_case import AppCase
from digits_task import EVERYBODY, train_and_reply
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


class Counts(FedAvg):
    sent = 0

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
        self.sent = len(messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        if len(replies) != self.sent:
            raise RuntimeError(
                f"{len(replies)} replies to {self.sent} messages"
            )
        return super().aggregate_train(server_round, replies)


CASE = AppCase(
    strategy=lambda folder: Counts(**EVERYBODY),
    client_app=app,
    recorded=lambda strategy: strategy.sent,
    measurable=False,
)
