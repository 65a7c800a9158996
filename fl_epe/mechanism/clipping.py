"""Clipping of updates, and their exact sum.

Updates are clipped and added up block by block, on a grid that makes the sum exact, so that their
order does not matter (timings: docs/notes/clipped-sum.md).

Examples:
    >>> clipped = ClippedSum(dim=2, clip_norm=1.0)
    >>> clipped.add(np.array([3.0, 0.0]))
    False
    >>> clipped.total().round(6)
    array([1., 0.])
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fl_epe.checks import Floats, Vector, check_positive, raise_invalid

_GRID_BITS = 32  # see docs/notes/clipped-sum.md
# Rounding of the scale and of the products could lift a norm by a few parts in 10^16.
_SCALE_MARGIN = 1 - 2.0**-50
BLOCK = 1 << 15
"""Number of entries that are processed at a time."""


def blocks(dim: int) -> Iterator[slice]:
    """Slices of 0 … ``dim`` − 1, `BLOCK` entries each."""
    for start in range(0, dim, BLOCK):
        yield slice(start, min(start + BLOCK, dim))


def norm(
    vector: Vector, less: Vector | None = None, share: float = 1.0
) -> float:
    """Euclidean norm of ``vector``, or of ``vector − share · less``, shape ``(dim,)``.

    The sum of squares is computed in float64. The norm is infinite or NaN if an entry is.
    """
    flat = np.ravel(vector)
    square = 0.0
    for block in blocks(flat.size):
        part = flat[block]
        if less is not None:
            part = part - share * less[block]
        square += float(np.sum(np.square(part, dtype=np.float64)))
    return math.sqrt(square)


class ClippedSum:
    """A sum of clipped updates that is exact, so that their order does not matter.

    Updates whose norm exceeds the clip norm are scaled down to it. Entries are then rounded towards
    zero on a grid of about ``clip_norm / 2^32``, so that a sum of up to 2^20 updates is exact in
    float64.

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
        self._multiples = np.zeros(dim)  # the sum, in units of the grid
        self._buffer = np.empty(min(dim, BLOCK))

    def add(self, update: Vector) -> bool | None:
        """Clip ``update`` of shape ``(dim,)`` and add it.

        Returns:
            Whether its norm was at most the clip norm. ``None`` if nothing was added, because an
            entry was NaN or infinite or the update was not floating-point.

        Raises:
            ValueError: if ``update`` has another shape.
        """
        if update.shape != self._multiples.shape:
            raise_invalid(
                "update.shape", update.shape, f"to be {self._multiples.shape}"
            )
        if not np.issubdtype(update.dtype, np.floating):
            return None
        length = norm(update)
        if not math.isfinite(length):
            return None
        scale = self.scale(length)
        for block in blocks(len(update)):
            multiples = self._buffer[: block.stop - block.start]
            np.copyto(multiples, update[block])
            multiples *= scale
            np.trunc(multiples, out=multiples)
            self._multiples[block] += multiples
        return length <= self.clip_norm

    def scale(self, lengths: Any, where: Callable[..., Any] = np.where) -> Any:
        """Factors that clip updates with norms ``lengths``, in units of the grid.

        The caller must round the products towards zero to whole numbers.

        Args:
            lengths: a number or an array, finite.
            where: as `numpy.where`, of the library that the array is from.
        """
        is_longer = lengths > self.clip_norm
        divisors = where(is_longer, lengths, self.clip_norm)
        shrink = self.clip_norm / divisors * _SCALE_MARGIN
        return where(is_longer, shrink, 1.0) / self._grid

    def add_multiples(self, multiples: Floats) -> None:
        """Add an update, or a sum of them, that the caller clipped with `scale`.

        Args:
            multiples: whole numbers of the grid, float64, shape ``(dim,)``.
        """
        self._multiples += multiples

    def total(self) -> Floats:
        """The sum, shape ``(dim,)``."""
        return self._multiples * self._grid

    def finish(self) -> Floats:
        """The sum, shape ``(dim,)``, in the memory of this object, which must not be used again."""
        self._multiples *= self._grid
        return self._multiples
