"""A metric is an integer that means something: the cluster of the client, an index into a list.

An average of clusters is no cluster: as an index it is a `TypeError`, as a key a `KeyError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from app_case import AppCase
from digits_task import EVERYBODY, answered, received, reply, train_locally
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()
CLUSTERS = {3: "small", 5: "large"}


@app.train()
def train(message: Message, context: Context) -> Message:
    new, loss, examples = train_locally(received(message), context)
    cluster = 3 if int(context.node_config["partition-id"]) % 2 else 5
    return reply(
        message, new, loss=loss, cluster=cluster, num_examples=examples
    )


def by_cluster(records: list[RecordDict], key: str) -> MetricRecord:
    """The mean loss of each cluster."""
    losses: dict[str, list[float]] = {name: [] for name in CLUSTERS.values()}
    for record in records:
        metrics: dict[str, Any] = dict(record.metric_records["metrics"].items())
        losses[CLUSTERS[metrics["cluster"]]].append(metrics["loss"])
    return MetricRecord(
        {
            f"loss-{name}": float(np.mean(found))
            for name, found in losses.items()
        }
    )


class Clustered(FedAvg):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, train_metrics_aggr_fn=by_cluster)
        self.answers = [0] * 6

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        for message in answered(replies):
            cluster: Any = message.content.metric_records["metrics"]["cluster"]
            self.answers[cluster] += 1
        return super().aggregate_train(server_round, replies)


CASE = AppCase(
    strategy=lambda folder: Clustered(**EVERYBODY),
    client_app=app,
    recorded=lambda strategy: [count > 0 for count in strategy.answers],
)
