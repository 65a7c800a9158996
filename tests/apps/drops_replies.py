"""Some clients say that they have not trained; the strategy drops these, and some others."""

from __future__ import annotations

from collections.abc import Iterable

from app_case import AppCase
from digits_task import EVERYBODY, answered, train_and_reply
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    reply = train_and_reply(message, context)
    reply.content["state"] = ConfigRecord(
        {"trained": int(context.node_config["partition-id"]) != 0}
    )
    return reply


class OnlyTrained(FedAvg):
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        kept = [
            message
            for message in answered(replies)
            if message.content.config_records["state"]["trained"]
            and message.metadata.src_node_id % 3 != 1
        ]
        return super().aggregate_train(server_round, kept)


CASE = AppCase(
    strategy=lambda folder: OnlyTrained(**EVERYBODY),
    client_app=app,
    faulty=True,
)
