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

_IGNORED = -100  # torch's and Hugging Face's mark of a target that is left out


@dataclasses.dataclass(frozen=True)
class ClientData:
    """The examples of one client, or the held-out examples.

    Attributes:
        inputs: the model's inputs: a tensor, or a mapping of keyword arguments to tensors; first
            axis the examples.
        targets: the tensor that `Task.loss` compares with the outputs, first axis the examples.
    """

    inputs: Any  # `Inputs`; the task's author knows which
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
        if isinstance(self.inputs, Mapping):
            named = {
                f"inputs {name}": part for name, part in self.inputs.items()
            }
        else:
            named = {"inputs": self.inputs}
        return {**named, "targets": self.targets}

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> ClientData:
        """The same with every tensor changed, e.g. by taking some examples of it."""
        if isinstance(self.inputs, Mapping):
            inputs: Inputs = {
                name: change(part) for name, part in self.inputs.items()
            }
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
        loss: differentiable scalar, summed over the predictions.
        correct: number of right predictions; for a task with another metric than accuracy, the sum
            of that metric. A tensor on a device saves a synchronisation.
        examples: number of predictions (for text, the tokens that are not masked); a number or a
            tensor likewise.
    """

    loss: torch.Tensor
    correct: float | torch.Tensor
    examples: int | torch.Tensor

    def mean(self) -> torch.Tensor:
        """The loss of a prediction, differentiable; 0 if there was none."""
        n = self.examples
        if isinstance(n, torch.Tensor):
            return self.loss / n.clamp(min=1)
        return self.loss / max(1, n)

    def sums(self, device: torch.device) -> torch.Tensor:
        """Loss, metric and number of predictions, float64 of shape (3,) on ``device``."""
        sums = [
            torch.as_tensor(value, dtype=torch.float64, device=device)
            for value in (self.loss.detach(), self.correct, self.examples)
        ]
        return torch.stack(sums)


ByExample = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Loss, metric and number of predictions of each example, shape (n,) each."""


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, ignored: int = _IGNORED
) -> LossSum:
    """Summed `cross_entropy_by_example`; the examples are the targets that are not ``ignored``."""
    parts = cross_entropy_by_example(logits, targets, ignored)
    loss, correct, examples = (part.sum() for part in parts)
    return LossSum(loss, correct, examples)


def cross_entropy_by_example(
    logits: torch.Tensor, targets: torch.Tensor, ignored: int = _IGNORED
) -> ByExample:
    """Cross-entropy, right classes and predictions of each example; see `Task.by_example`.

    Args:
        logits: shape (n, …, classes).
        targets: int64 of shape (n, …).
        ignored: the target of a prediction that is left out.
    """
    losses = functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        targets.reshape(-1),
        reduction="none",
        ignore_index=ignored,
    )
    counted = targets != ignored
    values = logits.detach()
    if values.is_cpu and values.dtype == torch.float32:
        best = torch.from_numpy(
            values.numpy().argmax(-1)
        )  # ten times as fast as torch's
    else:
        best = values.argmax(-1)
    is_right = (best == targets) & counted
    n = len(targets)
    loss, correct, examples = (
        part.reshape(n, -1).sum(1) for part in (losses, is_right, counted)
    )
    return loss, correct, examples


class Classes:
    """The model and the loss of tasks with the EMNIST CNN."""

    def model(self) -> torch.nn.Module:
        """A fresh EMNIST CNN."""
        return Cnn()

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> LossSum:
        """Cross-entropy."""
        return cross_entropy(outputs, targets)

    def by_example(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> ByExample:
        """See `Task.by_example`."""
        return cross_entropy_by_example(outputs, targets)


def default_by_example(
    outputs: torch.Tensor, targets: torch.Tensor
) -> ByExample:
    """The default loss for the targets, right classes and predictions of each example.

    Args:
        outputs: for whole numbers logits, see `by_class`; for real numbers as many values as the
            targets.
        targets: int64 class numbers, −100 for a prediction that is left out; or float32.

    Returns:
        Cross-entropy, or squared error, of which no prediction is right; see `Task.by_example`.

    Raises:
        ValueError: if the outputs do not fit the targets.
    """
    if not targets.is_floating_point():
        logits, _ = by_class(outputs, targets)
        return cross_entropy_by_example(
            logits.reshape(*targets.shape, -1), targets
        )
    loss = _squared_errors(outputs, targets).reshape(len(targets), -1).sum(1)
    return (
        loss,
        torch.zeros_like(loss),
        torch.full_like(loss, targets[0].numel()),
    )


def _squared_errors(
    outputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    output_shape = _without_ones(outputs.shape[1:])
    target_shape = _without_ones(targets.shape[1:])
    one_is_flat = min(len(output_shape), len(target_shape)) < 2
    have_same_order = output_shape == target_shape or one_is_flat
    if outputs.numel() != targets.numel() or not have_same_order:
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
    shape = tuple(outputs.shape)
    wanted = tuple(targets.shape)
    is_second = len(shape) > 2 and shape[:1] + shape[2:] == wanted
    if is_second and shape[:-1] == wanted:
        raise ValueError(
            f"Expected outputs {shape} to show which axis has the classes: for targets {wanted} it "
            "may be the last or the second. Pad the sequences to another length, or give loss= and "
            "metric="
        )
    is_last = len(shape) == 2 or _without_ones(shape[1:-1]) == _without_ones(
        wanted[1:]
    )
    if is_second:
        outputs = outputs.movedim(1, -1)
    elif not is_last or math.prod(shape[:-1]) != targets.numel():
        raise ValueError(
            f"Expected outputs {shape} to be (n, …, classes) or (n, classes, …) for targets "
            f"(n, …) = {wanted}"
        )
    return outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [length for length in shape if length != 1]


def has_two_classes(targets: torch.Tensor) -> bool:
    """Whether each example has one target, which is 0 or 1, and both occur."""
    return targets.dim() == 1 and set(targets.tolist()) == {0, 1}


def area_under_curve(
    outputs: Sequence[torch.Tensor], targets: torch.Tensor
) -> float | None:
    """Area under the ROC curve, which is 0.5 for random guesses with any shares of the classes.

    Args:
        outputs: of all batches: two logits, or one number, for each example.
        targets: 0 or 1, shape (n,).

    Returns:
        ``None`` if the outputs have another shape, or are not finite.
    """
    from sklearn.metrics import roc_auc_score

    if not all(isinstance(part, torch.Tensor) for part in outputs):
        return None
    rows = torch.cat(list(outputs)).reshape(len(targets), -1)
    if rows.shape[1] > 2 or not rows.isfinite().all():
        return None
    margin = rows[:, -1] - rows[:, :-1].sum(
        1
    )  # of two logits, or the only output
    return float(roc_auc_score(targets, margin))


def check_classes(targets: torch.Tensor, outputs: int, column: str) -> None:
    """Refuse class numbers that a model with this number of outputs cannot predict.

    Raises:
        ValueError: names the column, the class and the number of outputs.
    """
    counted = targets[targets != _IGNORED]
    if not len(counted):
        raise_invalid(
            "targets", column, f"to have a value that is not {_IGNORED}"
        )
    low = int(counted.min())
    high = int(counted.max())
    if low < 0 or high >= outputs:
        wrong = low if low < 0 else high
        has = f"as the model has {outputs} outputs, got {wrong}"
        raise_invalid(
            "targets", column, f"to hold classes 0 … {outputs - 1}, {has}"
        )
