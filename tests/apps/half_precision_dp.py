"""A model in float16 under Flower's DP: a longer update than 256 has no norm in float16."""

from app_case import AppCase
from digits_task import EVERYBODY, NODES, received, reply, train_locally
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)
from half_precision import initial

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    new, loss, _ = train_locally(received(message), context)
    return reply(message, new, loss=loss, num_examples=1)


CASE = AppCase(
    strategy=lambda folder: DifferentialPrivacyServerSideFixedClipping(
        FedAvg(**EVERYBODY),
        noise_multiplier=0.1,
        clipping_norm=1.0,
        num_sampled_clients=NODES,
    ),
    client_app=app,
    initial=initial,
    growth=3,
)
