"""Recovers the norm of each example's gradient in a clipped sum, given gradients and sum.

If the sum is not that of gradients clipped to the clip norm, each gradient has an unknown
factor in it. Least squares give the factors if there are more entries than examples: one factor
for the whole gradient, or else one for each tensor.

Examples:
    >>> gradients = torch.tensor([[3.0, 4.0, 0.0, 0.0], [0.0, 0.6, 0.8, 0.0]])
    >>> weighted = torch.tensor([0.2, 2.0]) @ gradients  # the second has twice its weight
    >>> round(clipping([gradients], [weighted], clip_norm=1.0).largest, 3)
    2.0
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch

from fl_epe.checks import Floats

# The relative difference of two norms that count as equal.
ROUNDING = 1e-3

# The factors are unknown if the batch's Gram matrix would need more multiplications.
_MAX_PRODUCTS = 10**10
# So many standard errors are subtracted from the estimate of a norm. The norm counts as known
# if together they are at most this share of the clip norm.
_STANDARD_ERRORS = 4
_MAX_ERROR = 0.01
# The variance of a factor that does not follow from the sum.
_SINGULAR = 1e40

Tensors = Sequence[torch.Tensor]


@dataclasses.dataclass(frozen=True)
class BatchSeen:
    """Observations of a batch, or of a physical part of it.

    Attributes:
        examples: the number of examples; NaN if it is not known.
        largest: a lower bound on the norm of the longest clipped gradient, in clip norms.
        common_factor: the factor by which all gradients were multiplied although their norms
            differ; NaN if their factors differ or are not known.
        unseen: the reason why not all clipped gradients are known; empty if they are.
    """

    examples: float = math.nan
    largest: float = 0.0
    common_factor: float = math.nan
    unseen: str = ""


def clipping(samples: Tensors, totals: Tensors, clip_norm: float) -> BatchSeen:
    """Observe how a batch was clipped.

    Args:
        samples: the gradients of a batch, ``(n, entries)`` for each tensor.
        totals: the sum of the clipped gradients, ``(entries,)`` for each tensor.
        clip_norm: the clip norm of each gradient.
    """
    examples = len(samples[0])
    unseen = "how gradients of single examples are clipped does not follow from their sum"
    if not examples:
        has_sum = any(total.any() for total in totals)
        return BatchSeen(0, unseen=unseen if has_sum else "")
    with torch.no_grad():
        rows = [
            part.to(total) for part, total in zip(samples, totals, strict=True)
        ]
        clipped = _clipped_norms(rows, totals, clip_norm)
        if not np.isnan(clipped).any():
            factor = _common_factor(clipped, _norms(rows))
            return BatchSeen(examples, float(clipped.max()) / clip_norm, factor)
        tensors = zip(rows, totals, strict=True)
        by_tensor = np.array(
            [
                _clipped_norms([part], [total], clip_norm)
                for part, total in tensors
            ]
        )
    norms = np.sqrt(np.nansum(by_tensor**2, axis=0))
    largest = float(max(norms.max(), np.nan_to_num(clipped).max())) / clip_norm
    is_known = not np.isnan(by_tensor).any()
    return BatchSeen(examples, largest, unseen="" if is_known else unseen)


def _clipped_norms(rows: Tensors, totals: Tensors, clip_norm: float) -> Floats:
    """The norms of the clipped gradients, shape ``(n,)``; NaN where they are not known."""
    norms = _norms(rows)
    clipped = np.minimum(norms, clip_norm)
    tolerance = max(ROUNDING, 10 * torch.finfo(rows[0].dtype).eps)
    distance = _distance(rows, totals, clipped, norms)
    if distance <= tolerance * np.linalg.norm(clipped):
        return clipped
    return _solved(rows, totals, norms, clip_norm)


def _solved(
    rows: Tensors, totals: Tensors, norms: Floats, clip_norm: float
) -> Floats:
    """The norms of `_clipped_norms` by least squares.

    A norm is its estimate minus some standard errors. It is unknown if these are large.
    """
    unknown = np.full(len(norms), math.nan)
    entries = sum(len(total) for total in totals)
    if entries < 2 * len(norms) or len(norms) ** 2 * entries > _MAX_PRODUCTS:
        return unknown
    gradients = torch.cat([part.double() for part in rows], dim=1)
    total = torch.cat([part.double() for part in totals])
    scale = np.where(norms > 0, norms, 1.0)
    gram = _host(gradients @ gradients.T) / np.outer(scale, scale)
    products = _host(gradients @ total) / scale
    values, vectors = np.linalg.eigh(gram)
    # The matrix is singular if two gradients are equal, for example.
    is_singular = values < 1e-10 * values.max()
    estimates = vectors @ np.where(
        is_singular, 0, vectors.T @ products / values
    )
    distance = _distance(rows, totals, estimates, norms)
    if distance > ROUNDING * np.linalg.norm(estimates):
        return unknown
    deviation = distance / math.sqrt(entries - len(norms))
    variances = vectors**2 @ np.where(is_singular, _SINGULAR, 1 / values)
    errors = _STANDARD_ERRORS * deviation * np.sqrt(variances)
    is_known = (errors <= _MAX_ERROR * clip_norm) | (norms == 0)
    return np.where(
        is_known, np.maximum(np.abs(estimates) - errors, 0), math.nan
    )


def _distance(
    rows: Tensors, totals: Tensors, clipped: Floats, norms: Floats
) -> float:
    """The distance of the sum from the sum of gradients that have the norms ``clipped``."""
    factors = torch.from_numpy(clipped / np.where(norms > 0, norms, 1.0))
    distances = [
        float((total - factors.to(total) @ part).norm())
        for total, part in zip(totals, rows, strict=True)
    ]
    return math.hypot(*distances)


def _common_factor(clipped: Floats, norms: Floats) -> float:
    """The factor of all gradients, if it is the same although their norms differ; else NaN."""
    is_positive = norms > 0
    clipped = clipped[is_positive]
    norms = norms[is_positive]
    # Clipping gives similar factors to gradients of similar norms.
    if len(norms) < 2 or np.ptp(norms) < 0.1 * norms.max():
        return math.nan
    factors = clipped / norms
    is_common = np.ptp(factors) <= _MAX_ERROR * factors.max()
    if is_common:
        return float(np.median(factors))
    return math.nan


def _norms(samples: Tensors) -> Floats:
    return _host(
        torch.stack([part.norm(dim=1) for part in samples]).norm(dim=0)
    )


def _host(vector: torch.Tensor) -> Floats:
    return np.asarray(vector.cpu().double().numpy())
