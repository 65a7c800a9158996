"""FedMedian: the median of the replies in each coordinate, without weights."""

import numpy as np
from app_case import AppCase
from digits_task import EVERYBODY, NODES, train_and_reply
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedMedian

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


CASE = AppCase(
    strategy=lambda folder: FedMedian(**EVERYBODY),
    client_app=app,
    robust=lambda replies: np.median(replies, axis=0),
    growth=NODES**0.5,
)
