"""The steps of a `PlainDPSGD`, as an audit sees them, and those of any optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fl_epe.dp_sgd.opacus_steps import OpacusSteps
from fl_epe.dp_sgd.plain import PlainDPSGD
from fl_epe.dp_sgd.step_checks import largest_clipped
from fl_epe.dp_sgd.steps import StepFacts, Steps, Vector


class PlainSteps(Steps):
    """The steps of `PlainDPSGD`."""

    clips_in_step = True

    def __init__(self, optimizer: PlainDPSGD) -> None:
        super().__init__(optimizer)
        self.description = type(optimizer).__name__
        self.dim = len(optimizer.theta)
        self.batch_size = optimizer.expected_batch_size
        self.momentum = 0.0

    def facts(self) -> StepFacts:
        """See `Steps.facts`."""
        z = self._optimizer.noise_multiplier
        return StepFacts(self._optimizer.max_grad_norm, z, z, self._optimizer.learning_rate)

    def summed(self) -> Vector:
        """See `Steps.summed`."""
        return np.array(self._optimizer.summed_grad)

    def clipped(self, before: Any) -> tuple[int, float]:
        """See `Steps.clipped`."""
        gradients, total = self._optimizer.grad_sample, self._optimizer.summed_grad
        longest = largest_clipped(
            np.linalg.norm(gradients, axis=1),
            self._optimizer.max_grad_norm,
            lambda factors: float(np.linalg.norm(total - factors @ gradients)),
            lambda: (gradients @ total, float(total @ total)),
        )
        return len(gradients), longest

    def join(self, vector: Vector) -> Callable[[], None]:
        """See `Steps.join`."""
        before = self._optimizer.summed_grad
        self._optimizer.summed_grad = before + vector
        return lambda: setattr(self._optimizer, "summed_grad", before)

    def noisy(self) -> Vector:
        """See `Steps.noisy`."""
        return np.asarray(self._optimizer.grad)

    def model(self) -> Vector:
        """See `Steps.model`."""
        return np.array(self._optimizer.theta)


def steps_of(optimizer: object) -> Steps:
    """The steps of an optimizer that can be audited.

    Raises:
        TypeError: if it is neither a `PlainDPSGD` nor an Opacus ``DPOptimizer``.
        ValueError: if it is one that cannot be audited, with the reason.
    """
    if isinstance(optimizer, PlainDPSGD):
        return PlainSteps(optimizer)
    if any(kind.__name__ == "DPOptimizer" for kind in type(optimizer).__mro__):
        return OpacusSteps(optimizer)
    raise TypeError(
        f"Expected optimizer of type {type(optimizer).__name__} to be an Opacus DPOptimizer or a"
        " PlainDPSGD. With Opacus, take the optimizer that PrivacyEngine().make_private returns."
    )
