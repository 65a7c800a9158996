"""Flower's quickstart: FedAvg as it comes, training and evaluation on every client. Nothing odd."""

from app_case import AppCase
from digits_task import accuracy, share, train_and_reply
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    right = accuracy(message.content.array_records["arrays"])
    count = len(share(context)[1])
    metrics = MetricRecord({"accuracy": right, "num-examples": count})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


CASE = AppCase(strategy=lambda folder: FedAvg(), client_app=app)
