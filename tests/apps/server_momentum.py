"""FedAvgM: the server adds momentum, so that what a round did goes on in the next ones."""

from app_case import AppCase
from digits_task import EVERYBODY, train_and_reply
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvgM

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


# With momentum 1/2 differences of e in every round leave e, 2.5·e and 5.25·e after them.
CASE = AppCase(
    strategy=lambda folder: FedAvgM(
        **EVERYBODY, server_learning_rate=1.0, server_momentum=0.5
    ),
    client_app=app,
    growth=1.7,
)
