"""A model in float16, as it is sent by who must save bytes."""

import numpy as np
from app_case import AppCase
from digits_task import EVERYBODY, as_record, small, train_and_reply
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


def initial() -> ArrayRecord:
    return as_record(
        {"weight": small(64, 10).astype("f2"), "bias": np.zeros(10, "f2")}
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY), client_app=app, initial=initial
)
