"""Recovers the norms of the clipped gradients in a sum, given the gradients before clipping.

If the sum is not that of gradients clipped to the clip norm, each gradient was multiplied by an
unknown factor. If there are more entries than examples, least squares give the factors. Each
example has one factor for its whole gradient or, if that does not explain the sum, one for each
tensor.

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

ROUNDING = 1e-3
"""Largest relative difference of two norms that count as equal."""

# A distance of this many rounding errors of the sum's data type counts as 0.
_ROUNDING_ERRORS = 10
# The factors are unknown if the batch's Gram matrix would need more multiplications.
_MAX_PRODUCTS = 10**10
# This number of standard errors is subtracted from the estimate of a norm. The norm counts as
# known if that is at most this share of the clip norm.
_STANDARD_ERRORS = 4
_MAX_ERROR = 0.01
# Factors count as equal if their relative difference is at most this.
_MAX_FACTOR_DIFFERENCE = 0.01
# Clipping gives similar factors to gradients of similar norms. So a common factor is a finding
# only if the norms differ by at least this share of the largest.
_MIN_NORM_DIFFERENCE = 0.1
# An eigenvalue below this share of the largest belongs to factors that do not follow from the
# sum. Their variance is set to a very large number.
_MIN_EIGENVALUE = 1e-10
_VARIANCE_OF_UNKNOWN = 1e40

Tensors = Sequence[torch.Tensor]


@dataclasses.dataclass(frozen=True)
class BatchSeen:
    """Observations of a batch, or of a physical part of it.

    Attributes:
        examples: the number of examples; NaN if it is not known.
        largest: a lower bound on the largest norm of a clipped gradient, in clip norms.
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
    unknown = "how gradients of single examples are clipped does not follow from their sum"
    if not examples:
        has_sum = any(total.any() for total in totals)
        return BatchSeen(0, unseen=unknown if has_sum else "")
    with torch.no_grad():
        samples = [
            sample.to(total)
            for sample, total in zip(samples, totals, strict=True)
        ]
        clipped = _clipped_norms(samples, totals, clip_norm)
        if not np.isnan(clipped).any():
            factor = _common_factor(clipped, _norms(samples))
            return BatchSeen(examples, float(clipped.max()) / clip_norm, factor)
        # Each tensor may have been clipped by a factor of its own.
        by_tensor = np.array(
            [
                _clipped_norms([sample], [total], clip_norm)
                for sample, total in zip(samples, totals, strict=True)
            ]
        )
    known_norms = np.sqrt(np.nansum(by_tensor**2, axis=0))
    largest = max(known_norms.max(), np.nan_to_num(clipped).max())
    is_known = not np.isnan(by_tensor).any()
    return BatchSeen(
        examples,
        float(largest) / clip_norm,
        unseen="" if is_known else unknown,
    )


def _clipped_norms(
    samples: Tensors, totals: Tensors, clip_norm: float
) -> Floats:
    """The norms of the clipped gradients, shape ``(n,)``; NaN where they are not known."""
    norms = _norms(samples)
    clipped = np.minimum(norms, clip_norm)
    rounding = _ROUNDING_ERRORS * torch.finfo(samples[0].dtype).eps
    distance = _distance(samples, totals, clipped, norms)
    if distance <= max(ROUNDING, rounding) * np.linalg.norm(clipped):
        return clipped
    return _least_squares_norms(samples, totals, norms, clip_norm)


def _least_squares_norms(
    samples: Tensors, totals: Tensors, norms: Floats, clip_norm: float
) -> Floats:
    """The norms of the clipped gradients by least squares; NaN where they are not known.

    Each norm is its estimate minus some standard errors; it counts as not known if these are large.
    """
    unknown = np.full(len(norms), math.nan)
    entries = sum(len(total) for total in totals)
    if entries < 2 * len(norms) or len(norms) ** 2 * entries > _MAX_PRODUCTS:
        return unknown
    gradients = torch.cat([sample.double() for sample in samples], dim=1)
    total_sum = torch.cat([total.double() for total in totals])
    scale = np.where(norms > 0, norms, 1.0)
    gram = _to_numpy(gradients @ gradients.T) / np.outer(scale, scale)
    products = _to_numpy(gradients @ total_sum) / scale
    values, vectors = np.linalg.eigh(gram)
    # The matrix is singular if two gradients are equal, for example.
    is_singular = values < _MIN_EIGENVALUE * values.max()
    estimates = vectors @ np.where(
        is_singular, 0, vectors.T @ products / values
    )
    distance = _distance(samples, totals, estimates, norms)
    if distance > ROUNDING * np.linalg.norm(estimates):
        return unknown
    deviation = distance / math.sqrt(entries - len(norms))
    variances = vectors**2 @ np.where(
        is_singular, _VARIANCE_OF_UNKNOWN, 1 / values
    )
    errors = _STANDARD_ERRORS * deviation * np.sqrt(variances)
    is_known = (errors <= _MAX_ERROR * clip_norm) | (norms == 0)
    return np.where(
        is_known, np.maximum(np.abs(estimates) - errors, 0), math.nan
    )


def _distance(
    samples: Tensors, totals: Tensors, clipped: Floats, norms: Floats
) -> float:
    """The distance of the sum from that of the gradients, scaled to the norms ``clipped``."""
    factors = torch.from_numpy(clipped / np.where(norms > 0, norms, 1.0))
    distances = [
        float((total - factors.to(total) @ sample).norm())
        for total, sample in zip(totals, samples, strict=True)
    ]
    return math.hypot(*distances)


def _common_factor(clipped: Floats, norms: Floats) -> float:
    """The factor of all gradients, if it is the same although their norms differ; else NaN."""
    is_positive = norms > 0
    clipped = clipped[is_positive]
    norms = norms[is_positive]
    if len(norms) < 2 or np.ptp(norms) < _MIN_NORM_DIFFERENCE * norms.max():
        return math.nan
    factors = clipped / norms
    if np.ptp(factors) > _MAX_FACTOR_DIFFERENCE * factors.max():
        return math.nan
    return float(np.median(factors))


def _norms(samples: Tensors) -> Floats:
    """The norm of each example's gradient, over all tensors, shape ``(n,)``."""
    return _to_numpy(
        torch.stack([sample.norm(dim=1) for sample in samples]).norm(dim=0)
    )


def _to_numpy(vector: torch.Tensor) -> Floats:
    return np.asarray(vector.cpu().double().numpy())
