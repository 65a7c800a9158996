"""A strategy that ends the run when a client fails, with or without anybody beside it."""

from __future__ import annotations

from collections.abc import Iterable

from app_case import AppCase
from digits_task import EVERYBODY, setting, train_and_reply
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


class TooFewError(Exception):
    """Not everybody answered."""


@app.train()
def train(message: Message, context: Context) -> Message:
    if (
        int(context.node_config["partition-id"]) == 1
        and setting(message, "server-round") == 2
    ):
        raise RuntimeError("the disk is full")
    return train_and_reply(message, context)


class AllOrNothing(FedAvg):
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        if any(message.has_error() for message in replies):
            raise TooFewError(f"round {server_round}")
        return super().aggregate_train(server_round, replies)


CASE = AppCase(
    strategy=lambda folder: AllOrNothing(**EVERYBODY),
    client_app=app,
    raises=TooFewError,
    measurable=False,
    faulty=True,
)
