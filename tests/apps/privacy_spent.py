"""Flower's DP with its accountant; after the run the server app asks what has been spent.

The accountant refuses a round with more or fewer replies than the noise is for.
"""

from __future__ import annotations

from pathlib import Path

from app_case import AppCase
from digits_task import EVERYBODY, NODES, received, reply, train_locally
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import (
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    new, loss, _ = train_locally(received(message), context)
    return reply(message, new, loss=loss, num_examples=1)


def make(folder: Path) -> DifferentialPrivacyServerSideFixedClipping:
    config = PrivacyConfig(
        1e-3,
        NODES,
        NeighboringRelation.ADD_OR_REMOVE_ONE,
        SamplingMethod.NO_AMPLIFICATION,
    )
    return DifferentialPrivacyServerSideFixedClipping(
        FedAvg(**EVERYBODY),
        noise_multiplier=1.0,
        clipping_norm=0.2,
        num_sampled_clients=NODES,
        accountant=RdpAccountant(config),
    )


# Clipping widens no distance between two updates, and updates are at most twice as far apart as
# the models that they start from.
CASE = AppCase(
    strategy=make,
    client_app=app,
    recorded=lambda strategy: f"{strategy.privacy_spent().epsilon:.6f}",
    growth=3,
)
