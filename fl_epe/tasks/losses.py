"""Examples, and sums of their losses and of correct predictions."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from fl_epe.checks import raise_invalid
from fl_epe.models import Cnn, Inputs

# Predictions with this target are ignored, as in torch and Hugging Face's libraries.
_IGNORED = -100


@dataclasses.dataclass(frozen=True)
class ClientData:
    """The examples of one client, or the held-out examples.

    Attributes:
        inputs: the model's inputs: a tensor, or a mapping from keyword arguments to tensors,
            whose first axis is the examples.
        targets: the tensor that `Task.loss` compares with the outputs; its first axis is the
            examples.
    """

    # The type is `Inputs`, but `Any` lets a task's author use a tensor without a check.
    inputs: Any
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
        """All tensors, by the names that error messages give them."""
        if isinstance(self.inputs, Mapping):
            tensor_of = {
                f"inputs {name}": part for name, part in self.inputs.items()
            }
        else:
            tensor_of = {"inputs": self.inputs}
        return {**tensor_of, "targets": self.targets}

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> ClientData:
        """The data with ``change`` applied to every tensor, e.g. to select some examples."""
        if isinstance(self.inputs, Mapping):
            inputs: Inputs = {
                name: change(part) for name, part in self.inputs.items()
            }
        else:
            inputs = change(self.inputs)
        return ClientData(inputs, change(self.targets))

    def batches(self, size: int) -> list[ClientData]:
        """The examples in their order, in batches of ``size``."""
        rows = [slice(i, i + size) for i in range(0, len(self), size)]
        return [self.map(operator.itemgetter(batch)) for batch in rows]


@dataclasses.dataclass(frozen=True)
class LossSum:
    """The loss of a batch as a sum, which can be added over batches. Masked positions do not count.

    Attributes:
        loss: sum of the losses of the predictions, a differentiable scalar.
        correct: number of correct predictions; for a task with a metric other than accuracy,
            the sum of that metric over the predictions. A tensor on the device avoids a
            synchronisation.
        examples: number of predictions, as a number or a tensor. For text these are the tokens
            that are not masked, and not the examples.
    """

    loss: torch.Tensor
    correct: float | torch.Tensor
    examples: int | torch.Tensor

    def mean(self) -> torch.Tensor:
        """The mean loss of a prediction, differentiable; 0 if there is no prediction."""
        return self.loss / torch.as_tensor(self.examples).clamp(min=1)

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
    """The sums of `cross_entropy_by_example` over the examples."""
    parts = cross_entropy_by_example(logits, targets, ignored)
    loss, correct, examples = (part.sum() for part in parts)
    return LossSum(loss, correct, examples)


def cross_entropy_by_example(
    logits: torch.Tensor, targets: torch.Tensor, ignored: int = _IGNORED
) -> ByExample:
    """Cross-entropy, number of correct predictions and of all predictions, for each example.

    See `Task.by_example`.

    Args:
        logits: logits of shape (n, …, classes).
        targets: class numbers, int64 of shape (n, …).
        ignored: predictions with this target are ignored.
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
        # NumPy's argmax is ten times as fast as torch's.
        best = torch.from_numpy(values.numpy().argmax(-1))
    else:
        best = values.argmax(-1)
    is_right = (best == targets) & counted
    n = len(targets)
    loss, correct, examples = (
        part.reshape(n, -1).sum(1) for part in (losses, is_right, counted)
    )
    return loss, correct, examples


class CnnClassification:
    """The model and the loss of tasks that classify images with the EMNIST CNN."""

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
    """The default loss, number of correct predictions and of all predictions, for each example.

    Args:
        outputs: for integer targets, logits as in `with_classes_last`; for real targets, as
            many values as targets.
        targets: int64 class numbers, −100 for an ignored prediction; or float32.

    Returns:
        As `Task.by_example`. For integer targets, the loss is the cross-entropy. For real
        targets, it is the squared error, and no prediction counts as correct.

    Raises:
        ValueError: if the outputs do not fit the targets.
    """
    if not targets.is_floating_point():
        logits = with_classes_last(outputs, targets)
        return cross_entropy_by_example(logits, targets)
    loss = _squared_errors(outputs, targets).reshape(len(targets), -1).sum(1)
    correct = torch.zeros_like(loss)
    return loss, correct, torch.full_like(loss, targets[0].numel())


