"""Mods of the app's own: one counts a client's rounds, one sends half as many bytes."""

from __future__ import annotations

from typing import Any

from app_case import AppCase
from digits_task import (
    EVERYBODY,
    accuracy,
    as_record,
    as_weights,
    only_metrics,
    received,
    setting,
    train_and_reply,
)
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp.strategy import FedAvg


def counting_mod(
    message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Keeps in the client's state how often it has trained in a run, and reports it."""
    if setting(message, "server-round") == 1:
        context.state["rounds"] = MetricRecord({"trained": 0})
    state: Any = context.state["rounds"]
    state["trained"] += 1
    reply = call_next(message, context)
    only_metrics(reply)["rounds-trained"] = float(state["trained"])
    return reply


def short_mod(
    message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Answers in float16; the strategy averages in the model's own type."""
    reply = call_next(message, context)
    long = as_weights(reply.content.array_records["arrays"])
    reply.content["arrays"] = as_record(
        {name: value.astype("f2") for name, value in long.items()}
    )
    return reply


app = ClientApp(mods=[counting_mod, short_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    assert received(message)["weight"].dtype == "f4"
    return train_and_reply(message, context)


class Restores(FedAvg):
    """Makes float32 of what came."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None:
            return None, metrics
        return as_record(
            {k: v.astype("f4") for k, v in as_weights(arrays).items()}
        ), metrics


def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": accuracy(arrays)})


CASE = AppCase(
    strategy=lambda folder: Restores(**EVERYBODY),
    client_app=app,
    rounds=10,
    arguments=lambda folder: {"evaluate_fn": central},
)
