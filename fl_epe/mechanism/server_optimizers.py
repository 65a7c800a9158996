"""How the server moves the model by the noisy mean of a round: SGD with momentum, or Adam."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import check_positive, raise_invalid
from fl_epe.mechanism.clipped_sum import Vector

OptimizerState = dict[str, NDArray[np.float64]]


@dataclasses.dataclass(frozen=True)
class ServerSGD:
    """Server optimizer ``v = momentum * v + mean``, ``theta = theta + learning_rate * v``.

    The mean of the clients' updates (local minus global model) points downhill, so it is added.

    Attributes:
        learning_rate: > 0.
        momentum: in [0, 1).
    """

    learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        if not 0 <= self.momentum < 1:
            raise_invalid("momentum", self.momentum, "in [0, 1)")

    def init(self, dim: int) -> OptimizerState:
        """Zero velocity."""
        return {"velocity": np.zeros(dim)}

    def update(
        self, state: OptimizerState, mean: NDArray[np.float64]
    ) -> tuple[OptimizerState, NDArray[np.float64]]:
        """The next state, and the step to add to the model."""
        velocity = self.momentum * state["velocity"]
        velocity += mean
        return {"velocity": velocity}, np.float64(self.learning_rate) * velocity

    def undo(self, velocity: Vector, step: Vector) -> tuple[Vector, Vector]:
        """The next velocity and the mean, from the velocity before a ``step`` of the model.

        The inverse of `update`, for an adversary who sees only models. Has the dtype of ``step``.
        """
        real = step.dtype.type
        after = step / real(self.learning_rate)
        return after, after - real(self.momentum) * velocity


def sgd_weights(learning_rates: NDArray[np.float64], momentum: float) -> NDArray[np.float64]:
    """Weight of each round's mean in ``theta_T - theta_0`` of `ServerSGD`.

    ``w_t = sum over s >= t of learning_rates[s] * momentum^(s - t)``, shape ``(rounds,)``; the
    learning rate may differ between rounds.
    """
    weights = np.array(learning_rates, np.float64)
    for t in range(len(weights) - 2, -1, -1):
        weights[t] += momentum * weights[t + 1]
    return weights


@dataclasses.dataclass(frozen=True)
class ServerAdam:
    """Server optimizer Adam (Reddi et al. 2021, FedAdam), with bias correction.

    Attributes:
        learning_rate: > 0.
        beta1, beta2: decay of the first and second moment, in [0, 1).
        epsilon: added to the root of the second moment, > 0.
    """

    learning_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_positive("epsilon", self.epsilon)
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise_invalid(name, value, "in [0, 1)")

    def init(self, dim: int) -> OptimizerState:
        """Zero moments."""
        return {"first": np.zeros(dim), "second": np.zeros(dim), "step": np.zeros(1)}

    def update(
        self, state: OptimizerState, mean: NDArray[np.float64]
    ) -> tuple[OptimizerState, NDArray[np.float64]]:
        """The next state, and the step to add to the model."""
        step = state["step"] + 1
        first = self.beta1 * state["first"] + (1 - self.beta1) * mean
        second = self.beta2 * state["second"] + (1 - self.beta2) * np.square(mean)
        direction = first / (1 - self.beta1**step)
        scale = np.sqrt(second / (1 - self.beta2**step)) + self.epsilon
        state = {"first": first, "second": second, "step": step}
        return state, self.learning_rate * direction / scale


ServerOptimizer = ServerSGD | ServerAdam
"""How the server moves the model by the mean update of a round."""
