"""`PlainDPSGD`: the step of DP-SGD in a few lines of NumPy, to read, to copy or to call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import check_positive
from fl_epe.seeding import generator

Vector = NDArray[np.float64]


class PlainDPSGD:
    """DP-SGD (Abadi et al. 2016) on a model that is one vector.

    Guarantee: with batches by Poisson sampling each step is a subsampled Gaussian mechanism with
    noise multiplier ``noise_multiplier`` under add-or-remove adjacency.

    Args:
        theta: the initial model, shape ``(dim,)``.
        learning_rate: > 0.
        noise_multiplier: z ≥ 0; the noise's deviation is z times the clip norm.
        max_grad_norm: clip norm C of an example's gradient, > 0.
        expected_batch_size: what the noisy sum is divided by, > 0.
        seed: of the noise; the operating system's entropy by default.

    Attributes:
        theta: the model.
        grad_sample: gradients of the batch's examples during a step, else ``None``.
        summed_grad: sum of the last batch's clipped gradients.
        grad: that sum with noise.

    Raises:
        ValueError: for an argument out of range.
    """

    def __init__(
        self,
        theta: NDArray[np.floating],
        *,
        learning_rate: float,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_batch_size: float,
        seed: int | None = None,
    ) -> None:
        check_positive("learning_rate", learning_rate)
        check_positive("max_grad_norm", max_grad_norm)
        check_positive("expected_batch_size", expected_batch_size)
        if not 0 <= noise_multiplier < np.inf:
            raise ValueError(f"Expected noise_multiplier={noise_multiplier} in [0, inf).")
        if theta.ndim != 1 or not len(theta):
            raise ValueError(f"Expected theta.shape={theta.shape} to be (dim,).")
        self.theta: Vector = np.array(theta, np.float64)
        self.learning_rate = learning_rate
        self.noise_multiplier = noise_multiplier
        self.max_grad_norm = max_grad_norm
        self.expected_batch_size = expected_batch_size
        self.grad_sample: NDArray[np.floating] | None = None
        self.summed_grad: Vector = np.zeros(len(theta))
        self.grad: Vector = np.zeros(len(theta))
        self._noise = generator(seed)

    def step(self, gradients: NDArray[np.floating]) -> Vector:
        """One step, from the gradients of the batch's examples, shape ``(batch, dim)``.

        Returns:
            The new model.

        Raises:
            ValueError: for gradients of another shape.
        """
        if gradients.ndim != 2 or gradients.shape[1] != len(self.theta):
            raise ValueError(
                f"Expected gradients.shape={gradients.shape} to be (batch, {len(self.theta)})."
            )
        self.grad_sample = gradients
        norms = np.linalg.norm(gradients, axis=1)
        self.summed_grad = np.minimum(1.0, self.max_grad_norm / (norms + 1e-12)) @ gradients
        self.add_noise()
        self.grad_sample = None
        self.theta = self.theta - self.learning_rate * self.grad / self.expected_batch_size
        return self.theta

    def add_noise(self) -> None:
        """Make ``grad`` of ``summed_grad``."""
        deviation = self.noise_multiplier * self.max_grad_norm
        self.grad = self.summed_grad + deviation * self._noise.standard_normal(len(self.theta))
