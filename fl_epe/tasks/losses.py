"""Losses that a task can take: summed, with the number of right predictions."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from fl_epe.data.examples import PAD
from fl_epe.tasks.contract import LossSum

__all__ = [
    "check_classes",
    "cross_entropy",
    "default_loss",
    "default_metric",
    "token_cross_entropy",
]

_IGNORED = -100  # torch's and Hugging Face's mark of a target that does not count


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


def default_loss(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The summed loss that suits the targets, and the number of predictions.

    Args:
        outputs: for whole numbers logits, with an axis more than the targets, the last one; for
            real numbers as many values as the targets.
        targets: int64 class numbers, −100 where nothing is to be predicted; or float32.

    Returns:
        Cross-entropy or squared error, and the number of targets that count.

    Raises:
        ValueError: if real targets are not as many as the outputs.
    """
    if targets.is_floating_point():
        if outputs.numel() != targets.numel():
            raise ValueError(
                f"Expected as many outputs as real targets, got {tuple(outputs.shape)} for "
                f"{tuple(targets.shape)}: for classes, make the targets whole numbers or text."
            )
        return functional.mse_loss(outputs.reshape(targets.shape), targets, reduction="sum"), (
            targets.numel()
        )
    logits, classes = outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)
    loss = functional.cross_entropy(logits, classes, reduction="sum", ignore_index=_IGNORED)
    if classes.is_cpu:  # NumPy starts sooner, which counts for small batches
        return loss, int(np.count_nonzero(classes.numpy() != _IGNORED))
    return loss, int((classes != _IGNORED).sum())


def default_metric(outputs: torch.Tensor, targets: torch.Tensor) -> int:
    """The number of right classes among the targets that count, see `default_loss`."""
    values = outputs.detach()
    if values.is_cpu and targets.is_cpu and values.dtype == torch.float32:
        best, classes = values.numpy().argmax(-1), targets.numpy()
        return int(np.count_nonzero((best == classes) & (classes != _IGNORED)))
    right = values.argmax(-1) == targets
    return int((right & (targets != _IGNORED)).sum())


def check_classes(targets: torch.Tensor, outputs: int, column: str) -> None:
    """Refuse class numbers that a model with so many outputs cannot predict.

    Raises:
        ValueError: names the column, the class and the number of outputs.
    """
    counted = targets[targets != _IGNORED]
    if not len(counted):
        raise ValueError(f"Expected targets={column!r} to have a value that is not {_IGNORED}.")
    low, high = int(counted.min()), int(counted.max())
    if low < 0 or high >= outputs:
        wrong = low if low < 0 else high
        raise ValueError(
            f"Expected targets={column!r} to hold classes 0 … {outputs - 1}, as the model has "
            f"{outputs} outputs, got {wrong}."
        )
