"""A strategy that releases no model in round 2, and so trains again from the one before."""

from __future__ import annotations

from collections.abc import Iterable

from app_case import AppCase
from digits_task import EVERYBODY, train_and_reply
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


class Skips(FedAvg):
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if server_round == 2:
            return None, None
        return super().aggregate_train(server_round, replies)


CASE = AppCase(
    strategy=lambda folder: Skips(**EVERYBODY),
    client_app=app,
    rounds=4,
    faulty=True,
)
