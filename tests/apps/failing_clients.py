"""A client raises in every second round, another always; FedAvg goes on with the rest."""

from app_case import AppCase
from digits_task import EVERYBODY, setting, train_and_reply
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    number = int(context.node_config["partition-id"])
    if number == 6 or (
        number == 1 and setting(message, "server-round") % 2 == 0
    ):
        raise RuntimeError(f"client {number} has no memory left")
    return train_and_reply(message, context)


CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY), client_app=app, faulty=True
)
