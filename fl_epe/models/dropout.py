"""Dropout whose masks come from a generator of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from fl_epe.checks import raise_invalid

_LEVELS = 256
_FINE_LEVELS = 1 << 32


class SeededDropout(torch.nn.Module):
    """Dropout whose masks come from its own numpy generator, never from torch's global one.

    So several models can train in the threads of one process, and each result repeats exactly.

    Attributes:
        rate: share of the entries that is set to zero; multiples of 1/256 are drawn fastest.
        random: draws the masks; must be set before a forward pass in training mode.
        drawn: entries that the next forward passes keep, in place of new draws.
    """

    inplace = False  # as in torch.nn.Dropout, whose place it takes
    random: np.random.Generator | None
    drawn: Iterator[torch.Tensor] | None

    def __init__(self, rate: float) -> None:
        """Make a layer without a generator.

        Raises:
            ValueError: for a ``rate`` outside [0, 1).
        """
        super().__init__()
        if not 0 <= rate < 1:
            raise_invalid("rate", rate, "in [0, 1)")
        self.rate = rate
        self.random = None
        self.drawn = None

    @property
    def p(self) -> float:
        """``rate``, under the name that torch.nn.Dropout has for it."""
        return self.rate

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """``inputs`` times a random mask of 0 and 1/(1 − rate); unchanged in evaluation mode.

        Raises:
            RuntimeError: in training mode before ``random`` is set.
        """
        if not self.training or not self.rate:
            return inputs
        scale = np.float32(1 / (1 - self.rate))
        if self.drawn is not None:
            return inputs * (next(self.drawn) * float(scale))
        keep = self.keep(tuple(inputs.shape))
        if inputs.is_cpu:
            return inputs * torch.from_numpy(keep * scale).to(inputs)
        on_device = torch.from_numpy(keep).to(inputs.device)  # a quarter of the float32's bytes
        return inputs * (on_device.to(inputs.dtype) * float(scale))

    def keep(self, shape: tuple[int, ...]) -> np.ndarray:
        """Which entries are kept, drawn at random, bool of that shape.

        Raises:
            RuntimeError: before ``random`` is set.
        """
        if self.random is None:
            raise RuntimeError("Expected SeededDropout.random to be set before training.")
        if self.rate * _LEVELS % 1:
            return self._fine(shape) >= np.uint32(int(self.rate * _FINE_LEVELS))
        # NumPy draws them in a third of torch's time.
        return self.random.integers(0, _LEVELS, shape, np.uint8) >= int(self.rate * _LEVELS)

    def _fine(self, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform on 0 … 2^32 − 1, two from each word of the generator: twice as fast as floats."""
        assert self.random is not None  # noqa: S101 - `mask` has looked
        count = math.prod(shape)
        words = self.random.integers(0, 2**64, -(-count // 2), np.uint64)
        return words.view(np.uint32)[:count].reshape(shape)
