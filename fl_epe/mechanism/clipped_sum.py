"""Clip updates and add them up, block by block, on a grid that makes the sum exact; its noise.

Timings: docs/notes/clipped-sum.md.

Examples:
    >>> total = ClippedSum(dim=2, clip_norm=1.0)
    >>> total.add(np.array([0.25, 0.5]))
    True
    >>> total.total()
    array([0.25, 0.5 ])
"""

import math

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import check_positive, raise_invalid

Vector = NDArray[np.floating]

_GRID_BITS = 32  # see docs/notes/clipped-sum.md
BLOCK = 1 << 15
"""Values that are worked on at once."""


def norm(vector: Vector) -> float:
    """Euclidean norm, accumulated in float64; infinite or NaN if an entry is."""
    flat = np.ravel(vector)
    return math.sqrt(sum_of_squares(flat, np.empty(min(flat.size, BLOCK))))


def sum_of_squares(vector: Vector, room: NDArray[np.float64]) -> float:
    """``sum(v**2)`` in float64, in blocks as long as ``room``, which is written over.

    The blocks are those of NumPy's pairwise summation, so that it has the same bits.
    """
    if len(vector) > len(room):
        half = len(vector) // 2 // 8 * 8
        return sum_of_squares(vector[:half], room) + sum_of_squares(vector[half:], room)
    block = room[: len(vector)]
    np.copyto(block, vector)
    np.multiply(block, block, out=block)
    return float(np.add.reduce(block))


class ClippedSum:
    """A sum of clipped updates that is exact, so that their order does not matter.

    Longer updates are scaled down to the clip norm, and entries are cut (towards zero) to a grid of
    about ``clip_norm / 2^32``; a sum of up to 2^20 updates is then exact in float64.

    Args:
        dim: length of the updates.
        clip_norm: norm to which longer updates are scaled down.

    Raises:
        ValueError: if ``clip_norm`` is not positive and finite.
    """

    def __init__(self, dim: int, clip_norm: float) -> None:
        check_positive("clip_norm", clip_norm)
        self.clip_norm = clip_norm
        self._grid = 2.0 ** (math.frexp(clip_norm)[1] - _GRID_BITS)
        self._multiples = np.zeros(dim)  # of the grid
        self._block = np.empty(min(dim, BLOCK))

    def add(self, update: Vector) -> bool | None:
        """Clip ``update`` of shape ``(dim,)`` and add it.

        Returns:
            Whether its norm was at most the clip norm. ``None`` if nothing was added, because an
            entry was NaN or infinite or the update was not floating-point.

        Raises:
            ValueError: if ``update`` has another shape.
        """
        if update.shape != self._multiples.shape:
            raise_invalid("update.shape", update.shape, f"to be {self._multiples.shape}")
        if not np.issubdtype(update.dtype, np.floating):
            return None
        length = math.sqrt(sum_of_squares(update, self._block))
        if not math.isfinite(length):
            return None
        scale = self.scale(length)
        for start in range(0, len(update), BLOCK):
            part = update[start : start + BLOCK]
            block = self._block[: len(part)]
            np.copyto(block, part)
            block *= scale
            np.trunc(block, out=block)
            self._multiples[start : start + BLOCK] += block
        return length <= self.clip_norm

    def scale(self, length: float) -> np.float64:
        """Factor that clips an update of norm ``length``, in units of the grid.

        The products are then cut to whole numbers, towards zero.
        """
        # Rounding of the scale and of the products could lift the norm by a few parts in 10^16.
        shrink = 1.0 if length <= self.clip_norm else self.clip_norm / length * (1 - 2.0**-50)
        return np.float64(shrink / self._grid)

    def add_multiples(self, multiples: NDArray[np.float64]) -> None:
        """Add a clipped update that was made elsewhere with `scale`, float64, shape ``(dim,)``."""
        self._multiples += multiples

    def total(self) -> NDArray[np.float64]:
        """The sum, shape ``(dim,)``."""
        return self._multiples * self._grid


def gaussian_noise(rng: np.random.Generator, dim: int, std: float) -> NDArray[np.float64]:
    """``dim`` independent normal draws with standard deviation ``std`` ≥ 0, float64."""
    noise = rng.standard_normal(dim) if std else np.zeros(dim)
    noise *= std
    return noise
