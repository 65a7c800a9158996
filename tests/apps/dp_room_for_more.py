"""Flower's DP on the server with noise for more replies than there are clients, and unequal ones.

The deployment expects ten clients and has eight; what they hold weights them.
"""

from app_case import AppCase
from digits_task import EVERYBODY, NODES, train_and_reply
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


# Clipping widens no distance between two updates, and updates are at most twice as far apart as
# the models that they start from.
CASE = AppCase(
    strategy=lambda folder: DifferentialPrivacyServerSideFixedClipping(
        FedAvg(**EVERYBODY),
        noise_multiplier=0.1,
        clipping_norm=0.2,
        num_sampled_clients=NODES + 2,
    ),
    client_app=app,
    growth=3,
)
