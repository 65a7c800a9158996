"""A model with batch normalisation: running statistics, a 0-d counter of integers, a 0-d scale.

The counter goes up by one a round, and the strategy relies on its being an integer.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from app_case import AppCase
from digits_task import (
    EVERYBODY,
    as_record,
    as_weights,
    received,
    reply,
    share,
    small,
    train_locally,
)
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


def initial() -> ArrayRecord:
    return as_record(
        {
            "norm.running_mean": np.zeros(64, "f4"),
            "norm.running_var": np.ones(64, "f4"),
            "norm.num_batches_tracked": np.array(0, "i8"),
            "linear.weight": small(64, 10),
            "linear.bias": np.zeros(10, "f4"),
            "scale": np.array(1.0, "f4"),
        }
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    model = received(message)
    layer = {name: model[name] for name in ("linear.weight", "linear.bias")}
    new, loss, examples = train_locally(layer, context)
    inputs, _ = share(context)
    mean, var = model["norm.running_mean"], model["norm.running_var"]
    statistics = {
        "norm.running_mean": (0.9 * mean + 0.1 * inputs.mean(axis=0)).astype(
            "f4"
        ),
        "norm.running_var": (0.9 * var + 0.1 * inputs.var(axis=0)).astype("f4"),
        "norm.num_batches_tracked": np.asarray(
            model["norm.num_batches_tracked"] + 1
        ),
    }
    return reply(
        message,
        {**model, **new, **statistics},
        loss=loss,
        num_examples=examples,
    )


class RoundsCounters(FedAvg):
    """FedAvg makes floats of integers; this makes them integers again."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None:
            return None, metrics
        weights = as_weights(arrays)
        count = weights["norm.num_batches_tracked"]
        weights["norm.num_batches_tracked"] = np.rint(count).astype("i8")
        return as_record(weights), metrics


CASE = AppCase(
    strategy=lambda folder: RoundsCounters(**EVERYBODY),
    client_app=app,
    initial=initial,
)
