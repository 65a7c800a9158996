"""Clients answer with the head alone: the body of the model is frozen, and the server keeps it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from app_case import AppCase
from digits_task import (
    EVERYBODY,
    as_record,
    received,
    reply,
    small,
    train_locally,
)
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

app = ClientApp()
HEAD = ("head.weight", "head.bias")


def initial() -> ArrayRecord:
    """A body that no client looks at, and a head."""
    return as_record(
        {
            "body.weight": small(64, 64),
            "head.weight": small(64, 10),
            "head.bias": np.zeros(10, "f4"),
        }
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    model = received(message)
    head, loss, examples = train_locally(
        {name: model[name] for name in HEAD}, context
    )
    return reply(message, head, loss=loss, num_examples=examples)


class KeepsBody(FedAvg):
    body: ArrayRecord

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        self.body = ArrayRecord(
            {k: v for k, v in arrays.items() if k not in HEAD}
        )
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        head, metrics = super().aggregate_train(server_round, replies)
        if head is None:
            return None, metrics
        return ArrayRecord(
            {**dict(self.body.items()), **dict(head.items())}
        ), metrics


CASE = AppCase(
    strategy=lambda folder: KeepsBody(**EVERYBODY),
    client_app=app,
    initial=initial,
    measurable=False,
    faulty=True,
)
