"""What the apps of this folder share: real digits by client, softmax regression, plain replies.

Flower's templates keep the same things in a file called ``task.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Weights: TypeAlias = dict[str, NDArray[Any]]
Value: TypeAlias = int | float | list[int] | list[float]
NODES = 8
RATE = 0.2
EVERYBODY: dict[str, Any] = {
    "fraction_evaluate": 0.0,
    "min_train_nodes": NODES,
    "min_available_nodes": NODES,
}
"""Arguments of a strategy that asks all nodes to train and none to evaluate."""


@functools.cache
def digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """1,797 images of 64 pixels in [0, 1], and their digits."""
    data = load_digits()
    return data.data / 16, data.target


def share(context: Context) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """A client's images and digits; a client with an odd number holds half as many."""
    inputs, targets = digits()
    number, of = (
        int(context.node_config[f"{x}"])
        for x in ("partition-id", "num-partitions")
    )
    mine = slice(number, None, of if number % 2 == 0 else 2 * of)
    return inputs[mine], targets[mine]


def as_record(weights: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord(
        {name: Array(np.asarray(value)) for name, value in weights.items()}
    )


def as_weights(record: ArrayRecord) -> Weights:
    return {name: array.numpy().copy() for name, array in record.items()}


def initial() -> ArrayRecord:
    """The model that all start from: small numbers, so that every client has a loss of its own."""
    return as_record({"weight": small(64, 10), "bias": np.zeros(10, "f4")})


def small(*shape: int) -> NDArray[np.float32]:
    """The same small random numbers every time."""
    return (0.1 * np.random.default_rng(3).standard_normal(shape)).astype("f4")


def received(message: Message) -> Weights:
    """The model in a message."""
    return as_weights(message.content.array_records["arrays"])


def setting(message: Message, name: str, default: float = 0.0) -> float:
    """A number in the message's configuration."""
    found = message.content.config_records["config"].get(name, default)
    assert isinstance(found, (int, float))
    return float(found)


def chances(
    weight: NDArray[Any], bias: NDArray[Any], inputs: NDArray[np.float64]
) -> NDArray[np.float64]:
    scores = inputs @ weight + bias
    found = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(found / found.sum(axis=1, keepdims=True), float)


def train_locally(
    weights: Weights,
    context: Context,
    rate: float = RATE,
    steps: int = 3,
    pull: float = 0.0,
) -> tuple[Weights, float, int]:
    """Gradient descent on a client's own digits.

    Args:
        weights: a matrix and a vector of one entry a digit.
        context: of the client.
        rate: learning rate; `RATE` is small enough for a step that never widens a difference.
        steps: of gradient descent.
        pull: strength with which FedProx pulls back to where the client began.

    Returns:
        The new weights, in the types of the old, the loss before training, and the number of
        examples.
    """
    inputs, targets = share(context)
    names = list(weights)
    start_weight, start_bias = (weights[name].astype(float) for name in names)
    weight, bias = start_weight.copy(), start_bias.copy()
    rows = np.arange(len(targets))
    loss = float(-np.log(chances(weight, bias, inputs)[rows, targets]).mean())
    for _ in range(steps):
        slope = chances(weight, bias, inputs)
        slope[rows, targets] -= 1
        weight -= rate * (
            inputs.T @ slope / len(targets) + pull * (weight - start_weight)
        )
        bias -= rate * (slope.mean(axis=0) + pull * (bias - start_bias))
    new = {
        name: value.astype(weights[name].dtype)
        for name, value in zip(names, (weight, bias), strict=True)
    }
    return new, loss, len(targets)


def accuracy(record: ArrayRecord) -> float:
    """Share of all digits that a model names rightly."""
    inputs, targets = digits()
    weights = as_weights(record)
    found = chances(weights["weight"], weights["bias"], inputs)
    return float((found.argmax(axis=1) == targets).mean())


def reply(message: Message, weights: Weights, **metrics: Value) -> Message:
    """An answer with a model and metrics; an underscore stands for a hyphen."""
    named = {name.replace("_", "-"): value for name, value in metrics.items()}
    content = RecordDict(
        {"arrays": as_record(weights), "metrics": MetricRecord(named)}
    )
    return Message(content, reply_to=message)


def train_and_reply(
    message: Message, context: Context, rate: float = RATE
) -> Message:
    """What most clients do: train what they got, answer with it, the loss and the examples."""
    new, loss, examples = train_locally(received(message), context, rate)
    return reply(message, new, loss=loss, num_examples=examples)


def answered(replies: Iterable[Message]) -> list[Message]:
    """The replies without an error."""
    return [message for message in replies if not message.has_error()]


def only_metrics(message: Message) -> MetricRecord:
    """The one set of metrics in a reply."""
    (metrics,) = message.content.metric_records.values()
    return metrics


def number(message: Message, name: str) -> float:
    """A metric of a reply that must be one number."""
    found = only_metrics(message)[name]
    assert isinstance(found, (int, float))
    return float(found)
