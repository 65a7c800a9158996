"""Clients answer with words beside numbers, and the strategy weights them by what they say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app_case import AppCase
from digits_task import EVERYBODY, answered, train_and_reply
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()
WEIGHTS = {"north": 1.0, "south": 0.5}


@app.train()
def train(message: Message, context: Context) -> Message:
    answer = train_and_reply(message, context)
    where = "north" if int(context.node_config["partition-id"]) < 5 else "south"
    answer.content["about"] = ConfigRecord({"hospital": where})
    return answer


class ByHospital(FedAvg):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.heard: set[str] = set()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        for message in answered(replies):
            hospital = message.content.config_records["about"]["hospital"]
            assert isinstance(hospital, str)
            self.heard.add(hospital)
            metrics: Any = message.content.metric_records["metrics"]
            metrics["num-examples"] *= WEIGHTS[hospital]
        return super().aggregate_train(server_round, replies)


CASE = AppCase(
    strategy=lambda folder: ByHospital(**EVERYBODY),
    client_app=app,
    recorded=lambda strategy: sorted(strategy.heard),
)
