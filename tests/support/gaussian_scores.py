"""Scores of two groups, and the lower bounds that they give."""

from typing import Any

import numpy as np

from fl_epe.auditing.bounds import BOUNDS

DELTA = 1e-5
DIM = 10_000
ALPHA = 0.05


def gaussian_scores(
    shift: float, count: int, seed: int | tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(shift, 1.0, count), rng.normal(0.0, 1.0, count)


def bound_of(
    method: str, observed: np.ndarray, unobserved: np.ndarray, **options: Any
) -> float:
    return BOUNDS[method](observed, unobserved, DELTA, **options)
