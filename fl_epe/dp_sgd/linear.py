"""The movement of a model by a part of the gradients, in SGD.

The movement is computed exactly, as the model is a linear function of the gradients of all steps.

Examples:
    >>> step = LinearStep(learning_rate=0.1, momentum=0.5)
    >>> response = Response(np.zeros(1))
    >>> for gradient in (1.0, 0.0):
    ...     response.step(step, np.array([gradient]))
    >>> response.position.round(3)  # 0.1 · (1 + 0.5), downhill
    array([-0.15])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch


@dataclasses.dataclass(frozen=True)
class LinearStep:
    """The options of a step of torch's SGD."""

    learning_rate: float
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    @classmethod
    def of(cls, groups: Sequence[Mapping[str, Any]]) -> Self | None:
        """The options of SGD's parameter groups; ``None`` if it maximizes or the groups differ."""
        if any(group.get("maximize") for group in groups):
            return None
        steps = {
            cls(
                group["lr"],
                group.get("momentum", 0.0),
                group.get("dampening", 0.0),
                group.get("nesterov", False),
                group.get("weight_decay", 0.0),
            )
            for group in groups
        }
        if len(steps) == 1:
            return steps.pop()
        return None

    @property
    def is_plain(self) -> bool:
        """Whether the movement is the learning rate times the gradient, and nothing else."""
        return not self.momentum and not self.weight_decay


class Response:
    """The position of a model that is moved step by step, by a part of the gradients alone.

    Attributes:
        position: the position, an array of NumPy or torch; the initial one before the first
            step. A step may change a tensor in place.
    """

    def __init__(self, position: Any) -> None:
        self.position = position
        self._velocity: Any = None

    def step(self, step: LinearStep, gradient: Any, scale: float = 1.0) -> None:
        """Move by ``scale`` times a gradient of the position's shape."""
        if step.is_plain and isinstance(gradient, torch.Tensor):
            # The change is in place, as that reads the tensors only once.
            self.position.sub_(gradient, alpha=step.learning_rate * scale)
            return
        gradient = scale * gradient + step.weight_decay * self.position
        if step.momentum:
            if self._velocity is None:
                self._velocity = 1.0 * gradient
            else:
                self._velocity = (
                    step.momentum * self._velocity
                    + (1 - step.dampening) * gradient
                )
            if step.nesterov:
                gradient = gradient + step.momentum * self._velocity
            else:
                gradient = self._velocity
        self.position = self.position - step.learning_rate * gradient

    def append_zero(self) -> None:
        """Append an entry that no gradient has moved so far to a NumPy array."""
        self.position = np.append(self.position, 0.0)
        if self._velocity is not None:
            self._velocity = np.append(self._velocity, 0.0)
