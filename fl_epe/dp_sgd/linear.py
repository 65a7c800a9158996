"""How far SGD moves a model by some of its gradients: exactly, as each step is linear in them.

Examples:
    >>> how = LinearStep(learning_rate=0.1, momentum=0.5)
    >>> moved = Response(np.zeros(1))
    >>> for gradient in (1.0, 0.0):
    ...     moved.step(how, np.array([gradient]))
    >>> moved.position.round(3)  # 0.1 · (1 + 0.5), downhill
    array([-0.15])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch

_OF_GROUP = {
    "learning_rate": "lr",
    **{name: name for name in ("momentum", "dampening", "nesterov", "weight_decay")},
}


@dataclasses.dataclass(frozen=True)
class LinearStep:
    """A step of torch's SGD; the names are those of its options."""

    learning_rate: float
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    @classmethod
    def of(cls, groups: Sequence[Mapping[str, Any]]) -> Self | None:
        """By the parameter groups of SGD; ``None`` if it goes uphill, or groups differ."""
        if any(group.get("maximize") for group in groups):
            return None
        found = {
            cls(**{name: group[key] for name, key in _OF_GROUP.items() if key in group})
            for group in groups
        }
        return found.pop() if len(found) == 1 else None

    @property
    def is_plain(self) -> bool:
        """Whether the model moves by the learning rate times the gradient, and no more."""
        return not self.momentum and not self.weight_decay


class Response:
    """Where a model is by gradients that are given one after another.

    Attributes:
        position: an array of NumPy or torch, which is the initial one before the first step.
    """

    def __init__(self, position: Any) -> None:
        self.position = position
        self._velocity: Any = None

    def step(self, how: LinearStep, gradient: Any, scale: float = 1.0) -> None:
        """Move by ``scale`` times a gradient of the position's shape."""
        if how.is_plain and isinstance(gradient, torch.Tensor):
            self.position.sub_(gradient, alpha=how.learning_rate * scale)  # one pass
            return
        gradient = scale * gradient
        if how.is_plain:
            self.position -= how.learning_rate * gradient
            return
        gradient = gradient + how.weight_decay * self.position
        if how.momentum:
            if self._velocity is None:
                self._velocity = 1.0 * gradient
            else:
                kept = how.momentum * self._velocity
                self._velocity = kept + (1 - how.dampening) * gradient
            ahead = gradient + how.momentum * self._velocity
            gradient = ahead if how.nesterov else self._velocity
        self.position = self.position - how.learning_rate * gradient

    def append_zero(self) -> None:
        """One more entry of a NumPy array, which nothing has moved so far."""
        self.position = np.append(self.position, 0.0)
        if self._velocity is not None:
            self._velocity = np.append(self._velocity, 0.0)
