"""Local DP: every client adds noise to its own update, which no synthetic reply has.

As Flower's `LocalDpMod` at ε = 1 adds it, but with a seed of each client and round.
"""

import numpy as np
from app_case import AppCase
from digits_task import EVERYBODY, received, reply, setting, train_locally
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

NOISE = float(np.sqrt(2 * np.log(1.25e5)))  # of a sensitivity of 1

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    new, loss, examples = train_locally(received(message), context)
    seed = (
        int(context.node_config["partition-id"]),
        int(setting(message, "server-round")),
    )
    rng = np.random.default_rng(seed)
    noisy = {
        name: value + NOISE * rng.standard_normal(value.shape)
        for name, value in new.items()
    }
    answer = {name: value.astype("f4") for name, value in noisy.items()}
    return reply(message, answer, loss=loss, num_examples=examples)


CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY),
    client_app=app,
    measurable=False,
    faulty=True,
)