def _squared_errors(
    outputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """The squared error of each entry, with the shape of the targets.

    The outputs or the targets of an example may be flattened, or have additional axes of length 1.
    Outputs of shape (n, 2, 3) for targets of shape (n, 3, 2) are refused, because a reshape would
    compare the wrong entries.
    """
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


def with_classes_last(
    outputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """The logits with the shape of ``targets``, followed by an axis of the classes.

    Args:
        outputs: logits whose classes are the last axis, or the second one as in torch's own
            losses: (n, length, classes) or (n, classes, length) for targets of shape (n,
            length). If the classes are last, the other axes may be flattened to one, or axes of
            length 1 may be added or left out.
        targets: class numbers.

    Raises:
        ValueError: if neither axis fits the targets, or if both do.
    """
    shape = tuple(outputs.shape)
    target_shape = tuple(targets.shape)
    fits_second = len(shape) > 2 and shape[:1] + shape[2:] == target_shape
    fits_last = shape[:-1] == target_shape
    if fits_second and fits_last:
        raise ValueError(
            f"Expected outputs {shape} to show which axis has the classes: for targets "
            f"{target_shape} it may be the last or the second. Pad the sequences to another "
            "length, or give loss= and metric="
        )
    if fits_second:
        outputs = outputs.movedim(1, -1)
    else:
        is_flat = len(shape) == 2
        can_reshape = is_flat or (
            _without_ones(shape[1:-1]) == _without_ones(target_shape[1:])
        )
        if not can_reshape or math.prod(shape[:-1]) != targets.numel():
            raise ValueError(
                f"Expected outputs {shape} to be (n, …, classes) or (n, classes, …) for targets "
                f"(n, …) = {target_shape}"
            )
    return outputs.reshape(*targets.shape, outputs.shape[-1])


def _without_ones(shape: Sequence[int]) -> list[int]:
    """The shape without axes of length 1, which models may add or leave out."""
    return [length for length in shape if length != 1]


def has_two_classes(targets: torch.Tensor) -> bool:
    """Whether each example has one target, which is 0 or 1, and both occur."""
    return targets.dim() == 1 and set(targets.tolist()) == {0, 1}


def area_under_curve(
    outputs: Sequence[torch.Tensor], targets: torch.Tensor
) -> float | None:
    """Area under the ROC curve, which is 0.5 for random guesses whatever the class frequencies.

    Args:
        outputs: the outputs of each batch: two logits, or one number, for each example.
        targets: classes 0 or 1, shape (n,).

    Returns:
        The area, or ``None`` if the outputs have another shape, or are not finite.
    """
    from sklearn.metrics import roc_auc_score

    # A user's model may return anything that its task's loss takes.
    if not all(isinstance(part, torch.Tensor) for part in outputs):
        return None
    rows = torch.cat(list(outputs)).reshape(len(targets), -1)
    if rows.shape[1] > 2 or not rows.isfinite().all():
        return None
    # The second logit minus the first; with one output, nothing is subtracted.
    margin = rows[:, -1] - rows[:, :-1].sum(1)
    return float(roc_auc_score(targets, margin))


def check_classes(targets: torch.Tensor, num_outputs: int, column: str) -> None:
    """Refuse class numbers that a model with this number of outputs cannot predict.

    Args:
        targets: class numbers, of any shape.
        num_outputs: number of the model's outputs for a prediction.
        column: the column of the targets, for messages.

    Raises:
        ValueError: if there are such numbers; the message names the column, the class and the
            number of outputs.
    """
    counted = targets[targets != _IGNORED]
    if not len(counted):
        raise_invalid(
            "targets", column, f"to have a value that is not {_IGNORED}"
        )
    invalid = counted[(counted < 0) | (counted >= num_outputs)]
    if len(invalid):
        classes = f"to hold classes 0 … {num_outputs - 1}"
        reason = f"as the model has {num_outputs} outputs, got {invalid[0]}"
        raise_invalid("targets", column, f"{classes}, {reason}")
