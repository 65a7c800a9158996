"""FedAvgM: the server adds momentum, so that what a round did goes on in the next ones."""

from app_case import AppCase
from digits_task import EVERYBODY, initial, train_and_reply
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvgM

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


# With momentum β a difference of one round comes back β, β², … times: 1/(1 − β) in all.
CASE = AppCase(
    strategy=lambda folder: FedAvgM(**EVERYBODY, server_learning_rate=1.0, server_momentum=0.5),
    client_app=app,
    initial=initial,
    growth=1.5,
)
