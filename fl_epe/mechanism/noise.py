"""The Gaussian noise of a round, and how its budget is shared with the noisy count of votes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import ArgumentError


def gaussian_noise(rng: np.random.Generator, dim: int, std: float) -> NDArray[np.float64]:
    """``dim`` independent normal draws with standard deviation ``std`` ≥ 0, float64."""
    noise = rng.standard_normal(dim) if std else np.zeros(dim)
    noise *= std
    return noise


def split_noise_multiplier(noise_multiplier: float, count_std: float) -> float:
    """Noise multiplier of the sum when a noisy count of sensitivity 1/2 is released beside it.

    ``z_sum = (z^-2 - (2 count_std)^-2)^(-1/2)`` (Andrew et al. 2021, Theorem 1), so that sum and
    count together cost what one Gaussian mechanism with ``noise_multiplier`` costs.

    Raises:
        ValueError: if the count alone costs as much as the whole budget, or more.
    """
    if noise_multiplier == 0:
        return 0.0
    rest = noise_multiplier**-2 - (2 * count_std) ** -2 if noise_multiplier < 2 * count_std else 0.0
    if rest <= 0:
        raise ArgumentError(
            "Expected {noise_multiplier} < 2 * {count_std}: the noisy count alone would spend the "
            "whole budget. Raise it, or use a fixed clip norm.",
            noise_multiplier=noise_multiplier,
            count_std=count_std,
        )
    return 1 / math.sqrt(rest)
