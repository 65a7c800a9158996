"""Trains in two phases: a short start, and a longer one that goes on from its model."""

from __future__ import annotations

from app_case import AppCase
from digits_task import EVERYBODY, train_and_reply
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedAvgM

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


CASE = AppCase(
    strategy=lambda folder: FedAvgM(**EVERYBODY, server_momentum=0.5),
    client_app=app,
    rounds=5,
    starts=(2, 3),
    audit={"rounds": 5},
    growth=3.0,
)
UNANNOUNCED = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY),
    client_app=app,
    starts=(2, 1),
    faulty=True,
)
