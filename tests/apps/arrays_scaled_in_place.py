"""The strategy scales the arrays of each reply in place, and then looks its node up.

A reply from a node that it did not ask is a `KeyError`, and leaves the replies scaled.
"""

from __future__ import annotations

from collections.abc import Iterable

from app_case import AppCase
from clients_by_node_id import KnowsItsClients
from digits_task import EVERYBODY, answered, train_and_reply
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


class Halves(KnowsItsClients):
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = answered(replies)
        for message in replies:
            record = message.content.array_records["arrays"]
            for name, array in list(record.items()):
                record[name] = Array(
                    array.numpy() * array.numpy().dtype.type(0.5)
                )
        return super().aggregate_train(server_round, replies)


CASE = AppCase(strategy=lambda folder: Halves(**EVERYBODY), client_app=app)
