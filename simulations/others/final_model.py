"""A whole training run as one mechanism, of which only the final model is released.

The other clients' data, their rounds and the initial model are fixed and known, as in the
definition of differential privacy; only the noise of the rounds is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.conformance import games
from fl_epe.mechanism import ServerSGD, sgd_weights
from simulations.others.two_layer import Floats, TwoLayer

Batch = tuple[Floats, NDArray[np.int64]]


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """What every run of it has in common; its rounds are counted from 0.

    Attributes:
        network: what is trained.
        start: the initial model, shape (dim,).
        batches: inputs and labels of each round's records.
        noise_multiplier: z.
        clip_norm: C.
        server: SGD, with momentum or without.
    """

    network: TwoLayer
    start: Floats
    batches: Sequence[Batch]
    noise_multiplier: float
    clip_norm: float
    server: ServerSGD

    @property
    def rounds(self) -> int:
        """Number of rounds T."""
        return len(self.batches)

    @property
    def weights(self) -> Floats:
        """Weight of each round's mean in what training adds to the model, shape (T,)."""
        return sgd_weights(
            np.full(self.rounds, self.server.learning_rate),
            self.server.momentum,
        )

    @property
    def size(self) -> float:
        """What the noisy sum is divided by: the records of the first round and a canary."""
        return len(self.batches[0][1]) + 1.0

    def clipped_sum(self, model: Floats, number: int) -> Floats:
        """Sum of the updates of round ``number``'s records at ``model``, shape (dim,)."""
        gradients = self.network.gradients(model, *self.batches[number])
        return -gradients.sum(gradients.scales(self.clip_norm))

    def train(
        self,
        canary: Floats,
        present: Sequence[int],
        rng: np.random.Generator | None,
    ) -> Floats:
        """The model after every round, shape (T + 1, dim).

        Args:
            canary: the update that joins the rounds of ``present``, of the clip norm's length.
            present: their numbers.
            rng: of the noise; ``None`` for none.
        """
        models = np.empty((self.rounds + 1, self.network.dim))
        models[0] = self.start
        state = self.server.init(self.network.dim)
        for number in range(self.rounds):
            total = self.clipped_sum(models[number], number)
            if number in present:
                total = total + canary
            if rng is not None:
                std = self.noise_multiplier * self.clip_norm
                total = total + std * rng.standard_normal(total.size)
            state, step = self.server.update(state, total / self.size, number)
            models[number + 1] = models[number] + step
        return models


class FinalModel(games.AuditedMechanism):
    """A whole run of which θ_T − θ_0 is released; its one update is the canary's.

    Args:
        training: the run.
        present: rounds in which the canary takes part.
    """

    def __init__(self, training: Training, present: Sequence[int]) -> None:
        self.training, self.present = training, tuple(present)

    def release(
        self, updates: NDArray[np.float64], rng: np.random.Generator
    ) -> ArrayLike:
        """The displacement, shape (dim,)."""
        training = self.training
        canary = np.asarray(
            games.clipped(updates, training.clip_norm).sum(axis=0)
        )
        models = training.train(canary, self.present, rng)
        return np.asarray(models[-1] - models[0])
