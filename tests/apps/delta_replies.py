"""Clients answer with what they changed, and the strategy adds the average to the model."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from app_case import AppCase
from digits_task import (
    EVERYBODY,
    as_record,
    as_weights,
    initial,
    received,
    reply,
    train_locally,
)
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    before = received(message)
    after, loss, examples = train_locally(before, context)
    delta = {name: after[name] - before[name] for name in before}
    return reply(message, delta, loss=loss, num_examples=examples)


class AddsDeltas(FedAvg):
    model: ArrayRecord

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        self.model = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        mean, metrics = super().aggregate_train(server_round, replies)
        if mean is None:
            return None, metrics
        before, step = as_weights(self.model), as_weights(mean)
        return as_record(
            {name: before[name] + step[name] for name in before}
        ), metrics


def trained_before() -> ArrayRecord:
    """A model far from zero, so that adding it twice would show."""
    weights = as_weights(initial())
    return as_record(
        {name: value - np.float32(0.5) for name, value in weights.items()}
    )


CASE = AppCase(
    strategy=lambda folder: AddsDeltas(**EVERYBODY),
    client_app=app,
    initial=trained_before,
    updates=True,
)
