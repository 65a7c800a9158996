"""Local training: one client's data and the global model in, the client's update out.

To use several cores, start several threads with a `Trainer` each. On two cores of a Xeon (AVX-512,
torch 2.13, EMNIST CNN under autograd, digits, 2.2 steps a client) one thread trains 35 clients a
second, two threads 67, two processes 66, and one trainer whose operations use both cores 55. What
a round of clients costs is in `benchmarks/throughput.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Iterator

import numpy as np
import torch
from torch.nn.modules.conv import _ConvNd

from fl_epe.checks import check_count, check_positive, raise_invalid
from fl_epe.models import (
    SeededDropout,
    batch_norms,
    bind_parameters,
    draws_by_itself,
    one_thread,
    prepared,
    trainable,
)
from fl_epe.seeding import generator
from fl_epe.tasks import ClientData, LossSum, Task
from fl_epe.training.execution import Execution

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
        check_positive("learning_rate", self.learning_rate)
        check_count("epochs", self.epochs)
        check_count("batch_size", self.batch_size)


@dataclasses.dataclass(frozen=True)
class ClientUpdate:
    """What a client learned in a round.

    Attributes:
        values: float32 of shape (dim,), local minus global model, not clipped.
        examples: number of predictions made while training, in all epochs together.
        loss_sum: sum of the losses of these predictions.
        correct: how many of these predictions were right, or the sum of another metric.
    """

    values: np.ndarray
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
        self._device = self._execution.torch_device()
        self._task = task
        self._model = prepared(task.model).to(self._device).train()
        self._flat = torch.zeros(task.dim, dtype=torch.float32, device=self._device)
        bind_parameters(self._model, self._flat)
        self._parameters: list[torch.Tensor] = list(trainable(self._model))
        self._buffers = {buffer: buffer.clone() for buffer in self._model.buffers()}
        self._smallest = 2 if batch_norms(self._model) else 1  # one has no spread
        self.draws: bool | None = None  # not known before the first client
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
        self._execution.apply()
        start = torch.tensor(theta, device=self._device)
        random = generator(seed, round_number, client_id)
        update, sums = self.learn(start, self._task.client(client_id), local, random)
        loss_sum, correct, examples = sums.tolist()
        return ClientUpdate(update.cpu().numpy(), int(examples), loss_sum, correct)

    def learn(
        self,
        theta: torch.Tensor,
        data: ClientData,
        local: LocalTraining,
        random: np.random.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`train` on ``data``, with the update and the `LossSum.sums` of all steps on a device."""
        if self.draws is None and len(data) >= self._smallest:
            self._set(theta)
            self.draws = self._draws_by_itself(data)
        for dropout in self._dropouts:
            dropout.random = random
        self._set(theta)
        orders = batches(len(data), local, random, self._smallest)
        with one_thread(), self.own_randomness(random), self._execution.on_device():
            parts = [self._step(data, order, local.learning_rate) for order in orders]
        none = torch.zeros(3, dtype=torch.float64, device=self._device)
        sums = torch.stack([none, *(part.sums(self._device) for part in parts)]).sum(0)
        return self._flat - theta, sums

    @property
    def alone(self) -> bool:
        """Whether the model cannot train with rows of padding among its examples."""
        return self._smallest > 1

    @property
    def convolves(self) -> bool:
        """Whether the model has convolutions."""
        return any(isinstance(module, _ConvNd) for module in self._model.modules())

    def _draws_by_itself(self, data: ClientData) -> bool:
        few = data.map(lambda part: part[:_FEW].to(self._device))
        with self._execution.on_device():
            return draws_by_itself(
                self._model, lambda: self._task.batch_loss(self._outputs, few).loss.detach()
            )

    def own_randomness(
        self, *randoms: np.random.Generator
    ) -> contextlib.AbstractContextManager[None]:
        """Seed a model that draws from torch's own generator; see `Task.notes`."""
        if not self.draws:
            return contextlib.nullcontext()
        seeds = [int(random.integers(2**63)) for random in randoms]
        return seeded(self._device, functools.reduce(operator.xor, seeds))

    def _set(self, theta: torch.Tensor) -> None:
        for buffer, initial in self._buffers.items():
            buffer.copy_(initial)
        self._flat.copy_(theta)

    def _step(self, data: ClientData, order: torch.Tensor, learning_rate: float) -> LossSum:
        """One step of gradient descent on the mean loss of the examples ``order``."""
        batch = data.map(lambda part: part[order].to(self._device))
        result = self._task.batch_loss(self._outputs, batch)
        gradients = torch.autograd.grad(
            result.mean(), self._parameters, allow_unused=True, materialize_grads=True
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
        raise_invalid("theta", f"{theta.dtype}{theta.shape}", f"to be float32 of shape {(dim,)}")


def batches(
    examples: int, local: LocalTraining, random: np.random.Generator, smallest: int = 1
) -> Iterator[torch.Tensor]:
    """Positions of each batch of all epochs, each epoch in an order of its own.

    Batches of fewer than ``smallest`` are left out.
    """
    for _ in range(local.epochs):
        order = torch.from_numpy(random.permutation(examples))
        for part in torch.split(order, local.batch_size) if examples else ():
            if len(part) >= smallest:
                yield part


@contextlib.contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch's own generator, and set it back afterwards."""
    if device.type == "cpu":
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


def _keep_freed_memory() -> None:
    """Make glibc keep what a step frees for the next one: no page faults, a sixth faster.

    It hands freed blocks back to the system above a threshold, which it raises to the largest
    block freed so far, up to 32 MiB. Elsewhere this does nothing.
    """
    torch.empty(_LARGEST_KEPT, dtype=torch.uint8)
