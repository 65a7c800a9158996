"""One client's loss is NaN in one round, and with it the average; its weights are good."""

from __future__ import annotations

import math

from app_case import AppCase
from digits_task import EVERYBODY, received, reply, setting, train_locally
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    new, loss, examples = train_locally(received(message), context)
    if (
        int(context.node_config["partition-id"]) == 2
        and setting(message, "server-round") == 2
    ):
        loss = math.nan
    return reply(message, new, loss=loss, num_examples=examples)


CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY), client_app=app, faulty=True
)
