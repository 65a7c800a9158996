"""Flower's DP with a fixed clip norm, where a mod on the clients clips."""

from app_case import AppCase
from digits_task import EVERYBODY, NODES, received, reply, train_locally
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    FedAvg,
)

app = ClientApp()


@app.train(mods=[fixedclipping_mod])
def train(message: Message, context: Context) -> Message:
    new, loss, _ = train_locally(received(message), context)
    return reply(message, new, loss=loss, num_examples=1)


# Clipping widens no distance between two updates, and updates are at most twice as far apart as
# the models that they start from.
CASE = AppCase(
    strategy=lambda folder: DifferentialPrivacyClientSideFixedClipping(
        FedAvg(**EVERYBODY),
        noise_multiplier=0.1,
        clipping_norm=0.2,
        num_sampled_clients=NODES,
    ),
    client_app=app,
    growth=3,
)
