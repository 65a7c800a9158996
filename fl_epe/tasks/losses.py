"""Losses that a task can take: summed, with the number of right predictions."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from fl_epe.data.examples import PAD
from fl_epe.tasks.contract import ByExample, LossSum

__all__ = [
    "Classes",
    "check_classes",
    "cross_entropy",
    "cross_entropy_by_example",
    "default_by_example",
    "default_loss",
    "default_metric",
    "token_cross_entropy",
]

_IGNORED = -100  # torch's and Hugging Face's mark of a target that does not count


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> LossSum:
    """Summed cross-entropy and number of right classes for (n, classes) logits."""
    right = (_best(logits) == targets).sum()
    loss = functional.cross_entropy(logits, targets, reduction="sum")
    return LossSum(loss, int(right) if right.is_cpu else right, len(targets))


def _best(logits: torch.Tensor) -> torch.Tensor:
    """The first of the largest entries of the last axis."""
    values = logits.detach()
    if values.is_cpu and values.dtype == torch.float32:  # NumPy's argmax is ten times as fast
        return torch.from_numpy(values.numpy().argmax(-1))
    return values.argmax(-1)


def token_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> LossSum:
    """Summed cross-entropy and number of right words, without padding (word 0).

    Args:
        logits: shape (n, length, vocabulary).
        targets: int64 of shape (n, length), the next words.

    Returns:
        `LossSum` whose examples are the targets that are not padding.
    """
    if targets.is_cpu:  # fewer logits; where a mask would have to wait for the device, all of them
        counted = targets != PAD
        return cross_entropy(logits[counted], targets[counted])
    return LossSum(*(part.sum() for part in cross_entropy_by_example(logits, targets, PAD)))


def cross_entropy_by_example(
    logits: torch.Tensor, targets: torch.Tensor, ignored: int = _IGNORED
) -> ByExample:
    """Cross-entropy, right classes and predictions of each example; see `Task.by_example`.

    Args:
        logits: shape (n, …, classes).
        targets: int64 of shape (n, …).
        ignored: the target where nothing is to be predicted.
    """
    n = len(targets)
    flat = logits.reshape(-1, logits.shape[-1])
    losses = functional.cross_entropy(
        flat, targets.reshape(-1), reduction="none", ignore_index=ignored
    )
    counted = targets != ignored
    right = (_best(logits) == targets) & counted
    loss, correct, examples = (part.reshape(n, -1).sum(1) for part in (losses, right, counted))
    return loss, correct, examples


class Classes:
    """What tasks have in common whose model puts an example into one of several classes."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> LossSum:
        """Cross-entropy."""
        return cross_entropy(outputs, targets)

    def by_example(self, outputs: torch.Tensor, targets: torch.Tensor) -> ByExample:
        """See `Task.by_example`."""
        return cross_entropy_by_example(outputs, targets)


def default_by_example(outputs: torch.Tensor, targets: torch.Tensor) -> ByExample:
    """`default_loss` and `default_metric` of each example; see `Task.by_example`."""
    if not targets.is_floating_point():
        return cross_entropy_by_example(outputs, targets)
    if outputs.numel() != targets.numel():
        default_loss(outputs, targets)  # says what is wrong
    losses = functional.mse_loss(outputs.reshape(targets.shape), targets, reduction="none")
    loss = losses.reshape(len(targets), -1).sum(1)
    each = targets[0].numel()
    return loss, torch.zeros_like(loss), torch.full_like(loss, each)


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
    # NumPy starts sooner, which counts for small batches.
    return loss, int(np.count_nonzero(classes.cpu().numpy() != _IGNORED))


def default_metric(outputs: torch.Tensor, targets: torch.Tensor) -> int | torch.Tensor:
    """The number of right classes among the targets that count, see `default_loss`."""
    values = outputs.detach()
    if values.is_cpu and targets.is_cpu and values.dtype == torch.float32:
        best, classes = values.numpy().argmax(-1), targets.numpy()
        return int(np.count_nonzero((best == classes) & (classes != _IGNORED)))
    return (values.argmax(-1) == targets).logical_and_(targets != _IGNORED).sum()


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
