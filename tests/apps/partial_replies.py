"""Every client answers with the arrays that it trained, which are not the same for all.

Clients with an odd number send the bias alone. The strategy averages each array over those who
sent it, and keeps what nobody did.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from app_case import AppCase
from digits_task import (
    EVERYBODY,
    answered,
    as_record,
    as_weights,
    number,
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
    new, loss, examples = train_locally(received(message), context)
    if int(context.node_config["partition-id"]) % 2:
        del new["weight"]
    return reply(message, new, loss=loss, num_examples=examples)


class ByArray(FedAvg):
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
        good = answered(replies)
        sent = [
            as_weights(message.content.array_records["arrays"])
            for message in good
        ]
        model = as_weights(self.model)
        for name in model:
            if found := [weights[name] for weights in sent if name in weights]:
                model[name] = np.mean(found, axis=0, dtype="f4")
        loss = float(np.mean([number(message, "loss") for message in good]))
        return as_record(model), MetricRecord({"loss": loss})


CASE = AppCase(
    strategy=lambda folder: ByArray(**EVERYBODY),
    client_app=app,
    measurable=False,
)
