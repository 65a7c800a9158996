"""Plain Flower client apps for tests of audits: fast, and nothing in them knows of a canary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

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
from sklearn.datasets import load_digits

Arrays: TypeAlias = dict[str, np.ndarray]
SHAPES: dict[str, tuple[int, ...]] = {
    "layer.weight": (40, 100),
    "layer.bias": (40,),
}
DIM = 4040


def model(
    shapes: Mapping[str, tuple[int, ...]] = SHAPES, dtype: str = "float32"
) -> ArrayRecord:
    return ArrayRecord(
        {name: Array(np.zeros(shape, dtype)) for name, shape in shapes.items()}
    )


def drifting_app(
    mods: Sequence[Mod] = (),
    *,
    norm: float = 0.1,
    examples: int | Callable[[int], int] = 10,
    arrange: Callable[[Arrays], Arrays] = lambda arrays: arrays,
    fails: Callable[[int, int], bool] = lambda node, t: False,
) -> ClientApp:
    """Each client answers with the model plus its own fixed-norm random step.

    Args:
        mods: of the app.
        norm: of every update.
        examples: that every client claims, or a function of its partition.
        arrange: changes the answered arrays (names, order, types), given a dictionary of them.
        fails: whether the client of a partition raises in a round.
    """
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        t = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
        if fails(partition, t):
            raise RuntimeError(f"client {partition} is broken")
        rng = np.random.default_rng((17, partition, t))
        arrays_sent = message.content.array_records["arrays"]
        received = {name: array.numpy() for name, array in arrays_sent.items()}
        moved = [k for k, v in received.items() if v.ndim and k != "counts"]
        moved.sort(
            key=lambda k: -received[k].size
        )  # the same steps under any names, in any order
        steps = {k: rng.standard_normal(received[k].shape) for k in moved}
        length = np.sqrt(sum(np.sum(step**2) for step in steps.values()))
        arrays = {
            k: np.asarray(
                v + norm / length * steps[k] if k in moved else v
            ).astype(v.dtype)
            for k, v in received.items()
        }
        count = examples(partition) if callable(examples) else examples
        content = RecordDict(
            {
                "arrays": ArrayRecord(
                    {k: Array(v) for k, v in arrange(arrays).items()}
                ),
                "metrics": MetricRecord(
                    {"loss": float(partition), "num-examples": count}
                ),
            }
        )
        return Message(content, reply_to=message)

    return app


def digits_model() -> ArrayRecord:
    arrays = {
        "weight": np.zeros((64, 10), np.float32),
        "bias": np.zeros(10, np.float32),
    }
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})


def digits_app(mods: Sequence[Mod] = ()) -> ClientApp:
    """Softmax regression on real digits; every client holds its share of them."""
    digits = load_digits()
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        mine = slice(int(context.node_config["partition-id"]), None, 24)
        inputs, targets = digits.data[mine] / 16, digits.target[mine]
        received = message.content.array_records["arrays"].values()
        weight, bias = (array.numpy().astype(float) for array in received)
        for _ in range(5):
            scores = inputs @ weight + bias
            chances = np.exp(scores - scores.max(axis=1, keepdims=True))
            chances /= chances.sum(axis=1, keepdims=True)
            chances[np.arange(len(chances)), targets] -= 1
            weight -= 0.5 * inputs.T @ chances / len(chances)
            bias -= 0.5 * chances.mean(axis=0)
        new = {"weight": weight.astype("f4"), "bias": bias.astype("f4")}
        content = RecordDict(
            {
                "arrays": ArrayRecord(
                    {name: Array(value) for name, value in new.items()}
                ),
                "metrics": MetricRecord({"num-examples": 10}),
            }
        )
        return Message(content, reply_to=message)

    return app
