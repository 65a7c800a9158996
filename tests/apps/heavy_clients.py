"""Flower's DP weighs clients by their examples, as its noise does not; here they are unequal."""

from app_case import AppCase
from digits_task import EVERYBODY, NODES, received, reply, train_locally
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

EXAMPLES = [round(10 * 1.6**i) for i in range(NODES)]

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    new, loss, _ = train_locally(received(message), context)
    examples = EXAMPLES[int(context.node_config["partition-id"])]
    return reply(message, new, loss=loss, num_examples=examples)


# Clipping widens no distance between two updates, and updates are at most twice as far apart as
# the models that they start from.
CASE = AppCase(
    strategy=lambda folder: DifferentialPrivacyServerSideFixedClipping(
        FedAvg(**EVERYBODY),
        noise_multiplier=1.0,
        clipping_norm=0.2,
        num_sampled_clients=NODES + 2,
    ),
    client_app=app,
    growth=3,
)
