"""A strategy that asks nobody in round 2: an empty list of messages, and no replies."""

from __future__ import annotations

from collections.abc import Iterable

from app_case import AppCase
from digits_task import EVERYBODY, train_and_reply
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


class Rests(FedAvg):
    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        if server_round == 2:
            return []
        return super().configure_train(server_round, arrays, config, grid)


CASE = AppCase(strategy=lambda folder: Rests(**EVERYBODY), client_app=app)
