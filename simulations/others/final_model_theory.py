"""What a final model depends on in one round: the best that any canary can do.

Near the run without noise, training is linear: what is added to round t's sum reaches the final
model through a matrix J_t, noise and canary alike. So the final model has the noise covariance
Σ = z²·Σ_t J_t·J_tᵀ in units of the clip norm, and the canary c of round t, of length 1, is seen at
μ = ‖Σ^(−1/2)·J_t·c‖ deviations by whoever knows all but the noise. The largest singular value of
Σ^(−1/2)·J_t is the best of round t. It never exceeds 1/z, which is what theory allows who sees
every round: the final model gives that away only if the other rounds' noise has been forgotten in
that direction (training pulls it back) or stayed small beside it (training drives it away).

Without such feedback J_t is a number, the round's weight in the final model, and every direction
is as good: μ = w_t/(z·√Σ w²), about 1/(z·√T).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy

from simulations.others.final_model import Training
from simulations.others.two_layer import Floats

_SMALL = 1e-5  # step of a derivative, in the unit of a weight


def flat_shift(
    weights: Floats, noise_multiplier: float, present: Sequence[int]
) -> float:
    """μ of a canary in the rounds ``present``, where training does not react to what it does.

    Args:
        weights: of each round's sum in the final model, times its clip norm, shape (T,).
        noise_multiplier: z > 0.
        present: rounds in which the canary sends the same direction.
    """
    length = noise_multiplier * float(np.linalg.norm(weights))
    return float(np.sum(weights[list(present)])) / length


@dataclasses.dataclass(frozen=True, eq=False)
class Memory:
    """How the final model of a run depends on what is added to each round's sum.

    Attributes:
        paths: J_t of each round, shape (T, dim, dim).
        root: lower triangular factor of the sum of J_t·J_tᵀ.
        noise_multiplier: z.
    """

    paths: Floats
    root: Floats
    noise_multiplier: float

    def shift(self, canary: Floats, present: Sequence[int]) -> float:
        """μ of a ``canary``, a unit vector of shape (dim,), sent in each round of ``present``."""
        return float(
            np.linalg.norm(self._whitened(self._seen(canary, present)))
        ) / (self.noise_multiplier)

    def filter(self, canary: Floats, present: Sequence[int]) -> Floats:
        """Direction in θ_T − θ_0 along which the canary stands out most, a unit vector."""
        white = self._whitened(self._seen(canary, present))
        direction = scipy.linalg.solve_triangular(
            self.root, white, lower=True, trans=1
        )
        return np.asarray(direction / np.linalg.norm(direction))

    def best(self, number: int) -> tuple[float, Floats]:
        """The largest μ of round ``number`` and the unit vector that has it."""
        white = self._whitened(self.paths[number])
        values, vectors = scipy.linalg.eigh(
            white.T @ white, subset_by_index=[len(white) - 1, len(white) - 1]
        )
        return math.sqrt(
            max(float(values[0]), 0.0)
        ) / self.noise_multiplier, vectors[:, 0]

    def growth(self, canary: Floats, number: int, weight: float) -> float:
        """Length of a canary's trace in the final model over that without feedback."""
        return float(np.linalg.norm(self.paths[number] @ canary)) / weight

    def _seen(self, canary: Floats, present: Sequence[int]) -> Floats:
        return np.asarray(
            sum(self.paths[number] @ canary for number in present)
        )

    def _whitened(self, values: Floats) -> Floats:
        return np.asarray(
            scipy.linalg.solve_triangular(self.root, values, lower=True)
        )


def memory_of(training: Training) -> Memory:
    """The `Memory` of a run, by derivatives along the run without noise and canary."""
    dim, rounds = training.network.dim, training.rounds
    models = training.train(np.zeros(dim), (), None)
    rate, momentum = training.server.learning_rate, training.server.momentum
    by_model, by_velocity = (
        np.eye(dim),
        np.zeros((dim, dim)),
    )  # of the final model
    paths = np.empty((rounds, dim, dim))
    gram = np.zeros((dim, dim))
    for number in reversed(range(rounds)):
        after = (
            rate * by_model + by_velocity
        )  # by the velocity after this round
        paths[number] = after / training.size
        gram += paths[number] @ paths[number].T
        by_model = by_model + paths[number] @ _jacobian(
            training, models[number], number
        )
        by_velocity = momentum * after
    root = np.linalg.cholesky(gram + 1e-12 * np.trace(gram) / dim * np.eye(dim))
    return Memory(paths, root, training.noise_multiplier)


def _jacobian(training: Training, model: Floats, number: int) -> Floats:
    """Derivative of a round's sum by the model, shape (dim, dim), by central differences."""
    out = np.empty((model.size, model.size))
    for column in range(model.size):
        moved = model.copy()
        moved[column] = model[column] + _SMALL
        up = training.clipped_sum(moved, number)
        moved[column] = model[column] - _SMALL
        out[:, column] = (up - training.clipped_sum(moved, number)) / (
            2 * _SMALL
        )
    return out
