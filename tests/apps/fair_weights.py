"""QFedAvg: replies are weighted by the loss that they report, and by how far they moved."""

from app_case import AppCase
from digits_task import received, reply, train_locally
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import QFedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    new, loss, examples = train_locally(received(message), context)
    return reply(message, new, train_loss=loss, num_examples=examples)


# Flower collects garbage for every array here, so there are few clients and rounds.
CASE = AppCase(
    strategy=lambda folder: QFedAvg(
        fraction_evaluate=0.0,
        min_train_nodes=4,
        min_available_nodes=4,
        client_learning_rate=0.2,
        q=0.2,
        train_loss_key="train-loss",
    ),
    client_app=app,
    nodes=4,
    rounds=2,
    growth=2,  # the weights follow the losses, and those the model
)
