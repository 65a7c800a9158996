"""A reply holds two sets of arrays: the model, and a control variate as in SCAFFOLD.

The strategy takes the second out before it lets FedAvg average the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from app_case import AppCase
from digits_task import (
    EVERYBODY,
    Weights,
    answered,
    as_record,
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
    before = received(message)
    after, loss, examples = train_locally(before, context)
    answer = reply(message, after, loss=loss, num_examples=examples)
    control = {name: (before[name] - after[name]) / 0.6 for name in before}
    answer.content["control"] = as_record(control)
    return answer


class WithControl(FedAvg):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.control: Weights = {}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        good = answered(replies)
        controls = [
            as_weights(message.content.array_records["control"])
            for message in good
        ]
        self.control = {
            name: np.mean([control[name] for control in controls], axis=0)
            for name in controls[0]
        }
        for message in good:
            del message.content["control"]
        return super().aggregate_train(server_round, good)


CASE = AppCase(
    strategy=lambda folder: WithControl(**EVERYBODY),
    client_app=app,
    recorded=lambda strategy: strategy.control,
)
