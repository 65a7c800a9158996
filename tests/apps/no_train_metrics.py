"""`aggregate_train` returns no metrics; the server evaluates the model itself and may skip that."""

from __future__ import annotations

from collections.abc import Iterable

from app_case import AppCase
from digits_task import EVERYBODY, accuracy, train_and_reply
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


def central(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
    return (
        MetricRecord({"accuracy": accuracy(arrays)})
        if server_round % 2
        else None
    )


class Silent(FedAvg):
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, _ = super().aggregate_train(server_round, replies)
        return arrays, None


CASE = AppCase(
    strategy=lambda folder: Silent(**EVERYBODY),
    client_app=app,
    arguments=lambda folder: {"evaluate_fn": central},
)
