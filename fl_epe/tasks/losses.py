"""Examples, and losses of them: summed, with the number of right predictions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from fl_epe.checks import raise_invalid
from fl_epe.models import Cnn, Inputs

_IGNORED = -100  # torch's and Hugging Face's mark of a target that does not count


@dataclasses.dataclass(frozen=True)
class ClientData:
    """The examples of one client, or the held-out examples.

    Attributes:
        inputs: what the model is called with: a tensor, or a mapping of keyword arguments to
            tensors; first axis the examples.
        targets: what `Task.loss` compares the outputs with, first axis the examples.
    """

    inputs: Any  # `Inputs`; whoever wrote the task knows which
    targets: torch.Tensor

    def __post_init__(self) -> None:
        for name, part in self.tensors().items():
            if len(part) != len(self.targets):
                raise ValueError(
                    f"Expected as many {name} as targets, got {len(part)} and {len(self.targets)}."
                )

    def __len__(self) -> int:
        return len(self.targets)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, under names for a message."""
        named = self.inputs if isinstance(self.inputs, Mapping) else {"": self.inputs}
        inputs = {f"inputs {name}".strip(): part for name, part in named.items()}
        return {**inputs, "targets": self.targets}

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> ClientData:
        """The same with every tensor changed, e.g. by taking some examples of it."""
        if isinstance(self.inputs, Mapping):
            inputs: Inputs = {name: change(part) for name, part in self.inputs.items()}
        else:
            inputs = change(self.inputs)
        return ClientData(inputs, change(self.targets))

    def batches(self, size: int) -> list[ClientData]:
        """The examples in their order, ``size`` at a time."""
        starts = range(0, len(self), size)
        return [self.map(lambda part, i=i: part[i : i + size]) for i in starts]  # type: ignore[misc]


@dataclasses.dataclass(frozen=True)
class LossSum:
    """The loss of a batch as a sum, so that batches and masked positions add up.

    Attributes:
        loss: differentiable scalar, summed over what was predicted.
        correct: how many predictions were right; for a task with another metric than accuracy,
            the sum of that metric. A tensor on a device spares it a synchronisation.
        examples: how many predictions there were (for text, the tokens that are not masked); a
            number or a tensor likewise.
    """

    loss: torch.Tensor
    correct: float | torch.Tensor
    examples: int | torch.Tensor

    def mean(self) -> torch.Tensor:
        """The loss of a prediction, differentiable; 0 if there was none."""
        n = self.examples
        return self.loss / (
            n.clamp(min=1) if isinstance(n, torch.Tensor) else max(1, n)
        )

    def sums(self, device: torch.device) -> torch.Tensor:
        """Loss, metric and number of predictions, float64 of shape (3,) on ``device``."""
        parts = (self.loss.detach(), self.correct, self.examples)
        return torch.stack(
            [torch.as_tensor(p, dtype=torch.float64, device=device) for p in parts]
        )


