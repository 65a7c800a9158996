"""Local training: one client's data and the global model in, the client's update out.

`Execution` says where and how exactly: settings that change the speed, and not the method.

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
import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch
from torch.nn.modules.conv import _ConvNd

from fl_epe import models
from fl_epe.checks import check_count, check_positive, raise_invalid
from fl_epe.tasks import ClientData, LossSum, Task

_PRECISIONS = ("float32", "tf32", "bf16")
_CHUNK_ON_GPU, _TOGETHER_ON_GPU = (
    128,
    1 << 30,
)  # clients, and parameters of all their models
_CHUNK_ON_CPU = 24
_LARGEST_ON_CPU = (
    1 << 17
)  # parameters; with more a step is mostly arithmetic, which gains nothing


@dataclasses.dataclass(frozen=True)
class Execution:
    """The device, how many clients it trains at once, and how exactly.

    On a CPU with the defaults an update depends on the client alone, to the last bit: not on the
    worker, nor on who else is trained. With another device, chunk or precision its last digits
    depend on these. Models and updates are float32 and clipping is in float64 at every precision.

    Attributes:
        device: "auto" (CUDA if there is a GPU, else the CPU), or what `torch.device` takes.
        chunk: how many clients are trained at once; more need more memory. By default 128, or as
            many as have 2³⁰ parameters together; on a CPU 24, and one if the model has more than
            2¹⁷ parameters or convolutions (`fl_epe.training.vectorized`).
        precision: of products and convolutions. "tf32" (NVIDIA, from Ampere on) trains the LSTM
            1.1 times as fast as "float32" on an H200, and changes nothing on a CPU. "bf16" is
            autocast: on a CPU with AMX it trains the EMNIST CNN 1.37 times as fast, on the H200
            the LSTM 0.9 times (`benchmarks/gpu.py`).
        deterministic: let CUDA choose algorithms that repeat to the bit.
    """

    device: str = "auto"
    chunk: int | None = None
    precision: str = "float32"
    deterministic: bool = True

    def __post_init__(self) -> None:
        if self.chunk is not None:
            check_count("chunk", self.chunk)
        if self.precision not in _PRECISIONS:
            raise_invalid("precision", self.precision, f"to be one of {_PRECISIONS}")
        try:
            self.torch_device()
        except RuntimeError:
            raise_invalid(
                "device", self.device, "to be a torch device (try 'cpu' or 'cuda')"
            )

    @classmethod
    def from_environment(cls) -> Execution:
        """From FL_EPE_DEVICE, FL_EPE_CHUNK, FL_EPE_PRECISION and FL_EPE_DETERMINISTIC (0 or 1).

        Raises:
            ValueError: if a variable holds no valid device, chunk, precision or flag.
        """
        names = ("DEVICE", "CHUNK", "PRECISION", "DETERMINISTIC")
        device, chunk, precision, exact = (
            os.environ.get(f"FL_EPE_{name}", "") for name in names
        )
        if chunk and not chunk.isdecimal():
            raise_invalid("FL_EPE_CHUNK", chunk, "to be a number")
        if exact not in ("", "0", "1"):
            raise_invalid("FL_EPE_DETERMINISTIC", exact, "to be 0 or 1")
        return cls(
            device or "auto",
            int(chunk) if chunk else None,
            precision or "float32",
            exact != "0",
        )

    def torch_device(self) -> torch.device:
        """``device`` as torch knows it, with "auto" resolved."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    def clients_at_once(self, dim: int, convolves: bool = False) -> int:
        """``chunk``, or what suits the device and the model; no measurement decides.

        Args:
            dim: the model's parameters.
            convolves: whether it has convolutions, which are slower at once on a CPU.
        """
        if self.chunk is not None:
            return self.chunk
        if self.torch_device().type != "cpu":
            return max(1, min(_CHUNK_ON_GPU, _TOGETHER_ON_GPU // dim))
        return 1 if convolves or dim > _LARGEST_ON_CPU else _CHUNK_ON_CPU

    def apply(self) -> None:
        """Set what CUDA keeps for the whole process. It stays set: every training sets it anew."""
        if self.torch_device().type != "cuda":
            return
        rounded, backends = self.precision == "tf32", cast(Any, torch.backends)
        if hasattr(
            backends.cuda.matmul, "fp32_precision"
        ):  # a newer torch refuses the older names
            for place in (
                backends.cuda.matmul,
                backends.cudnn.conv,
                backends.cudnn.rnn,
            ):
                place.fp32_precision = "tf32" if rounded else "ieee"
        else:
            backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = rounded
        if self.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.backends.cudnn.benchmark = False
        # A warning only: max-pooling is on torch's list, but where windows do not overlap it adds
        # nothing up.
        torch.use_deterministic_algorithms(self.deterministic, warn_only=True)

    def on_device(self) -> contextlib.AbstractContextManager[object]:
        """A context in which tensors that a model makes are on the device, not on the CPU."""
        device = self.torch_device()
        return contextlib.nullcontext() if device.type == "cpu" else device

    def call(self, model: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        """The outputs of a model, computed in the chosen precision and float32 for the loss."""
        if self.precision != "bf16":
            return model(*inputs, **named)
        with torch.autocast(self.torch_device().type, torch.bfloat16):
            return model(*inputs, **named).float()


_LARGEST_KEPT = 31 << 20


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


class Trainer:
    """Trains clients of a task one after another in the same memory.

    On a CPU the update depends on the arguments of `train` alone, to the last bit: not on which
    trainer, thread or process computes it, nor on what was computed before. This holds for one
    kind of processor and one version of torch; others may round differently. A trainer serves one
    thread at a time, so use one for each thread.

    Args:
        task: the task whose clients are trained.
        execution: on which device and how exactly.

    Attributes:
        alone: whether the model cannot train with rows of padding among its examples.
        convolves: whether it has convolutions.
        draws: whether it draws from torch's own generator; not known before the first client.
    """

    def __init__(self, task: Task, execution: Execution) -> None:
        # glibc hands freed blocks back to the system above a threshold, which it raises to the
        # largest block freed so far, up to 32 MiB. With this it keeps what a step frees for the
        # next one: no page faults, a sixth faster.
        torch.empty(_LARGEST_KEPT, dtype=torch.uint8)
        self._task, self._execution = task, execution
        self._device = execution.torch_device()
        self._model = models.prepared(task.model).to(self._device).train()
        self._outputs = functools.partial(execution.call, self._model)
        self._flat = torch.zeros(task.dim, dtype=torch.float32, device=self._device)
        models.bind_parameters(self._model, self._flat)
        self._parameters: list[torch.Tensor] = list(models.trainable(self._model))
        self._buffers = {buffer: buffer.clone() for buffer in self._model.buffers()}
        self._dropouts = [
            m for m in self._model.modules() if isinstance(m, models.SeededDropout)
        ]
        self.alone = bool(models.batch_norms(self._model))
        self.convolves = any(
            isinstance(module, _ConvNd) for module in self._model.modules()
        )
        self.draws: bool | None = None

    def train(
        self,
        theta: torch.Tensor,
        data: ClientData,
        local: LocalTraining,
        random: np.random.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Start from the global model ``theta`` and train on the examples of one client.

        Args:
            theta: float32 of shape (dim,) on the device, not changed.
            data: the examples.
            local: how to train.
            random: the client's random stream of this round (batch order, dropout).

        Returns:
            Local minus global model, float32 of shape (dim,), not clipped; and the sum of
            `LossSum.sums` over all steps. Both on the device.
        """
        smallest = 2 if self.alone else 1  # one has no spread
        if self.draws is None and len(data) >= smallest:
            self._set(theta)
            few = data.map(lambda part: part[:2].to(self._device))
            with self._execution.on_device():
                self.draws = models.draws_by_itself(
                    self._model, lambda: self._loss(few).loss.detach()
                )
        for dropout in self._dropouts:
            dropout.random = random
        self._set(theta)
        orders = batches(len(data), local, random, smallest)
        with (
            models.one_thread(),
            self.own_randomness(random),
            self._execution.on_device(),
        ):
            parts = [self._step(data, order, local.learning_rate) for order in orders]
        none = torch.zeros(3, dtype=torch.float64, device=self._device)
        return self._flat - theta, torch.stack(
            [none, *(part.sums(self._device) for part in parts)]
        ).sum(0)

    @contextlib.contextmanager
    def own_randomness(self, *randoms: np.random.Generator) -> Iterator[None]:
        """Seed torch's own generator for a model that draws from it, and set it back afterwards."""
        if self.draws:
            seeds = [int(random.integers(2**63)) for random in randoms]
            cpu = (
                self._device.type == "cpu"
            )  # where torch.manual_seed takes 100 times as long
            manual_seed = (
                torch.default_generator.manual_seed if cpu else torch.manual_seed
            )
            with torch.random.fork_rng(devices=[]):
                manual_seed(functools.reduce(operator.xor, seeds))
                yield
        else:
            yield

    def rest(self) -> None:
        """Give the memory of the model on a CPU back until the next client trains."""
        if self._flat.is_cpu:
            self._flat.untyped_storage().resize_(0)

    def _set(self, theta: torch.Tensor) -> None:
        if self._flat.is_cpu:
            self._flat.untyped_storage().resize_(theta.nbytes)
        for buffer, initial in self._buffers.items():
            buffer.copy_(initial)
        self._flat.copy_(theta)

    def _step(
        self, data: ClientData, order: torch.Tensor, learning_rate: float
    ) -> LossSum:
        result = self._loss(
            data.map(lambda part: models.sent(part[order], self._device))
        )
        gradients = torch.autograd.grad(
            result.mean(), self._parameters, allow_unused=True, materialize_grads=True
        )
        with torch.no_grad():
            torch._foreach_add_(self._parameters, gradients, alpha=-learning_rate)
        return LossSum(result.loss.detach(), result.correct, result.examples)

    def _loss(self, batch: ClientData) -> LossSum:
        return self._task.batch_loss(self._outputs, batch)


def batches(
    examples: int, local: LocalTraining, random: np.random.Generator, smallest: int = 1
) -> Iterator[torch.Tensor]:
    """Positions of each batch of all epochs, each epoch in an order of its own.

    Batches of fewer than ``smallest`` are left out.
    """
    for _ in range(local.epochs):
        order = torch.from_numpy(random.permutation(examples))
        for part in torch.split(order, local.batch_size):
            if len(part) >= smallest:
                yield part
