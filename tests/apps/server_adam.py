"""FedAdam: the step is no average, and it depends on the rounds before."""

from app_case import AppCase
from digits_task import EVERYBODY, train_and_reply
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


# τ is far above every coordinate of an update, so that a step is at most 0.8 times a weighted mean
# of the updates so far.
CASE = AppCase(
    strategy=lambda folder: FedAdam(**EVERYBODY, eta=5.0, tau=1.0),
    client_app=app,
    growth=1.5,
)
