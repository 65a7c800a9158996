"""Runs the apps of `tests/apps`, with an audit or without, and keeps what went over the wire."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from app_case import AppCase
from digits_task import NODES
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fl_epe.flower import CanaryAudit

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
        return [
            *(found.model for found in self.rounds),
            _weights(self.finished().arrays),
        ]

    def finished(self) -> Result:
        """The result; raises what the run ended with, if that was an error."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def audited(self) -> CanaryAudit:
        """The audit of a run with one."""
        assert self.audit is not None
        return self.audit


def watch(grid: Grid) -> list[Exchange]:
    """From now on, keep copies of a grid's training messages and of the answers."""
    rounds: list[Exchange] = []
    send = grid.send_and_receive

    def send_and_receive(
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
        **newer: Any,
    ) -> Iterable[Message]:
        messages = list(messages)
        replies = list(send(messages, timeout=timeout, **newer))
        if messages and messages[0].metadata.message_type == "train":
            exchange = Exchange(
                [message.metadata.dst_node_id for message in messages],
                _weights(_first(messages[0].content.array_records)),
                [
                    dict(_first(message.content.config_records).items())
                    for message in messages
                ],
                [_answer(reply) for reply in replies if not reply.has_error()],
            )
            rounds.append(exchange)
        return replies

    vars(grid)["send_and_receive"] = send_and_receive
    return rounds


def _first(records: Any) -> Any:
    return next(iter(records.values()))


def _weights(record: Any) -> Weights:
    return {name: array.numpy().copy() for name, array in record.items()}


def _answer(reply: Message) -> Answer:
    metrics: dict[str, Any] = {}
    for record in reply.content.metric_records.values():
        metrics |= dict(record.items())
    weights = _weights(_first(reply.content.array_records))
    return Answer(reply.metadata.src_node_id, weights, metrics)


def run_app(
    case: AppCase,
    grid: Grid,
    folder: Path,
    *,
    audited: bool,
    canaries: int | None = CANARIES_A_ROUND,
) -> Outcome:
    """Run an app's server on a grid, with the seeds of Flower's global generators set.

    With so many canaries a round; ``None`` leaves that to the audit.
    """
    random.seed(0)  # Flower draws clients from it
    np.random.seed(0)  # noqa: NPY002 - and its DP noise from this one
    folder.mkdir()
    strategy = _for_nodes(case.strategy(folder), case.nodes)
    audit, result, error, recorded = None, None, None, None
    rounds = watch(grid)
    try:
        if audited:
            given = dict(case.audit)
            if canaries is not None:  # few clients
                given = {
                    "num_canaries": canaries * case.rounds,
                    "max_share": 0.25,
                    **given,
                }
            strategy = audit = CanaryAudit(
                strategy, delta=DELTA, seed=1, **given
            )
        result = case.run(strategy, grid, folder)
        recorded = case.recorded(strategy)
    except Exception as raised:  # noqa: BLE001 - compared with that of the other run
        error = raised
    del vars(grid)["send_and_receive"]
    return Outcome(result, error, rounds, recorded, audit)


def _for_nodes(strategy: Strategy, nodes: int) -> Strategy:
    """The strategy, told to wait for all of so many nodes where it waits for `NODES`."""
    layers: Any = strategy
    while layers is not None:
        for name in (
            "min_train_nodes",
            "min_available_nodes",
            "num_sampled_clients",
        ):
            if getattr(layers, name, 0) == NODES:
                setattr(layers, name, nodes)
        layers = getattr(layers, "strategy", None)
    return strategy
