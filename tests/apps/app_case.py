"""`AppCase`: what a test needs to run one of the apps of this folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from digits_task import NODES, initial
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray


def _nothing(strategy: Any) -> object:
    return None


@dataclasses.dataclass(frozen=True)
class AppCase:
    """A server app, taken apart so that an audit can be put around its strategy; a client app.

    Attributes:
        strategy: makes a fresh strategy; gets a folder to write to.
        client_app: answers the messages.
        initial: makes the arrays that the run starts with.
        nodes: number of clients.
        rounds: number of rounds.
        starts: rounds of each call of `start`, which goes on from the last model; one by default.
        arguments: makes further arguments of `start`; gets a folder to write to.
        prepare: what the server app does with the strategy before it starts.
        audit: further arguments of the audit.
        recorded: what the server app reads from the strategy after the run.
        raises: what the run ends with, if not with a model.
        updates: whether replies are updates instead of models.
        measurable: whether an audit that is told nothing more must come to an ε.
        faulty: whether something happens that an audit must keep as a fault.
        growth: how many times as far apart, at most, a round leaves two models; 1 for plain
            averages of what `digits_task.train_locally` returns.
        robust: what the strategy does with the replies, shape ``(clients, dim)``, where it is no
            average: monotone in each reply, and bounded however far some of them lie.
    """

    strategy: Callable[[Path], Strategy]
    client_app: ClientApp
    initial: Callable[[], ArrayRecord] = initial
    nodes: int = NODES
    rounds: int = 3
    starts: tuple[int, ...] = ()
    arguments: Callable[[Path], dict[str, Any]] = lambda folder: {}
    prepare: Callable[[Any], object] = _nothing
    audit: dict[str, Any] = dataclasses.field(default_factory=dict)
    recorded: Callable[[Any], object] = _nothing
    raises: type[Exception] | None = None
    updates: bool = False
    measurable: bool = True
    faulty: bool = False
    growth: float = 1.0
    robust: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None

    def run(self, strategy: Strategy, grid: Grid, folder: Path) -> Result:
        """What the app's server does with the strategy, or with an audit of it."""
        self.prepare(strategy)
        whole, done = Result(arrays=self.initial()), 0
        for rounds in self.starts or (self.rounds,):
            result = strategy.start(
                grid=grid,
                initial_arrays=whole.arrays,
                num_rounds=rounds,
                **self.arguments(folder),
            )
            whole.arrays = result.arrays or whole.arrays
            for kind in ("train", "evaluate"):
                name = f"{kind}_metrics_clientapp"
                metrics = getattr(result, name).items()
                getattr(whole, name).update(
                    {done + t: value for t, value in metrics}
                )
            whole.evaluate_metrics_serverapp |= (
                result.evaluate_metrics_serverapp
            )
            done += rounds
        return whole
