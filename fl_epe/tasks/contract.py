"""`Task`, what every task promises: the clients' data, a model, a loss and a metric."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch

from fl_epe.models import bind_parameters, glorot_uniform, one_thread
from fl_epe.seeding import generator

_EVALUATION_BATCH = 64


@dataclasses.dataclass(frozen=True)
class ClientData:
    """The examples of one client, or the held-out examples.

    Attributes:
        inputs: what the model is called with, first axis the examples.
        targets: int64, first axis the examples.
    """

    inputs: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        return len(self.targets)


@dataclasses.dataclass(frozen=True)
class LossSum:
    """The loss of a batch as a sum, so that batches and masked positions add up.

    Attributes:
        loss: differentiable scalar, summed over what was predicted.
        correct: how many predictions were right.
        examples: how many predictions there were (for text, the tokens that are not masked).
    """

    loss: torch.Tensor
    correct: int
    examples: int


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC):
    """A federated learning problem.

    The fields of a subclass are its options, cheap and hashable. Data is loaded when it is first
    asked for and cached by module-level functions, never in the object: it pickles as a few bytes.

    Attributes:
        name: what `load_task` calls it.
        defaults: settings of `RunConfig` that suit it better than those of `RunConfig`.
    """

    name: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    @property
    @abc.abstractmethod
    def num_clients(self) -> int:
        """How many clients have data; their ids are ``0 … num_clients − 1``."""

    @abc.abstractmethod
    def model(self) -> torch.nn.Module:
        """A fresh architecture on the CPU, the values of its parameters undefined."""

    @abc.abstractmethod
    def client(self, client_id: int) -> ClientData:
        """The examples of one client.

        Raises:
            ValueError: for a ``client_id`` outside ``0 … num_clients − 1``.
        """

    def sizes(self, client_ids: np.ndarray) -> np.ndarray:
        """How many examples each of these clients has, shape as ``client_ids``.

        All alike, unless a task knows better without reading the examples.
        """
        return np.ones_like(client_ids)

    @abc.abstractmethod
    def held_out(self) -> ClientData:
        """The examples that no client has, for `evaluate`."""

    @abc.abstractmethod
    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> LossSum:
        """Loss and right predictions of a batch, given the model's outputs for it."""

    def batch_loss(self, model: Callable[..., torch.Tensor], batch: ClientData) -> LossSum:
        """Call ``model`` with the inputs of a batch, and `loss` with its outputs.

        Override it to call the model in another way, e.g. for some of its outputs alone. Clients
        that are trained at once (`fl_epe.training.vectorized`) need `loss`.
        """
        return self.loss(model(batch.inputs), batch.targets)

    @property
    def dim(self) -> int:
        """Number of parameters of the model."""
        return _dim(self)

    def initial(self, seed: int) -> np.ndarray:
        """The initial model: Glorot uniform weights, zero biases.

        Or what the model's own ``initial_values(random)`` yields, an array for each parameter.

        Returns:
            float32 of shape (dim,), the parameters in the order of ``model().parameters()``.
        """
        random, model = generator(seed), self.model()
        initial_values: Any = getattr(model, "initial_values", None)
        if initial_values is not None:
            parts = list(initial_values(random))
        else:
            parts = [glorot_uniform(tuple(p.shape), random) for p in model.parameters()]
        return np.concatenate([part.ravel() for part in parts])

    def evaluate(self, theta: np.ndarray) -> dict[str, float]:
        """Mean ``loss`` and ``accuracy`` of the model ``theta`` on the held-out examples.

        The same bits whatever the number of threads.

        Args:
            theta: float32 of shape (dim,).

        Raises:
            ValueError: for another shape.
        """
        if theta.shape != (self.dim,):
            raise ValueError(f"Expected theta.shape={theta.shape} == ({self.dim},).")
        model = self.model().eval()
        bind_parameters(model, torch.tensor(theta, dtype=torch.float32))
        data = self.held_out()
        parts = (torch.split(part, _EVALUATION_BATCH) for part in (data.inputs, data.targets))
        batches = map(ClientData, *parts)
        with one_thread(), torch.inference_mode():
            sums = [self.batch_loss(model, batch) for batch in batches]
        examples = max(1, sum(part.examples for part in sums))
        return {
            "loss": sum(part.loss.item() for part in sums) / examples,
            "accuracy": sum(part.correct for part in sums) / examples,
        }

    def chance_accuracy(self) -> float | None:
        """Accuracy on the held-out examples without learning: always their most frequent class.

        ``None`` where an example has more than one target, or one that is no class.
        """
        targets = self.held_out().targets
        if targets.dim() != 1 or targets.is_floating_point() or not len(targets):
            return None
        return float(torch.bincount(targets).max()) / len(targets)

    def check_client(self, client_id: int) -> None:
        """Raise ValueError unless ``client_id`` is one of ``0 … num_clients − 1``."""
        if not 0 <= client_id < self.num_clients:
            raise ValueError(f"Expected 0 <= client_id={client_id} < {self.num_clients}.")


@functools.lru_cache(maxsize=16)
def _dim(task: Task) -> int:
    return sum(parameter.numel() for parameter in task.model().parameters())
