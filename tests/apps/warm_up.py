"""The learning rate warms up from 0: in round 1 nobody moves, and every update has norm zero."""

from __future__ import annotations

from collections.abc import Iterable

from app_case import AppCase
from digits_task import EVERYBODY, setting, train_and_reply
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context, rate=setting(message, "lr"))


class WarmUp(FedAvg):
    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        config["lr"] = 0.2 * (server_round - 1) / 2
        return super().configure_train(server_round, arrays, config, grid)


CASE = AppCase(
    strategy=lambda folder: WarmUp(**EVERYBODY), client_app=app, faulty=True
)
