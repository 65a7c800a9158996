"""Losses that a task can take: summed, with the number of right predictions."""

from __future__ import annotations

import torch
from torch.nn import functional

from fl_epe.data.examples import PAD
from fl_epe.tasks.contract import LossSum

__all__ = ["cross_entropy", "token_cross_entropy"]


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> LossSum:
    """Summed cross-entropy and number of right classes for (n, classes) logits."""
    return LossSum(
        loss=functional.cross_entropy(logits, targets, reduction="sum"),
        correct=int((logits.detach().argmax(1) == targets).sum()),
        examples=len(targets),
    )


def token_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> LossSum:
    """Summed cross-entropy and number of right words, without padding (word 0).

    Args:
        logits: shape (n, length, vocabulary).
        targets: int64 of shape (n, length), the next words.

    Returns:
        `LossSum` whose examples are the targets that are not padding.
    """
    loss = functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum"
    )
    values, counts = logits.detach(), targets != PAD
    # NumPy's argmax is ten times as fast.
    best = torch.from_numpy(values.numpy().argmax(-1)) if values.is_cpu else values.argmax(-1)
    return LossSum(loss, int(((best == targets) & counts).sum()), int(counts.sum()))
