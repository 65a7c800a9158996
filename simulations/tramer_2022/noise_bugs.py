"""Mechanisms of the right sensitivity whose noise is too small, shared, repeated or guessable.

Each clips updates to C and adds them up; where nothing else is said, the
correct version is `NoisySum`. Each
claims one Gaussian mechanism with ``noise_multiplier`` a step, add-or-remove.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.conformance.games import AuditedMechanism, clipped
from fl_epe.mechanism import gaussian_noise

Vector = NDArray[np.float64]
Updates = NDArray[np.float64]  # of shape (n, d)
Matrix = NDArray[np.float64]


class TooLittleNoise(AuditedMechanism):
    """Broken: noise is too small by ``factor``, as where a variance is taken for a deviation."""

    def __init__(
        self, clip_norm: float, noise_multiplier: float, factor: float
    ) -> None:
        self.sensitivity, self.noise_multiplier, self.factor = (
            clip_norm,
            noise_multiplier,
            factor,
        )

    def release(self, updates: Updates, rng: np.random.Generator) -> Vector:
        """The sum and too little noise, shape (d,)."""
        total = clipped(updates, self.sensitivity).sum(axis=0)
        std = self.noise_multiplier * self.sensitivity / self.factor
        return np.asarray(total + gaussian_noise(rng, total.size, std))


class FewSeeds(AuditedMechanism):
    """Broken: the noise comes from one of ``seeds`` seeds, such as a time in seconds.

    Each coordinate looks like Gaussian noise, but whoever knows the code knows all the noise that
    can be drawn (`noises`): what remains is one of them with the canary and none without it.
    """

    def __init__(
        self, clip_norm: float, noise_multiplier: float, seeds: int = 100
    ) -> None:
        self.sensitivity, self.noise_multiplier, self.seeds = (
            clip_norm,
            noise_multiplier,
            seeds,
        )
        self._tables: dict[int, Matrix] = {}

    def noises(self, dim: int) -> Matrix:
        """All noise that can be drawn, shape (seeds, d)."""
        if dim not in self._tables:
            std = self.noise_multiplier * self.sensitivity
            rngs = map(np.random.default_rng, range(self.seeds))
            self._tables[dim] = np.array(
                [gaussian_noise(rng, dim, std) for rng in rngs]
            )
        return self._tables[dim]

    def release(self, updates: Updates, rng: np.random.Generator) -> Vector:
        """The sum and noise, shape (d,)."""
        total = clipped(updates, self.sensitivity).sum(axis=0)
        return np.asarray(
            total + self.noises(total.size)[rng.integers(self.seeds)]
        )


class SharedNoise(AuditedMechanism):
    """Broken: tensors of one shape get the same noise, as where each is seeded with the step.

    The noise of each coordinate is right, but the difference of two tensors has none.
    """

    def __init__(
        self, clip_norm: float, noise_multiplier: float, tensors: int = 2
    ) -> None:
        self.sensitivity, self.noise_multiplier = clip_norm, noise_multiplier
        self.tensors = tensors

    def release(self, updates: Updates, rng: np.random.Generator) -> Vector:
        """The sum and noise, shape (d,) with d a multiple of the number of tensors."""
        total = clipped(updates, self.sensitivity).sum(axis=0)
        std = self.noise_multiplier * self.sensitivity
        noise = gaussian_noise(rng, total.size // self.tensors, std)
        return np.asarray(total + np.tile(noise, self.tensors))


class RepeatedNoise(AuditedMechanism):
    """Broken: a run that is resumed after ``resumed_after`` steps draws the same noise once more.

    As where a checkpoint lacks the generator's state, or the seed is set anew when a run starts.
    The difference of two steps with the same noise has none.
    """

    def __init__(
        self, clip_norm: float, noise_multiplier: float, resumed_after: int
    ) -> None:
        self.sensitivity, self.noise_multiplier = clip_norm, noise_multiplier
        self.resumed_after = resumed_after
        self._drawn: list[Vector] = []
        self._step = 0

    def reset(self) -> None:
        """Begin a run."""
        self._drawn, self._step = [], 0

    def release(self, updates: Updates, rng: np.random.Generator) -> Vector:
        """The sum and noise, shape (d,)."""
        total = clipped(updates, self.sensitivity).sum(axis=0)
        if self._step < self.resumed_after:
            std = self.noise_multiplier * self.sensitivity
            self._drawn.append(gaussian_noise(rng, total.size, std))
        noise = self._drawn[self._step % self.resumed_after]
        self._step += 1
        return np.asarray(total + noise)


class NoiseOfWorkers(AuditedMechanism):
    """Each of several workers averages its share of the batch and adds noise; the server averages.

    With ``right`` each worker's noise is sqrt(workers) times that of the whole mean,
    z·C / batch_size, so that their average has just that. Broken, each adds the noise of the whole
    mean before averaging, which makes it smaller by sqrt(workers). Both claim a server that is
    trusted, or that only sees the average.
    """

    def __init__(
        self,
        clip_norm: float,
        noise_multiplier: float,
        batch_size: float,
        workers: int,
        *,
        right: bool,
    ) -> None:
        self.clip_norm, self.noise_multiplier = clip_norm, noise_multiplier
        self.batch_size, self.workers = batch_size, workers
        self.sensitivity = clip_norm / batch_size
        self._std = (
            noise_multiplier
            * self.sensitivity
            * (math.sqrt(workers) if right else 1.0)
        )

    def release(self, updates: Updates, rng: np.random.Generator) -> Vector:
        """The average of the workers' noisy averages, shape (d,)."""
        short, dim = clipped(updates, self.clip_norm), updates.shape[1]
        share = self.batch_size / self.workers
        noisy = [
            short[worker :: self.workers].sum(axis=0) / share
            + gaussian_noise(rng, dim, self._std)
            for worker in range(self.workers)
        ]
        return np.asarray(np.mean(noisy, axis=0))


