"""One client runs an old version and answers with another shape, and the strategy drops it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from app_case import AppCase
from digits_task import (
    EVERYBODY,
    answered,
    as_weights,
    received,
    reply,
    train_locally,
)
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    new, loss, examples = train_locally(received(message), context)
    if int(context.node_config["partition-id"]) == 0:
        new["weight"] = np.concatenate([new["weight"], new["weight"][:1]])
    return reply(message, new, loss=loss, num_examples=examples)


class SameShapes(FedAvg):
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        kept = []
        for message in answered(replies):
            weights = as_weights(message.content.array_records["arrays"])
            if weights["weight"].shape == (64, 10):
                kept.append(message)
        return super().aggregate_train(server_round, kept)


CASE = AppCase(
    strategy=lambda folder: SameShapes(**EVERYBODY), client_app=app, faulty=True
)
