"""Runs the apps of `tests/apps`, with an audit or without, and keeps what went over the wire."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from app_case import AppCase
from flwr.app import Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fl_epe.flower import CanaryAudit, InProcessGrid

CANARIES_A_ROUND = 2
DELTA = 1e-3
Weights = dict[str, NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Answer:
    """A client's readable answer, as it came.

    Attributes:
        node: of the client.
        weights: its arrays.
        metrics: its metrics.
    """

    node: int
    weights: Weights
    metrics: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One round of training on the wire.

    Attributes:
        asked: node ids in the order of the messages.
        model: that they got.
        configs: that they got, in the order of the messages.
        answers: of those who did not fail.
    """

    asked: list[int]
    model: Weights
    configs: list[dict[str, Any]]
    answers: list[Answer]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run left behind.

    Attributes:
        result: what `start` returned; ``None`` if it raised.
        error: what it raised.
        rounds: those in which somebody was asked to train.
        recorded: what the app reads from its strategy in the end.
        audit: around the strategy; ``None`` without.
    """

    result: Result | None
    error: Exception | None
    rounds: list[Exchange]
    recorded: object
    audit: CanaryAudit | None

    @property
    def models(self) -> list[Weights]:
        """The model that each round began with, and the last."""
        assert self.result is not None
        return [*(found.model for found in self.rounds), _weights(self.result.arrays)]


class WatchedGrid(InProcessGrid):
    """Keeps copies of the training messages and of the answers, a round each."""

    def __init__(self, client_app: ClientApp, nodes: int) -> None:
        super().__init__(client_app, nodes)
        self.rounds: list[Exchange] = []

    def __enter__(self) -> WatchedGrid:
        return self

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        replies = list(super().send_and_receive(messages, timeout=timeout))
        if messages and messages[0].metadata.message_type == "train":
            exchange = Exchange(
                [message.metadata.dst_node_id for message in messages],
                _weights(messages[0].content["arrays"]),
                [dict(message.content.config_records["config"].items()) for message in messages],
                [_answer(reply) for reply in replies if not reply.has_error()],
            )
            self.rounds.append(exchange)
        return replies


def _weights(record: Any) -> Weights:
    return {name: array.numpy().copy() for name, array in record.items()}


def _answer(reply: Message) -> Answer:
    metrics: dict[str, Any] = {}
    for record in reply.content.metric_records.values():
        metrics |= dict(record.items())
    return Answer(
        reply.metadata.src_node_id, _weights(reply.content.array_records["arrays"]), metrics
    )


def run_app(case: AppCase, folder: Path, *, audited: bool) -> Outcome:
    """Run an app in this process, with the seeds of Flower's global generators set."""
    random.seed(0)  # Flower draws clients from it
    np.random.seed(0)  # noqa: NPY002 - and its DP noise from this one
    folder.mkdir()
    strategy, audit = case.strategy(folder), None
    if audited:
        strategy = audit = CanaryAudit(
            strategy, num_canaries=CANARIES_A_ROUND * case.rounds, delta=DELTA, seed=1
        )
    result, error = None, None
    with WatchedGrid(case.client_app, case.nodes) as grid:
        try:
            result = case.run(strategy, grid, folder)
        except Exception as raised:  # noqa: BLE001 - compared with that of the other run
            error = raised
    recorded = case.recorded(strategy) if error is None else None
    return Outcome(result, error, grid.rounds, recorded, audit)


def real_metrics(metrics: MetricRecord | None) -> dict[str, Any] | None:
    """Metrics of a round without what an audit adds."""
    if metrics is None:
        return None
    found = {name: value for name, value in metrics.items() if not name.startswith("epsilon-")}
    return found or None
