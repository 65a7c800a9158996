"""Independent Gaussian noise, which `strategies` correlates between rounds."""

import numpy as np

from fl_epe.checks import Floats


def gaussian_noise(rng: np.random.Generator, dim: int, std: float) -> Floats:
    """``dim`` independent normal draws with standard deviation ``std`` ≥ 0, float64."""
    noise = rng.standard_normal(dim) if std else np.zeros(dim)
    noise *= std
    return noise
