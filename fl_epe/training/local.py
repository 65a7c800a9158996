"""Local training: one client's data and the global model in, the client's update out.

To use several cores, start several threads with a `Trainer` each. On two cores of a Xeon (AVX-512,
torch 2.13, EMNIST CNN under autograd, digits, 2.2 steps a client) one thread trains 35 clients a
second, two threads 67, two processes 66, and one trainer whose operations use both cores 55. What
a round of clients costs is in `benchmarks/throughput.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np
import torch

from fl_epe.models import SeededDropout, batch_norms, draws_by_itself, prepared, trainable
from fl_epe.seeding import generator
from fl_epe.tasks import ClientData, LossSum, Task, bind_parameters, one_thread
from fl_epe.training.execution import Execution

__all__ = ["ClientUpdate", "LocalTraining", "Trainer", "batches"]

_LARGEST_KEPT = 31 << 20
_FEW = 2  # examples that show how a model behaves


@dataclasses.dataclass(frozen=True)
class LocalTraining:
    """How a client trains: plain SGD on its own examples.

    Attributes:
        learning_rate: step size on the mean loss of a batch.
        epochs: passes over the client's examples, each in a fresh order.
        batch_size: examples a step; the last batch of an epoch may be smaller.
    """

    learning_rate: float = 0.05
    epochs: int = 2
    batch_size: int = 16

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"Expected learning_rate={self.learning_rate} > 0 and finite.")
        if self.epochs < 1:
            raise ValueError(f"Expected epochs={self.epochs} >= 1.")
        if self.batch_size < 1:
            raise ValueError(f"Expected batch_size={self.batch_size} >= 1.")


@dataclasses.dataclass(frozen=True)
class ClientUpdate:
    """What a client learned in a round.

    Attributes:
        delta: float32 of shape (dim,), local minus global model, not clipped.
        examples: number of predictions made while training, in all epochs together.
        loss_sum: sum of the losses of these predictions.
        correct: how many of these predictions were right, or the sum of another metric.
    """

    delta: np.ndarray
    examples: int
    loss_sum: float
    correct: float


class Trainer:
    """Trains clients of a task one after another in the same memory.

    On a CPU the update depends on the arguments of `train` alone, to the last bit: not on which
    trainer, thread or process computes it, nor on what was computed before. This holds for one
    kind of processor and one version of torch; others may round differently. A trainer serves one
    thread at a time, so use one for each thread.
    """

    def __init__(self, task: Task, execution: Execution | None = None) -> None:
        """Allocate one model.

        Args:
            task: the task whose clients are trained.
            execution: on which device and how exactly; on the CPU in float32 by default.
        """
        _keep_freed_memory()
        self._execution = execution or Execution(device="cpu")
        self._execution.prepare()
        self._device = self._execution.torch_device()
        self._task = task
        self._model = prepared(task.model).to(self._device).train()
        self._flat = torch.zeros(task.dim, dtype=torch.float32, device=self._device)
        bind_parameters(self._model, self._flat)
        self._parameters: list[torch.Tensor] = list(trainable(self._model))
        self._buffers = {buffer: buffer.clone() for buffer in self._model.buffers()}
        self._smallest = smallest_batch(self._model)
        self._draws: bool | None = None
        self._dropouts = [m for m in self._model.modules() if isinstance(m, SeededDropout)]

    def train(
        self,
        theta: np.ndarray,
        client_id: int,
        local: LocalTraining,
        *,
        seed: int,
        round_number: int,
    ) -> ClientUpdate:
        """Start from the global model ``theta`` and train on the examples of one client.

        Args:
            theta: float32 of shape (dim,), not changed.
            client_id: the client whose examples are used.
            local: how to train.
            seed: of the local randomness (batch order, dropout).
            round_number: draws other randomness in every round.

        Raises:
            ValueError: for a ``theta`` of another shape or type, or an unknown ``client_id``.
        """
        check_model(theta, self._task.dim)
        data = self._task.client(client_id)
        if self._draws is None and len(data) >= self._smallest:
            self._set(theta)
            self._draws = self._draws_by_itself(data)
        random = generator(seed, round_number, client_id)
        for dropout in self._dropouts:
            dropout.random = random
        self._set(theta)
        steps = batches(data, local, random, self._smallest)
        with one_thread(), self._own_randomness(random):
            sums = [self._step(batch, local.learning_rate) for batch in steps]
            values = self._flat.cpu().numpy()
        return ClientUpdate(
            delta=values - theta,
            examples=sum(part.examples for part in sums),
            loss_sum=float(sum(part.loss.item() for part in sums)),
            correct=sum(part.correct for part in sums),
        )

    @property
    def alone(self) -> bool:
        """Whether the model cannot train with rows of padding among its examples."""
        return self._smallest > 1

    def _draws_by_itself(self, data: ClientData) -> bool:
        few = data.map(lambda part: part[:_FEW].to(self._device))
        return draws_by_itself(
            self._model, lambda: self._task.batch_loss(self._outputs, few).loss.detach()
        )

    @contextlib.contextmanager
    def _own_randomness(self, random: np.random.Generator) -> Iterator[None]:
        """Seed torch's own generator for models that draw from it; see `Task.notes`."""
        if not self._draws:
            yield
            return
        seed = int(random.integers(2**63))
        if self._device.type == "cpu":
            before = torch.default_generator.get_state()
            torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 100 times as long
            try:
                yield
            finally:
                torch.default_generator.set_state(before)
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield

    def _set(self, theta: np.ndarray) -> None:
        for buffer, initial in self._buffers.items():
            buffer.copy_(initial)
        if self._device.type == "cpu":
            np.copyto(self._flat.numpy(), theta)
        else:
            self._flat.copy_(torch.tensor(theta))

    def _step(self, batch: ClientData, learning_rate: float) -> LossSum:
        """One step of gradient descent on the mean loss of ``batch``."""
        batch = batch.map(lambda part: part.to(self._device))
        result = self._task.batch_loss(self._outputs, batch)
        gradients = torch.autograd.grad(
            result.loss / max(1, result.examples),
            self._parameters,
            allow_unused=True,
            materialize_grads=True,
        )
        with torch.no_grad():
            torch._foreach_add_(self._parameters, gradients, alpha=-learning_rate)
        return LossSum(result.loss.detach(), result.correct, result.examples)

    def _outputs(self, *inputs: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        with self._execution.autocast():
            outputs = self._model(*inputs, **named)
        return self._execution.widen(outputs)


def check_model(theta: np.ndarray, dim: int) -> None:
    """Raise ValueError unless ``theta`` is float32 of shape (dim,)."""
    if theta.shape != (dim,) or theta.dtype != np.float32:
        raise ValueError(
            f"Expected theta of shape {(dim,)} and float32, "
            f"got theta.shape={theta.shape}, theta.dtype={theta.dtype}."
        )


def smallest_batch(model: torch.nn.Module) -> int:
    """Examples that a batch needs at least: two with BatchNorm, which one has no spread for."""
    return 2 if batch_norms(model) else 1


def batches(
    data: ClientData, local: LocalTraining, random: np.random.Generator, smallest: int = 1
) -> Iterator[ClientData]:
    """The batches of all epochs, each epoch in an order of its own; too small ones are left out."""
    for _ in range(local.epochs):
        order = torch.from_numpy(random.permutation(len(data)))
        for part in torch.split(order, local.batch_size) if len(data) else ():
            if len(part) >= smallest:
                yield data.map(lambda tensor, part=part: tensor[part])  # type: ignore[misc]


def _keep_freed_memory() -> None:
    """Make glibc keep what a step frees for the next one: no page faults, a sixth faster.

    It hands freed blocks back to the system above a threshold, which it raises to the largest
    block freed so far, up to 32 MiB. Elsewhere this does nothing.
    """
    torch.empty(_LARGEST_KEPT, dtype=torch.uint8)
