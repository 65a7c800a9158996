"""A fraction of the clients trains in a round, drawn by Flower from its global generator."""

from app_case import AppCase
from digits_task import NODES, train_and_reply
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


CASE = AppCase(
    strategy=lambda folder: FedAvg(
        fraction_train=0.5, fraction_evaluate=0.0, min_available_nodes=NODES
    ),
    client_app=app,
    rounds=4,
)
