"""Clip one update to the clip norm, on a grid that makes sums of clipped updates exact.

Examples:
    >>> clip(np.array([3.0, 4.0]), clip_norm=5.0)
    (array([3., 4.]), True)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import check_positive

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


def clip(update: Vector, clip_norm: float) -> tuple[NDArray[np.float64] | None, bool]:
    """Scale ``update`` of shape ``(dim,)`` down to norm ``clip_norm`` if it is longer.

    Entries are cut (towards zero) to a grid of about ``clip_norm / 2^32``; a sum of up to 2^20
    clipped updates is then exact in float64, whatever its order.

    Returns:
        The clipped update as float64, and whether its norm was at most ``clip_norm``. The update
        is ``None``, and its client counts as absent, if an entry is NaN or infinite or it is not
        a floating-point vector.

    Raises:
        ValueError: if ``clip_norm`` is not positive and finite.
    """
    check_positive("clip_norm", clip_norm)
    if update.ndim != 1 or not np.issubdtype(update.dtype, np.floating):
        return None, False
    length = norm(update)
    if not math.isfinite(length):
        return None, False
    clipped = update * grid_factor(length, clip_norm)
    np.trunc(clipped, out=clipped)
    clipped *= grid_step(clip_norm)
    return clipped, length <= clip_norm


def grid_step(clip_norm: float) -> float:
    """Distance between the values that an entry of a clipped update may have."""
    return 2.0 ** (math.frexp(clip_norm)[1] - _GRID_BITS)


def grid_factor(length: float, clip_norm: float) -> np.float64:
    """Factor that clips an update of norm ``length``, in units of `grid_step`.

    The products are then cut to whole numbers, towards zero, and multiplied with `grid_step`.
    """
    # Rounding of the scale and of the products could lift the norm by a few parts in 10^16.
    scale = 1.0 if length <= clip_norm else clip_norm / length * (1 - 2.0**-50)
    return np.float64(scale / grid_step(clip_norm))
