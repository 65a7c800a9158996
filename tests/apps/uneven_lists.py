"""A metric is a list of losses, one a step, and clients take different numbers of steps."""

from __future__ import annotations

from typing import Any

from app_case import AppCase
from digits_task import EVERYBODY, received, reply, train_locally
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    weights, losses, examples = received(message), [], 0
    for _ in range(1 + int(context.node_config["partition-id"]) % 3):
        weights, loss, examples = train_locally(weights, context, steps=1)
        losses.append(loss)
    return reply(message, weights, losses=losses, num_examples=examples)


def last_loss(records: list[RecordDict], key: str) -> MetricRecord:
    """The mean of what the clients' losses ended with."""
    found: list[Any] = [
        record.metric_records["metrics"]["losses"] for record in records
    ]
    last = [float(losses[-1]) for losses in found]
    return MetricRecord(
        {"last-loss": sum(last) / len(last), "longest": max(map(len, found))}
    )


CASE = AppCase(
    strategy=lambda folder: FedAvg(
        **EVERYBODY, train_metrics_aggr_fn=last_loss
    ),
    client_app=app,
)
