"""Local training: computes a client's update from its data and the global model.

`Execution` has the settings that change speed and rounding, but not the method.

To use several cores, start several threads with a `Trainer` each. On two cores of a Xeon
(AVX-512, torch 2.13, EMNIST CNN under autograd, digits, 2.2 steps a client), one thread trains
35 clients a second, two threads 67, two processes 66, and one trainer whose operations use both
cores 55. `benchmarks/throughput.py` has the times of rounds of clients.
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
# Default sizes of a chunk.
_CHUNK_ON_GPU = 128
_CHUNK_ON_CPU = 24
# Largest number of parameters of all models in a chunk on a GPU.
_MAX_PARAMETERS_ON_GPU = 1 << 30
# Models with more parameters are trained one by one on a CPU: their steps are mostly arithmetic, so
# that a chunk gains nothing.
_MAX_PARAMETERS_ON_CPU = 1 << 17
# Bytes of a block whose release raises a threshold of glibc, see `Trainer.__init__`.
_THRESHOLD_BLOCK = 31 << 20


@dataclasses.dataclass(frozen=True)
class Execution:
    """The device, the number of clients that it trains at once, and the precision.

    On a CPU with the defaults, an update depends only on the client, to the last bit: neither
    on the worker nor on the other clients. With other settings, its last digits may depend on
    them. At every precision, models and updates are float32, and clipping is in float64.

    Attributes:
        device: "auto" (CUDA if there is a GPU, else the CPU), or an argument of `torch.device`.
        chunk: number of clients that are trained at once; more need more memory. By default
            128, or as many as have 2³⁰ parameters together. On a CPU the default is 24, and 1
            if the model has more than 2¹⁷ parameters or convolutions
            (`fl_epe.training.vectorized`).
        precision: precision of products and convolutions. "tf32" (NVIDIA, from Ampere on)
            trains the LSTM 1.1 times as fast as "float32" on an H200, and changes nothing on a
            CPU. "bf16" is autocast: on a CPU with AMX it trains the EMNIST CNN 1.37 times as
            fast, on the H200 the LSTM 0.9 times (`benchmarks/gpu.py`).
        deterministic: whether CUDA uses only algorithms that repeat to the bit.
    """

    device: str = "auto"
    chunk: int | None = None
    precision: str = "float32"
    deterministic: bool = True

    def __post_init__(self) -> None:
        if self.chunk is not None:
            check_count("chunk", self.chunk)
        if self.precision not in _PRECISIONS:
            raise_invalid(
                "precision", self.precision, f"to be one of {_PRECISIONS}"
            )
        try:
            self.torch_device()
        except RuntimeError:
            raise_invalid(
                "device",
                self.device,
                "to be a torch device (try 'cpu' or 'cuda')",
            )

    @classmethod
    def from_environment(cls) -> Execution:
        """The settings in environment variables.

        They are FL_EPE_DEVICE, FL_EPE_CHUNK, FL_EPE_PRECISION and FL_EPE_DETERMINISTIC (0 or
        1).

        Raises:
            ValueError: if the device, chunk, precision or flag in a variable is invalid.
        """
        chunk = os.environ.get("FL_EPE_CHUNK")
        deterministic = os.environ.get("FL_EPE_DETERMINISTIC") or "1"
        if chunk and not chunk.isdecimal():
            raise_invalid("FL_EPE_CHUNK", chunk, "to be a number")
        if deterministic not in ("0", "1"):
            raise_invalid("FL_EPE_DETERMINISTIC", deterministic, "to be 0 or 1")
        return cls(
            device=os.environ.get("FL_EPE_DEVICE") or "auto",
            chunk=int(chunk) if chunk else None,
            precision=os.environ.get("FL_EPE_PRECISION") or "float32",
            deterministic=deterministic == "1",
        )

    def torch_device(self) -> torch.device:
        """The `torch.device`, with "auto" resolved."""
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(device)

    def clients_at_once(self, dim: int, has_convolutions: bool = False) -> int:
        """``chunk``, or a default for the device and the model.

        Args:
            dim: number of the model's parameters.
            has_convolutions: whether the model has convolutions, which are slower in chunks on
                a CPU.
        """
        if self.chunk is not None:
            return self.chunk
        if self.torch_device().type != "cpu":
            return max(1, min(_CHUNK_ON_GPU, _MAX_PARAMETERS_ON_GPU // dim))
        if has_convolutions or dim > _MAX_PARAMETERS_ON_CPU:
            return 1
        return _CHUNK_ON_CPU

    def apply(self) -> None:
        """Apply the settings for CUDA, which hold for the process, before each training."""
        if self.torch_device().type != "cuda":
            return
        allows_tf32 = self.precision == "tf32"
        cuda = cast(Any, torch.backends.cuda)
        cudnn = cast(Any, torch.backends.cudnn)
        # Newer versions of torch refuse the old names.
        if hasattr(cuda.matmul, "fp32_precision"):
            for operations in (cuda.matmul, cudnn.conv, cudnn.rnn):
                operations.fp32_precision = "tf32" if allows_tf32 else "ieee"
        else:
            cuda.matmul.allow_tf32 = allows_tf32
            cudnn.allow_tf32 = allows_tf32
        if self.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.backends.cudnn.benchmark = False
        # Torch should only warn: max-pooling is on its list of operations that do not repeat, but
        # it does repeat without overlapping windows.
        torch.use_deterministic_algorithms(self.deterministic, warn_only=True)

    def on_device(self) -> contextlib.AbstractContextManager[object]:
        """A context in which new tensors of a model are on the device."""
        device = self.torch_device()
        if device.type == "cpu":
            return contextlib.nullcontext()
        return device

    def call(
        self, model: Callable[..., Any], *inputs: Any, **named: Any
    ) -> Any:
        """The outputs of a model, computed in the chosen precision and returned as float32."""
        if self.precision != "bf16":
            return model(*inputs, **named)
        with torch.autocast(self.torch_device().type, torch.bfloat16):
            return model(*inputs, **named).float()


@dataclasses.dataclass(frozen=True)
class LocalTraining:
    """Settings of a client's training: plain SGD on its own examples.

    Attributes:
        learning_rate: step size for the mean loss of a batch.
        epochs: number of passes over the client's examples, each in a fresh order.
        batch_size: number of examples in a step; the last batch of an epoch may be smaller.
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

    On a CPU, the update depends only on the arguments of `train`, to the last bit: neither on
    the trainer, thread or process that computes it, nor on earlier computations. This holds for
    one kind of processor and one version of torch; others may round differently. A trainer is
    not thread-safe, so use one for each thread.

    Args:
        task: the task whose clients are trained.
        execution: the device and the precision.

    Attributes:
        has_batch_norm: whether the model has BatchNorm, which rows of padding would change.
        has_convolutions: whether the model has convolutions.
        draws: whether the model draws random numbers from torch's own generator; ``None``
            before the first client.
    """

    def __init__(self, task: Task, execution: Execution) -> None:
        # glibc returns freed blocks above a threshold to the system. The threshold is the largest
        # block that was freed so far, up to 32 MiB. After a block of almost that size is freed, a
        # step reuses the memory of the step before, which is a sixth faster.
        torch.empty(_THRESHOLD_BLOCK, dtype=torch.uint8)
        self._task = task
        self._execution = execution
        self._device = execution.torch_device()
        self._model = models.prepared(task.model).to(self._device).train()
        self._outputs = functools.partial(execution.call, self._model)
        self._flat = torch.zeros(
            task.dim, dtype=torch.float32, device=self._device
        )
        models.bind_parameters(self._model, self._flat)
        self._parameters: list[torch.Tensor] = list(
            models.trainable(self._model)
        )
        self._buffers = {
            buffer: buffer.clone() for buffer in self._model.buffers()
        }
        modules = list(self._model.modules())
        self._dropouts = [
            m for m in modules if isinstance(m, models.SeededDropout)
        ]
        self.has_batch_norm = bool(models.batch_norms(self._model))
        self.has_convolutions = any(
            isinstance(module, _ConvNd) for module in modules
        )
        self.draws: bool | None = None

    def train(
        self,
        theta: torch.Tensor,
        data: ClientData,
        local: LocalTraining,
        random: np.random.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Train on the examples of one client, starting from the global model ``theta``.

        Args:
            theta: the global model, float32 of shape (dim,) on the device, which is not
                changed.
            data: the examples of the client.
            local: the settings of the training.
            random: the client's random stream of this round (batch order, dropout).

        Returns:
            The local minus the global model, float32 of shape (dim,), not clipped; and the sum
            of `LossSum.sums` over all steps. Both are on the device.
        """
        # BatchNorm needs two examples for a variance.
        smallest = 2 if self.has_batch_norm else 1
        if self.draws is None and len(data) >= smallest:
            self._load(theta)
            first = data.map(lambda part: part[:2].to(self._device))
            with self._execution.on_device():
                self.draws = models.draws_by_itself(
                    self._model, lambda: self._loss(first).loss.detach()
                )
        for dropout in self._dropouts:
            dropout.random = random
        self._load(theta)
        orders = batches(len(data), local, random, smallest)
        with (
            models.one_thread(),
            self.own_randomness(random),
            self._execution.on_device(),
        ):
            losses = [
                self._step(data, order, local.learning_rate) for order in orders
            ]
        # The sum begins with zeros, as a client may have no batch. It is made after the last
        # step: numbers of Python that are sent to a GPU would make each step wait.
        sums = [torch.zeros(3, dtype=torch.float64, device=self._device)]
        sums += [loss.sums(self._device) for loss in losses]
        return self._flat - theta, torch.stack(sums).sum(0)

    @contextlib.contextmanager
    def own_randomness(self, *randoms: np.random.Generator) -> Iterator[None]:
        """In this context, a model that draws from torch's generator draws as ``randoms`` say.

        Torch's generator gets a seed that is drawn from these clients' streams, and is restored
        afterwards.
        """
        if not self.draws:
            yield
            return
        seeds = [int(random.integers(2**63)) for random in randoms]
        seed = functools.reduce(operator.xor, seeds)
        with torch.random.fork_rng(devices=[]):
            if self._device.type == "cpu":
                # torch.manual_seed takes 100 times as long.
                torch.default_generator.manual_seed(seed)
            else:
                torch.manual_seed(seed)
            yield

    def free_memory(self) -> None:
        """Free the memory of the model's parameters on a CPU until the next client trains."""
        if self._flat.is_cpu:
            self._flat.untyped_storage().resize_(0)

    def _load(self, theta: torch.Tensor) -> None:
        """Set the parameters to ``theta``, and the buffers to their initial values."""
        if self._flat.is_cpu:
            self._flat.untyped_storage().resize_(theta.nbytes)
        for buffer, initial in self._buffers.items():
            buffer.copy_(initial)
        self._flat.copy_(theta)

    def _step(
        self, data: ClientData, order: torch.Tensor, learning_rate: float
    ) -> LossSum:
        """Take a step with the examples at the positions ``order``; returns their loss."""
        batch = data.map(lambda part: models.sent(part[order], self._device))
        result = self._loss(batch)
        gradients = torch.autograd.grad(
            result.mean(),
            self._parameters,
            allow_unused=True,
            materialize_grads=True,
        )
        with torch.no_grad():
            torch._foreach_add_(
                self._parameters, gradients, alpha=-learning_rate
            )
        return LossSum(result.loss.detach(), result.correct, result.examples)

    def _loss(self, batch: ClientData) -> LossSum:
        return self._task.batch_loss(self._outputs, batch)


def batches(
    examples: int,
    local: LocalTraining,
    random: np.random.Generator,
    smallest: int = 1,
) -> Iterator[torch.Tensor]:
    """The positions of the examples in each batch of all epochs, in a fresh order per epoch.

    Batches of fewer than ``smallest`` examples are left out.
    """
    for _ in range(local.epochs):
        order = torch.from_numpy(random.permutation(examples))
        for part in torch.split(order, local.batch_size):
            if len(part) >= smallest:
                yield part
