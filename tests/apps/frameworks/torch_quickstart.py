"""Flower's first example in PyTorch: a small convolutional network; half of the clients train."""

from app_case import AppCase
from digits_task import NODES
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from frameworks.in_torch import (
    ROUNDS,
    answer,
    central,
    cross_entropy,
    digits_right,
    fit,
    fresh,
    my_digits,
    received,
    seeded,
)
from torch import nn

app = ClientApp()


def net() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    with seeded(message, context):
        model, data = received(net, message), my_digits(context)
        return answer(
            message,
            model.state_dict(),
            fit(model, data, cross_entropy),
            len(data),
        )


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    metrics = {
        "eval_acc": digits_right(received(net, message)),
        "num-examples": len(my_digits(context)),
    }
    return Message(
        RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message
    )


CASE = AppCase(
    strategy=lambda folder: FedAvg(
        fraction_train=0.5, fraction_evaluate=0.5, min_available_nodes=NODES
    ),
    client_app=app,
    initial=lambda: fresh(net),
    rounds=ROUNDS,
    arguments=central(net),
)
