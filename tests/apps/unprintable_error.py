"""A client's exception has no text: asking for it raises."""

from __future__ import annotations

from app_case import AppCase
from digits_task import EVERYBODY, setting, train_and_reply
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


class NoTextError(Exception):
    def __str__(self) -> str:
        raise AttributeError("no attribute 'reason'")


@app.train()
def train(message: Message, context: Context) -> Message:
    if (
        int(context.node_config["partition-id"]) == 1
        and setting(message, "server-round") == 2
    ):
        raise NoTextError
    return train_and_reply(message, context)


CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY), client_app=app, faulty=True
)
