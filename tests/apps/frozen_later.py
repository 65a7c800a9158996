"""After the first round clients train the bias alone, and send the weight back as it came."""

from __future__ import annotations

from app_case import AppCase
from digits_task import EVERYBODY, received, reply, setting, train_locally
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    model = received(message)
    new, loss, examples = train_locally(model, context)
    if setting(message, "server-round") > 1:
        new["weight"] = model["weight"]
    return reply(message, new, loss=loss, num_examples=examples)


# A bias alone follows the weight, whose distance it takes over in part.
CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY), client_app=app, growth=2
)
