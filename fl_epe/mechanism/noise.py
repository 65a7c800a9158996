"""Independent Gaussian noise, which a strategy may correlate between rounds."""

import numpy as np

from fl_epe.checks import Floats


def gaussian_noise(rng: np.random.Generator, dim: int, std: float) -> Floats:
    """``dim`` independent normal draws with standard deviation ``std`` ≥ 0, float64."""
    if std == 0:
        return np.zeros(dim)
    noise = rng.standard_normal(dim)
    noise *= std
    return noise