ByExample = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Loss, metric and number of predictions of each example, shape (n,) each."""


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, ignored: int = _IGNORED
) -> LossSum:
    """Summed `cross_entropy_by_example`; the examples are the targets that are not ``ignored``."""
    return LossSum(
        *(part.sum() for part in cross_entropy_by_example(logits, targets, ignored))
    )


def cross_entropy_by_example(
    logits: torch.Tensor, targets: torch.Tensor, ignored: int = _IGNORED
) -> ByExample:
    """Cross-entropy, right classes and predictions of each example; see `Task.by_example`.

    Args:
        logits: shape (n, …, classes).
        targets: int64 of shape (n, …).
        ignored: the target where nothing is to be predicted.
    """
    flat = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    losses = functional.cross_entropy(*flat, reduction="none", ignore_index=ignored)
    counted = targets != ignored
    values = logits.detach()
    fast = (
        values.is_cpu and values.dtype == torch.float32
    )  # NumPy's is ten times as fast
    best = torch.from_numpy(values.numpy().argmax(-1)) if fast else values.argmax(-1)
    parts = losses, (best == targets) & counted, counted
    loss, correct, examples = (part.reshape(len(targets), -1).sum(1) for part in parts)
    return loss, correct, examples


class Classes:
    """What tasks have in common whose model is the EMNIST CNN."""

    def model(self) -> torch.nn.Module:
        """A fresh EMNIST CNN."""
        return Cnn()

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> LossSum:
        """Cross-entropy."""
        return cross_entropy(outputs, targets)

    def by_example(self, outputs: torch.Tensor, targets: torch.Tensor) -> ByExample:
        """See `Task.by_example`."""
        return cross_entropy_by_example(outputs, targets)


def default_by_example(outputs: torch.Tensor, targets: torch.Tensor) -> ByExample:
    """The loss that suits the targets, right classes and predictions of each example.

    Args:
        outputs: for whole numbers logits, see `by_class`; for real numbers as many values as the
            targets.
        targets: int64 class numbers, −100 where nothing is to be predicted; or float32.

    Returns:
        Cross-entropy, or squared error, of which no prediction is right; see `Task.by_example`.

    Raises:
        ValueError: if the outputs do not fit the targets.
    """
    if not targets.is_floating_point():
        logits, _ = by_class(outputs, targets)
        return cross_entropy_by_example(logits.reshape(*targets.shape, -1), targets)
    loss = _squared_errors(outputs, targets).reshape(len(targets), -1).sum(1)
    return loss, torch.zeros_like(loss), torch.full_like(loss, targets[0].numel())


def _squared_errors(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    mine, theirs = _without_ones(outputs.shape[1:]), _without_ones(targets.shape[1:])
    flat = min(len(mine), len(theirs)) < 2
    if outputs.numel() != targets.numel() or (mine != theirs and not flat):
        raise ValueError(
            f"Expected as many outputs as real targets, in the same order, got "
            f"{tuple(outputs.shape)} for {tuple(targets.shape)}: for classes, make the targets "
            "whole numbers or text."
        )
    return functional.mse_loss(
        outputs.reshape(targets.shape), targets, reduction="none"
    )


def by_class(
    outputs: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of shape (predictions, classes), and the class of each prediction.

    Args:
        outputs: the classes are its last axis, or the second one, as in torch's own losses:
            (n, length, classes) or (n, classes, length) for targets of shape (n, length).
        targets: class numbers.

    Raises:
        ValueError: if the outputs fit the targets in no way, or in both.
    """
    shape, wanted = tuple(outputs.shape), tuple(targets.shape)
    second = len(shape) > 2 and shape[:1] + shape[2:] == wanted
    if second and shape[:-1] == wanted:
        raise ValueError(
            f"Expected outputs {shape} to show which axis has the classes: for targets {wanted} it "
            "may be the last or the second. Pad the sequences to another length, or give loss= and "
            "metric="
        )
    alike = _without_ones(shape[1:-1]) == _without_ones(wanted[1:])
    if second:
        outputs = outputs.movedim(1, -1)
    elif math.prod(shape[:-1]) != targets.numel() or not (alike or len(shape) == 2):
        raise ValueError(
            f"Expected outputs {shape} to be (n, …, classes) or (n, classes, …) for targets "
            f"(n, …) = {wanted}"
        )
    return outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [length for length in shape if length != 1]


def has_two_classes(targets: torch.Tensor) -> bool:
    """Whether each example has one target, which is 0 or 1, and there are both."""
    return targets.dim() == 1 and set(targets.tolist()) == {0, 1}


def area_under_curve(
    outputs: Sequence[torch.Tensor], targets: torch.Tensor
) -> float | None:
    """Area under the ROC curve, which is 0.5 for a guess whatever the shares of the classes.

    Args:
        outputs: of all batches: two logits, or one number, for each example.
        targets: 0 or 1, shape (n,).

    Returns:
        ``None`` where the outputs are of another shape, or not finite.
    """
    from sklearn.metrics import roc_auc_score

    if not all(isinstance(part, torch.Tensor) for part in outputs):
        return None
    whole = torch.cat(list(outputs)).reshape(len(targets), -1)
    if whole.shape[1] > 2 or not whole.isfinite().all():
        return None
    margin = whole[:, -1] - whole[:, :-1].sum(1)  # of two logits, or the only output
    return float(roc_auc_score(targets, margin))


def check_classes(targets: torch.Tensor, outputs: int, column: str) -> None:
    """Refuse class numbers that a model with so many outputs cannot predict.

    Raises:
        ValueError: names the column, the class and the number of outputs.
    """
    counted = targets[targets != _IGNORED]
    if not len(counted):
        raise_invalid("targets", column, f"to have a value that is not {_IGNORED}")
    low, high = int(counted.min()), int(counted.max())
    if low < 0 or high >= outputs:
        wrong = low if low < 0 else high
        has = f"as the model has {outputs} outputs, got {wrong}"
        raise_invalid("targets", column, f"to hold classes 0 … {outputs - 1}, {has}")
