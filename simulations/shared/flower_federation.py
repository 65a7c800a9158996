"""A small federation in one process, for audits that need real Flower messages."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fl_epe.flower import InProcessGrid

Model = dict[str, NDArray[np.generic]]
Answer = Callable[[Model, int, int], Model]
"""Takes the received model, the node (from 0) and the round (from 1); returns the reply's model."""

_HIDDEN, _STEPS, _RATE = 64, 3, 0.5


class Digits:
    """Clients that each train a small network on a share of scikit-learn's 1,797 digits.

    The network has two layers with tanh and 4,810 parameters. A client takes three steps of
    gradient descent, which last a few milliseconds.

    Args:
        clients: number of clients.
    """

    def __init__(self, clients: int) -> None:
        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(labels))
        parts = np.array_split(order, clients)
        self._parts = [
            (images[part] / 16, np.eye(10)[labels[part]]) for part in parts
        ]

    @staticmethod
    def initial() -> Model:
        """The initial model."""
        rng = np.random.default_rng(1)
        return {
            "hidden.weight": rng.normal(0, 64**-0.5, (64, _HIDDEN)),
            "hidden.bias": np.zeros(_HIDDEN),
            "out.weight": rng.normal(0, _HIDDEN**-0.5, (_HIDDEN, 10)),
            "out.bias": np.zeros(10),
        }

    def __call__(self, model: Model, node: int, server_round: int) -> Model:
        """Train on the node's images."""
        images, labels = self._parts[node]
        w1, b1, w2, b2 = (
            np.array(values, np.float64) for values in model.values()
        )
        for _ in range(_STEPS):
            hidden = np.tanh(images @ w1 + b1)
            logits = hidden @ w2 + b2
            shares = np.exp(logits - logits.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            wrong = _RATE * (shares - labels) / len(images)
            back = (wrong @ w2.T) * (1 - hidden**2)
            w2, b2 = w2 - hidden.T @ wrong, b2 - wrong.sum(axis=0)
            w1, b1 = w1 - images.T @ back, b1 - back.sum(axis=0)
        return dict(zip(model, (w1, b1, w2, b2), strict=True))


class LossyGrid(InProcessGrid):
    """A grid that loses the last replies of each round.

    Strategies draw a new order of the nodes in each round, so that other nodes are lost each time.

    Args:
        client_app: the app that answers the messages.
        nodes: number of nodes.
        arriving: share of a round's replies that arrives.
    """

    def __init__(
        self, client_app: ClientApp, nodes: int, arriving: float = 1.0
    ) -> None:
        super().__init__(client_app, nodes)
        self._arriving = arriving

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
        **newer: Any,
    ) -> Iterable[Message]:
        """The replies that arrive."""
        replies = list(
            super().send_and_receive(messages, timeout=timeout, **newer)
        )
        return replies[: round(self._arriving * len(replies))]


def client_app(answer: Answer, mods: Sequence[Mod] = ()) -> ClientApp:
    """Clients that reply with the model that ``answer`` makes, each with one example."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        node = int(context.node_config["partition-id"])
        server_round = message.content.config_records["config"]["server-round"]
        model = to_model(message.content.array_records["arrays"])
        arrays = to_record(answer(model, node, int(server_round)))  # type: ignore[arg-type]
        metrics = MetricRecord({"num-examples": 1})
        return Message(
            RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message
        )

    return app


def one_round(
    strategy: Strategy,
    model: Model,
    answers: Sequence[Model | None],
    mods: Sequence[Mod] = (),
) -> Model | None:
    """Play one round in which node i replies with ``answers[i]``, or fails if that is ``None``.

    Returns:
        The model after the round; ``None`` if the strategy released no model.
    """

    def answer(received: Model, node: int, server_round: int) -> Model:
        reply = answers[node]
        if reply is None:
            raise RuntimeError("this client fails")
        return reply

    with InProcessGrid(client_app(answer, mods), len(answers)) as grid:
        released = strategy.start(grid, to_record(model), 1).arrays
    return to_model(released) if released else None


def to_record(model: Model) -> ArrayRecord:
    """The model as Flower sends it."""
    return ArrayRecord({name: Array(values) for name, values in model.items()})


def to_model(arrays: ArrayRecord) -> Model:
    """The model in what Flower sent."""
    return {name: array.numpy() for name, array in arrays.items()}


def seed_flower(seed: int) -> None:
    """Seed what Flower draws from: NumPy's global generator for noise, `random` for nodes.

    Flower takes no generator for either, so a run can be repeated in no other way.
    """
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
