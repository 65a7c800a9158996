"""Clients do not agree on the names of their metrics, and Flower's own check ends the run."""

from app_case import AppCase
from digits_task import EVERYBODY, received, reply, train_locally
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    new, loss, examples = train_locally(received(message), context)
    if int(context.node_config["partition-id"]) == 4:
        return reply(message, new, train_loss=loss, num_examples=examples)
    return reply(message, new, loss=loss, num_examples=examples)


CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY),
    client_app=app,
    raises=InconsistentMessageReplies,
    measurable=False,
)
