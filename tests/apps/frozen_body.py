"""Clients train the head alone, and send the frozen body back as it came."""

from __future__ import annotations

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
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()
HEAD = ("head.weight", "head.bias")


def initial() -> ArrayRecord:
    """A body that no client changes, and a head."""
    return as_record(
        {
            "body.weight": small(64, 640),
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
    return reply(message, {**model, **head}, loss=loss, num_examples=examples)


CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY), client_app=app, initial=initial
)
