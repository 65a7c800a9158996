"""What the apps of this folder share: a model's record, digits by client, training on one client.

Each app has the shape of one of Flower's examples, and is written anew: models that the example
would load from a hub are tiny and random here, and data are scikit-learn's digits or synthetic.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from digits_task import digits, setting, share
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

ROUNDS = 10
_ONE_AT_A_TIME = (
    threading.Lock()
)  # clients are threads of one process, and torch has one generator

Central = Callable[[int, ArrayRecord], MetricRecord]


@contextlib.contextmanager
def seeded(message: Message, context: Context) -> Iterator[None]:
    """A client's turn, with torch's random numbers of this client and round."""
    seed = (
        int(context.node_config["partition-id"]),
        int(setting(message, "server-round")),
    )
    with _ONE_AT_A_TIME:
        torch.manual_seed(1000 * seed[0] + seed[1])
        yield


def fresh(make: Callable[[], nn.Module]) -> ArrayRecord:
    """The parameters of a new model, the same ones every time."""
    torch.manual_seed(0)
    return ArrayRecord(make().state_dict())


def loaded(make: Callable[[], nn.Module], arrays: ArrayRecord) -> Any:
    """A model with these parameters."""
    model = make()
    model.load_state_dict(arrays.to_torch_state_dict())
    return model


def received(make: Callable[[], nn.Module], message: Message) -> Any:
    """The model in a message."""
    return loaded(make, message.content.array_records["arrays"])


def answer(
    message: Message,
    state: dict[str, Tensor],
    loss: float,
    examples: int,
    **more: float,
) -> Message:
    """A reply as Flower's examples have it."""
    metrics = MetricRecord(
        {"train_loss": loss, "num-examples": examples, **more}
    )
    return Message(
        RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}),
        reply_to=message,
    )


def tensors(inputs: Any, targets: Any) -> TensorDataset:
    return TensorDataset(
        torch.as_tensor(inputs, dtype=torch.float32), torch.as_tensor(targets)
    )


def my_digits(context: Context) -> TensorDataset:
    """A client's images, 64 pixels each, and their digits."""
    return tensors(*share(context))


def fit(
    model: nn.Module,
    data: TensorDataset,
    loss_of: Callable[[nn.Module, Tensor, Tensor], Tensor],
    rate: float = 0.01,
    epochs: int = 2,
) -> float:
    """Train in place with Adam in batches of 16; returns the mean loss."""
    optimizer = torch.optim.Adam(
        [p for p in model.parameters() if p.requires_grad], lr=rate
    )
    losses = []
    model.train()
    for _ in range(epochs):
        for inputs, targets in DataLoader(data, 16, shuffle=True):
            optimizer.zero_grad()
            loss = loss_of(model, inputs, targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def cross_entropy(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(inputs), targets)


def right(logits: Tensor, targets: Tensor) -> float:
    """Share of the targets that have the largest logit."""
    return float((logits.argmax(1) == targets).float().mean())


@torch.no_grad()
def digits_right(model: nn.Module) -> float:
    """Share of all digits that a model names rightly."""
    inputs, targets = tensors(*digits()).tensors
    return right(model.eval()(inputs), targets)


def central(
    make: Callable[[], nn.Module],
) -> Callable[[object], dict[str, Any]]:
    """Further arguments of `start`: the server evaluates every round's model on all digits."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": digits_right(loaded(make, arrays))})

    return lambda folder: {"evaluate_fn": evaluate}
