"""Where and how clients are trained: settings that change the speed, and not the method."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import Any, cast

import torch

from fl_epe.checks import check_count, raise_invalid

_PRECISIONS = ("float32", "tf32", "bf16")
_VARIABLES = ("FL_EPE_DEVICE", "FL_EPE_CHUNK", "FL_EPE_PRECISION", "FL_EPE_DETERMINISTIC")
_CHUNK_ON_GPU = 32
_CHUNK_ON_CPU = 24
_LARGEST_ON_CPU = 1 << 17  # parameters; with more a step is mostly arithmetic, which gains nothing


@dataclasses.dataclass(frozen=True)
class Execution:
    """The device, how many clients it trains at once, and how exactly.

    On a CPU with the defaults an update depends on the client alone, to the last bit: not on the
    worker, nor on who else is trained. With another device, chunk or precision its last digits
    depend on these. Models and updates are float32 and clipping is in float64 at every precision.

    Attributes:
        device: "auto" (CUDA if there is a GPU, else the CPU), or what `torch.device` takes.
        chunk: how many clients are trained at once; more need more memory. By default 32; on a CPU
            24, and one if the model has more than 2¹⁷ parameters or convolutions
            (`fl_epe.training.vectorized`).
        precision: of products and convolutions. "tf32" (NVIDIA, from Ampere on) and "bf16" are
            faster. "bf16" is autocast, on a CPU too: with AMX it trains the EMNIST CNN 1.37 times
            as fast as "float32"; the LSTM was not measured. "tf32" changes nothing on a CPU.
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
            raise_invalid("device", self.device, "to be a torch device (try 'cpu' or 'cuda')")

    @classmethod
    def from_environment(cls) -> Execution:
        """From FL_EPE_DEVICE, FL_EPE_CHUNK, FL_EPE_PRECISION and FL_EPE_DETERMINISTIC (0 or 1).

        Raises:
            ValueError: if a variable holds no valid device, chunk, precision or flag.
        """
        device, chunk, precision, exact = (os.environ.get(name, "") for name in _VARIABLES)
        if chunk and not chunk.isdecimal():
            raise_invalid("FL_EPE_CHUNK", chunk, "to be a number")
        if exact not in ("", "0", "1"):
            raise_invalid("FL_EPE_DETERMINISTIC", exact, "to be 0 or 1")
        return cls(
            device or "auto", int(chunk) if chunk else None, precision or "float32", exact != "0"
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
            return _CHUNK_ON_GPU
        return 1 if convolves or dim > _LARGEST_ON_CPU else _CHUNK_ON_CPU

    def apply(self) -> None:
        """Set what CUDA keeps for the whole process. It stays set: every training sets it anew."""
        if self.torch_device().type != "cuda":
            return
        rounded, backends = self.precision == "tf32", cast(Any, torch.backends)
        if hasattr(backends.cuda.matmul, "fp32_precision"):  # a newer torch refuses the older names
            for place in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
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
