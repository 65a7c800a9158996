"""The server app sets the strategy's attributes from outside, and the strategy reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app_case import AppCase
from digits_task import EVERYBODY, train_and_reply
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return train_and_reply(message, context)


class Tuned(FedAvg):
    """Asks half of the clients once it is told to, and keeps what it saw where it is told to."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._floor = 0
        self.seen: list[int] | None = None

    @property
    def floor(self) -> int:
        return self._floor

    @floor.setter
    def floor(self, value: int) -> None:
        self._floor = self.min_train_nodes = value

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        result = super().aggregate_train(server_round, replies)
        assert self.seen is not None
        self.seen.append(server_round)
        return result


def tune(strategy: Any) -> None:
    strategy.fraction_train = 0.5
    strategy.floor = 4
    strategy.seen = []
    strategy.scratch = 1
    del strategy.scratch
    counted, aggregate = [], strategy.aggregate_train

    def count(server_round: int, replies: Iterable[Message]) -> Any:
        counted.append(server_round)
        return aggregate(server_round, replies)

    strategy.aggregate_train, strategy.counted = count, counted


CASE = AppCase(
    strategy=lambda folder: Tuned(**EVERYBODY),
    client_app=app,
    prepare=tune,
    recorded=lambda strategy: (
        strategy.fraction_train,
        strategy.min_train_nodes,
        strategy.seen,
        strategy.counted,
        hasattr(strategy, "scratch"),
    ),
    audit={"max_share": 0.5},
)