class PrefixSums(AuditedMechanism):
    """Releases in step t the sum of all steps so far, with correlated noise (DP-FTRL, DP-MF).

    With the matrix A of prefix sums factored as A = B·C, releasing A·x + B·n is the Gaussian
    mechanism for C·x: n has a standard deviation of z·C times the longest column of the factor C.
    That is the claim, for a record that takes part in one step of a run of at most ``steps``.
    ``right=False`` is the wrong triangular factor: C·n is added in place of B·n.

    Args:
        clip_norm: of each update.
        noise_multiplier: z, of the whole run.
        factor: C, lower triangular of full rank, shape (steps, steps).
        right: whether the noise is B·n.
    """

    def __init__(
        self,
        clip_norm: float,
        noise_multiplier: float,
        factor: ArrayLike,
        *,
        right: bool = True,
    ) -> None:
        self.factor = np.array(factor, np.float64)
        self.clip_norm, self.noise_multiplier = clip_norm, noise_multiplier
        self.workload = np.tril(np.ones(self.factor.shape))
        decoder = self.workload @ np.linalg.inv(self.factor)
        self._of_noise = decoder if right else self.factor
        longest = np.linalg.norm(self.factor, axis=0).max()
        self.sensitivity = clip_norm
        self._std = noise_multiplier * clip_norm * float(longest)
        self.reset()

    def reset(self) -> None:
        """Begin a run."""
        self._sum: Vector | float = 0.0
        self._fresh: list[Vector] = []

    def release(self, updates: Updates, rng: np.random.Generator) -> Vector:
        """The noisy sum of all steps so far, shape (d,)."""
        step = len(self._fresh)
        self._sum = self._sum + clipped(updates, self.clip_norm).sum(axis=0)
        self._fresh.append(gaussian_noise(rng, updates.shape[1], self._std))
        noise = self._of_noise[step, : step + 1] @ np.array(self._fresh)
        return np.asarray(self._sum + noise)


def banded_factor(steps: int) -> Matrix:
    """The factor C of a banded matrix mechanism with two bands, 1 and 1/2, shape (steps, steps)."""
    return np.asarray(np.eye(steps) + 0.5 * np.eye(steps, k=-1))
