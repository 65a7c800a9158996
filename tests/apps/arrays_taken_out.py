"""The strategy takes an array out of every reply before it looks the node up, and puts it back.

A reply from a node that it did not ask is a `KeyError`, and leaves the replies without that array.
"""

from __future__ import annotations

from collections.abc import Iterable

from app_case import AppCase
from clients_by_node_id import KnowsItsClients
from digits_task import EVERYBODY, answered, train_and_reply
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


class TakesBiasOut(KnowsItsClients):
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = answered(replies)
        biases = [
            message.content.array_records["arrays"].pop("bias")
            for message in replies
        ]
        for message in replies:
            self.losses[message.metadata.src_node_id].append(len(biases))
        for message, bias in zip(replies, biases, strict=True):
            message.content.array_records["arrays"]["bias"] = bias
        return super().aggregate_train(server_round, replies)


CASE = AppCase(
    strategy=lambda folder: TakesBiasOut(**EVERYBODY), client_app=app
)
