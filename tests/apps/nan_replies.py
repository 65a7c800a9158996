"""One client answers NaN in every round, and the strategy drops such replies."""

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
    if int(context.node_config["partition-id"]) == 2:
        new = {name: np.full_like(value, np.nan) for name, value in new.items()}
        loss = float("nan")
    return reply(message, new, loss=loss, num_examples=examples)


class OnlyFinite(FedAvg):
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        kept = [
            message
            for message in answered(replies)
            if all(
                np.isfinite(value).all()
                for value in as_weights(
                    message.content.array_records["arrays"]
                ).values()
            )
        ]
        return super().aggregate_train(server_round, kept)


CASE = AppCase(
    strategy=lambda folder: OnlyFinite(**EVERYBODY), client_app=app, faulty=True
)
