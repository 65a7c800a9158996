"""Clip updates and add them up, block by block: the bits of `clip` in half its time.

A block stays in the cache through all passes. For a model of 1,206,590 parameters `clip` and the
addition take 4.3 ms, this takes 2.0 ms (one thread of a Xeon with AVX-512, interleaved). Blocks of
2^12 entries take 2.7 ms, of 2^17 2.4 ms; the same passes in torch 2.3 ms.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import check_positive
from fl_epe.mechanism.clipping import Vector, grid_factor, grid_step

_BLOCK = 1 << 15


class ClippedSum:
    """A sum of clipped updates, exact whatever their order.

    It equals the sum of what `clip` returns, to the last bit.

    Args:
        dim: length of the updates.
        clip_norm: norm that they are scaled down to where they are longer.

    Raises:
        ValueError: if ``clip_norm`` is not positive and finite.
    """

    def __init__(self, dim: int, clip_norm: float) -> None:
        check_positive("clip_norm", clip_norm)
        self.clip_norm = clip_norm
        self._grid = grid_step(clip_norm)
        self._multiples = np.zeros(dim)  # of the grid
        self._block = np.empty(min(dim, _BLOCK))

    def add(self, update: Vector) -> bool | None:
        """Clip ``update`` of shape ``(dim,)`` and add it.

        Returns:
            Whether its norm was at most the clip norm. ``None`` for an update with a NaN or
            infinite entry, or one that is not floating-point: then nothing was added.

        Raises:
            ValueError: for another shape.
        """
        if update.shape != self._multiples.shape:
            raise ValueError(f"Expected {update.shape=} to be {self._multiples.shape}.")
        if not np.issubdtype(update.dtype, np.floating):
            return None
        length = math.sqrt(self._square(update))
        if not math.isfinite(length):
            return None
        self._add(update, self.scale(length))
        return length <= self.clip_norm

    def scale(self, length: float) -> np.float64:
        """What an update of that norm is multiplied with to make it clipped multiples of the grid.

        They are to be cut (towards zero) to whole ones.
        """
        return grid_factor(length, self.clip_norm)

    def add_multiples(self, multiples: NDArray[np.float64]) -> None:
        """Add up what was made elsewhere with `scale`, float64 of shape ``(dim,)``."""
        self._multiples += multiples

    def total(self) -> NDArray[np.float64]:
        """The sum, shape ``(dim,)``."""
        return self._multiples * self._grid

    def _square(self, part: Vector) -> float:
        """Sum of squares. Halved as NumPy's pairwise summation does it: `norm`'s bits."""
        if len(part) > _BLOCK:
            half = len(part) // 2 // 8 * 8
            return self._square(part[:half]) + self._square(part[half:])
        block = self._block[: len(part)]
        np.copyto(block, part)
        np.multiply(block, block, out=block)
        return float(np.add.reduce(block))

    def _add(self, update: Vector, scale: np.float64) -> None:
        for start in range(0, len(update), _BLOCK):
            part = update[start : start + _BLOCK]
            block = self._block[: len(part)]
            np.copyto(block, part)
            block *= scale
            np.trunc(block, out=block)
            self._multiples[start : start + _BLOCK] += block
