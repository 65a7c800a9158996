"""Examples, and what a model's loss for them adds up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fl_epe.models import Inputs


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
        if isinstance(self.examples, torch.Tensor):
            return self.loss / self.examples.clamp(min=1)
        return self.loss / max(1, self.examples)

    def sums(self, device: torch.device) -> torch.Tensor:
        """Loss, metric and number of predictions, float64 of shape (3,) on ``device``."""
        parts = (self.loss.detach(), self.correct, self.examples)
        return torch.stack([torch.as_tensor(p, dtype=torch.float64, device=device) for p in parts])


ByExample = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Loss, metric and number of predictions of each example, shape (n,) each."""
