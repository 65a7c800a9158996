"""The server app's own loop: twenty starts of one round each; or nobody says how many there are."""

from __future__ import annotations

from app_case import AppCase
from digits_task import EVERYBODY, train_and_reply
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY),
    client_app=app,
    rounds=20,
    starts=(1,) * 20,
    audit={"rounds": 20},
)
UNANNOUNCED = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY),
    client_app=app,
    rounds=4,
    starts=(1,) * 4,
    measurable=False,
)
