"""Flower's adaptive clip norm, which grows without end where no update is clipped, and no noise."""

from app_case import AppCase
from digits_task import EVERYBODY, NODES, received, reply, train_locally
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    FedAvg,
)

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    new, loss, _ = train_locally(received(message), context)
    return reply(message, new, loss=loss, num_examples=1)


CASE = AppCase(
    strategy=lambda folder: DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(**EVERYBODY),
        noise_multiplier=0.0,
        num_sampled_clients=NODES + 2,
        initial_clipping_norm=5.0,
        clip_norm_lr=30.0,
    ),
    client_app=app,
    rounds=6,
)
