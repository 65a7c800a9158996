"""A `start()` that hands on whatever it is given, as in Flower's tutorial."""

from __future__ import annotations

from typing import Any

from app_case import AppCase
from digits_task import EVERYBODY, train_and_reply
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Result

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


class Remembers(FedAvg):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.results: list[Result] = []

    def start(self, *args: Any, **kwargs: Any) -> Result:
        self.results.append(super().start(*args, **kwargs))
        return self.results[-1]


CASE = AppCase(
    strategy=lambda folder: Remembers(**EVERYBODY),
    client_app=app,
    recorded=lambda strategy: len(strategy.results),
)
