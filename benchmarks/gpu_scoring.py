"""Scores of rotated canaries on a torch device: what `CanarySet.dot` does with NumPy."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fl_epe.canaries import CanarySet
from fl_epe.canaries.directions import rotation, signs, size_for


def dot(canaries: CanarySet, x: torch.Tensor) -> NDArray[np.float64]:
    """Inner products of all canaries, of kind "rotation", with ``x``, shape ``(dim,)``.

    Right to about 1e-5 of ``‖x‖ / √dim``, as on the CPU.
    """
    largest = float(x.abs().max())
    if largest == 0:
        return np.zeros(canaries.count)
    family, size = rotation(canaries.dim, canaries.seed), size_for(canaries.dim)
    rows = family.rows(np.arange(canaries.count))
    y = x.new_zeros(size)
    y[: family.dim] = x / largest
    y[: family.dim] *= x.new_tensor(
        signs(family.row_signs, slice(0, family.dim))
    )
    y = butterflies(
        butterflies(y) * x.new_tensor(signs(family.base_signs, slice(0, size)))
    )
    chosen = y[torch.as_tensor(rows, device=x.device)].cpu().numpy()
    return np.asarray(
        chosen.astype(np.float64) * largest / family.lengths(rows)
    )


def butterflies(x: torch.Tensor) -> torch.Tensor:
    """Transform ``x`` of shape ``(2^b,)`` in place by sums and differences, and return it.

    The order of the additions is fixed: every device with IEEE arithmetic has the same bits.
    """
    half = 1
    while half < len(x):
        pairs = x.reshape(-1, 2, half)
        total = pairs[:, 0] + pairs[:, 1]
        pairs[:, 1] = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] = total
        half *= 2
    return x
