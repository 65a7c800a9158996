"""How long each example's gradient was in a clipped sum, from the gradients and the sum.

A sum of gradients that are cut to one length is recognised. In any other sum each gradient has a
factor, which follows by least squares where there are more entries than examples: a factor of the
whole gradient, or else one of each tensor.

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

ROUNDING = 1e-3  # relative difference of norms

_MOST_PRODUCTS = 10**10  # of a batch's Gram matrix: no factors are sought in larger batches
_FEWEST_ENTRIES = 8  # of a tensor: fewer agree with some length by chance
_STANDARD_ERRORS = 4  # of a norm, which is then at least the estimate less these
_SURE = 0.01  # of the clip norm: those errors of a norm that is known, at most

Tensors = Sequence[torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Clipping:
    """How the gradients of a batch were clipped.

    Attributes:
        largest: norm of the longest clipped gradient, at least; NaN if it is not known.
        common_factor: by which all gradients were multiplied although their norms differ; NaN if
            their factors differ or are not known.
    """

    largest: float
    common_factor: float = math.nan


def clipping(samples: Tensors, totals: Tensors, clip_norm: float) -> Clipping:
    """How a batch was clipped.

    Args:
        samples: the gradients of a batch, ``(n, entries)`` for each tensor.
        totals: the sum of the clipped gradients, ``(entries,)`` for each tensor.
        clip_norm: to which they should have been cut.
    """
    with torch.no_grad():
        if not len(samples[0]):
            is_zero = not any(bool(total.any()) for total in totals)
            return Clipping(0.0 if is_zero else math.nan)
        norms = _norms(samples)
        whole = _clipped_norms(samples, totals, norms, clip_norm)
        if not np.isnan(whole).any():
            return Clipping(float(whole.max()), _common_factor(whole, norms))
        by_tensor, are_known = _clipped_by_tensor(samples, totals, clip_norm)
    longest = max(float(by_tensor.max()), float(np.nan_to_num(whole).max()))
    if are_known or longest > clip_norm * (1 + ROUNDING):
        return Clipping(longest)
    return Clipping(math.nan)


def _clipped_by_tensor(samples: Tensors, totals: Tensors, clip_norm: float) -> tuple[Floats, bool]:
    """Norms of gradients of which each tensor has its own factors, shape ``(n,)``.

    Returns:
        The norms, of the tensors where they are known; and whether that is all of them.
    """
    squares = np.zeros(len(samples[0]))
    are_known = True
    for part, total in zip(samples, totals, strict=True):
        clipped = np.full(len(part), math.nan)
        if len(total) >= _FEWEST_ENTRIES:
            clipped = _clipped_norms([part], [total], _norms([part]), clip_norm)
        are_known &= not np.isnan(clipped).any()
        squares += np.nan_to_num(clipped) ** 2
    return np.sqrt(squares), are_known


def _clipped_norms(samples: Tensors, totals: Tensors, norms: Floats, clip_norm: float) -> Floats:
    """Norms of the clipped gradients, shape ``(n,)``; NaN where they are not known."""
    rows = [part.to(total) for part, total in zip(samples, totals, strict=True)]
    square = sum(float(total.norm()) ** 2 for total in totals)
    along = sum(_host(part @ total) for part, total in zip(rows, totals, strict=True))
    tolerance = max(ROUNDING, 10 * torch.finfo(samples[0].dtype).eps)
    for limit in (clip_norm, math.inf, *_limits(norms, np.asarray(along), square)):
        cut = np.minimum(norms, limit)
        if _distance(rows, totals, cut, norms) <= tolerance * float(np.linalg.norm(cut)):
            return cut
    return _solved(rows, totals, norms, clip_norm)


def _solved(rows: Tensors, totals: Tensors, norms: Floats, clip_norm: float) -> Floats:
    """`_clipped_norms` of any sum of multiples of the gradients: least squares.

    A norm is its estimate less some standard errors; not known where these are large.
    """
    unknown = np.full(len(norms), math.nan)
    entries = sum(len(total) for total in totals)
    if entries < 2 * len(norms) or len(norms) ** 2 * entries > _MOST_PRODUCTS:
        return unknown
    gram = sum(_host(part.double() @ part.double().T) for part in rows)
    along = sum(
        _host(part.double() @ total.double()) for part, total in zip(rows, totals, strict=True)
    )
    scale = np.where(norms > 0, norms, 1.0)
    values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
    values = np.maximum(values, 1e-14 * values.max())
    estimates = vectors @ ((vectors.T @ (along / scale)) / values)
    distance = _distance(rows, totals, estimates, norms)
    if distance > ROUNDING * float(np.linalg.norm(estimates)):
        return unknown
    deviation = distance / math.sqrt(entries - len(norms))
    errors = _STANDARD_ERRORS * deviation * np.sqrt((vectors**2 / values).sum(axis=1))
    at_least = np.maximum(np.abs(estimates) - errors, 0.0)
    return np.where((errors <= _SURE * clip_norm) | (norms == 0), at_least, math.nan)


def _distance(rows: Tensors, totals: Tensors, clipped: Floats, norms: Floats) -> float:
    """Norm of the sum less that of gradients which have the norms ``clipped``."""
    scale = torch.from_numpy(clipped / np.where(norms > 0, norms, 1.0))
    apart = [total - scale.to(total) @ part for total, part in zip(totals, rows, strict=True)]
    return math.hypot(*(float(one.norm()) for one in apart))


def _common_factor(clipped: Floats, norms: Floats) -> float:
    """The factor of all gradients, if it is one though their norms differ; else NaN."""
    is_zero = norms == 0
    factors = clipped[~is_zero] / norms[~is_zero]
    if len(factors) < 2 or np.ptp(norms[~is_zero]) < 0.1 * norms.max():
        return math.nan
    differ = np.ptp(factors) > _SURE * factors.max()
    return math.nan if differ else float(np.median(factors))


def _norms(samples: Tensors) -> Floats:
    return _host(torch.stack([part.norm(dim=1) for part in samples]).norm(dim=0))


def _host(vector: torch.Tensor) -> Floats:
    return np.asarray(vector.cpu().double().numpy())


def _limits(norms: Floats, along: Floats, square: float) -> list[float]:
    """Lengths to which gradients may have been cut, other than the claimed one.

    ``along`` are their inner products with the clipped sum, whose square is ``square``.
    """
    order = np.argsort(norms)
    norms, along = norms[order], along[order]
    whole = np.cumsum(along) - along
    cut = np.cumsum((along / np.where(norms > 0, norms, np.inf))[::-1])[::-1]
    limits = (square - whole) / np.where(cut != 0, cut, np.nan)
    below, slack = np.append(0.0, norms[:-1]), 1 + ROUNDING
    return list(limits[(limits * slack >= below) & (limits <= norms * slack)])
