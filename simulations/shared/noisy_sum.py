"""The right mechanism beside which broken ones are played."""

import numpy as np

from fl_epe.checks import Floats
from fl_epe.conformance.games import AuditedMechanism, clipped
from fl_epe.mechanism import gaussian_noise


class NoisySum(AuditedMechanism):
    """Clip each update, add them up, add Gaussian noise, divide: right DP-SGD or DP-FedAvg.

    Its sensitivity is the clip norm for add-or-remove and zero-out, twice that for substitute.

    Args:
        clip_norm: C > 0.
        noise_multiplier: z ≥ 0; the noise has a standard deviation of z·C in each coordinate.
        denominator: what the noisy sum is divided by, such as the expected size of a batch.
    """

    def __init__(
        self,
        clip_norm: float,
        noise_multiplier: float,
        denominator: float = 1.0,
    ) -> None:
        self.clip_norm, self.noise_multiplier = clip_norm, noise_multiplier
        self.denominator = denominator

    def release(self, updates: Floats, rng: np.random.Generator) -> Floats:
        """The noisy mean, shape (d,)."""
        total = clipped(updates, self.clip_norm).sum(axis=0)
        noise = gaussian_noise(
            rng, total.size, self.noise_multiplier * self.clip_norm
        )
        return np.asarray((total + noise) / self.denominator)
