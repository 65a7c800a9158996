"""What clients answer with: a model, the difference that they made to it, or their own noise."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

import numpy as np
import scipy
from numpy.typing import NDArray

ReplyKind = Literal["model", "delta"]

_NEAR = 0.25
_BLOCKS, _SIZE = 64, 256  # of the entries that are looked at, for noise
_LEAST = 256  # entries
_RARE = 1e-3  # noise is taken for something else about so often


def kind_of_replies(
    answers: Sequence[NDArray[np.floating]], before: NDArray[np.floating]
) -> ReplyKind | None:
    """What the replies are, from how much of the global model is in them; ``None`` if not clear.

    A trained model is the old one and an update: its share of the old one is 1 plus the update's
    own. That of a difference is the update's own, near 0. Where the model is 0 both are the same,
    and "delta" is as good an answer as "model".

    Args:
        answers: the clients' answers, each of shape ``(dim,)``, those that are finite.
        before: the global model that they were sent, of shape ``(dim,)``.
    """
    start = before.astype(np.float64)
    energy = float(start @ start)
    if energy == 0:
        return "delta"
    share = statistics.median(float(answer @ start) / energy for answer in answers)
    if abs(share) < _NEAR:
        return "delta"
    return "model" if abs(share - 1) < _NEAR else None


def are_noise(
    answers: Sequence[NDArray[np.floating]], before: NDArray[np.floating] | None = None
) -> bool:
    """Whether updates look like independent Gaussian noise, as of local DP, and nothing else.

    They do if their blocks of entries are equally loud, their entries have a normal's fourth
    moment, no two have a direction in common, and their lengths vary as such noise's do. Noise that
    training is visible in is not found.

    Args:
        answers: each of shape ``(dim,)``, of different clients.
        before: what an update is the difference to; ``None`` if answers are updates.
    """
    dim = len(answers[0]) if answers else 0
    if dim < _LEAST or len(answers) < 3:
        return False
    blocks = min(_BLOCKS, dim // 32)
    size = min(_SIZE, dim // blocks)
    starts = np.linspace(0, dim - size, blocks).astype(np.int64)
    places = starts[:, None] + np.arange(size)
    old = 0.0 if before is None else before[places].astype(np.float64)
    entries = np.array([answer[places] - old for answer in answers])
    squares = np.mean(entries**2, axis=2)  # of each update's blocks
    whole = squares.mean(axis=1)
    if not whole.all():
        return False
    count, seen = len(answers), blocks * size
    spread = size / 2 * float(np.sum((squares / whole[:, None] - 1) ** 2))
    lengths = seen / 2 * float(np.sum((whole / whole.mean() - 1) ** 2))
    fourth = np.mean(entries**4, axis=(1, 2)) / whole**2 - 3
    flat = entries.reshape(count, -1) / np.sqrt(seen * whole)[:, None]
    cosines = (flat @ flat.T)[np.triu_indices(count, 1)]
    chi2, wide = scipy.stats.chi2, scipy.special.ndtri(1 - _RARE / 2)
    return bool(
        spread < chi2.isf(_RARE, count * (blocks - 1))
        and chi2.ppf(_RARE, count - 1) < lengths < chi2.isf(_RARE, count - 1)
        and abs(fourth.mean()) < wide * np.sqrt(24 / seen / count)
        and abs(cosines.mean()) < wide / np.sqrt(seen * len(cosines))
        and np.abs(cosines).max() < 5 / np.sqrt(seen)
    )
