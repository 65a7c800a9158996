"""Losses that a task can take: summed, with the number of right predictions."""

from __future__ import annotations

import torch
from torch.nn import functional

from fl_epe.data.examples import PAD
from fl_epe.tasks.contract import LossSum

__all__ = ["cross_entropy", "token_cross_entropy"]


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> LossSum:
    """Summed cross-entropy and number of right classes for (n, classes) logits."""
    values = logits.detach()
    # NumPy's argmax is ten times as fast.
    best = torch.from_numpy(values.numpy().argmax(1)) if values.is_cpu else values.argmax(1)
    loss = functional.cross_entropy(logits, targets, reduction="sum")
    return LossSum(loss, int((best == targets).sum()), len(targets))


def token_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> LossSum:
    """Summed cross-entropy and number of right words, without padding (word 0).

    Args:
        logits: shape (n, length, vocabulary).
        targets: int64 of shape (n, length), the next words.

    Returns:
        `LossSum` whose examples are the targets that are not padding.
    """
    counted = targets != PAD
    return cross_entropy(logits[counted], targets[counted])
