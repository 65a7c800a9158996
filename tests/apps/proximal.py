"""FedProx: the strategy sends a number to the clients, which pull back to where they began."""

from app_case import AppCase
from digits_task import EVERYBODY, received, reply, setting, train_locally
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedProx

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    pull = setting(message, "proximal-mu")
    new, loss, examples = train_locally(received(message), context, pull=pull)
    return reply(message, new, loss=loss, num_examples=examples)


CASE = AppCase(
    strategy=lambda folder: FedProx(**EVERYBODY, proximal_mu=0.1),
    client_app=app,
)
