"""Substitute ε by direct numerical integration, to check the accountant against.

It shares nothing with dp-accounting: the two mixtures are integrated over a fine grid of outputs,
each output's privacy loss is split between the two cells around it so that its mean stays, and the
T-fold sum is one power of a Fourier transform. The answer is not rounded up or down.
"""

import math

import numpy as np
import scipy

OUTPUTS = 2_000_001
CELLS = 2**20
SPREAD = 14.0  # standard deviations of the output that are integrated


def epsilon_by_quadrature(
    z: float,
    q: float,
    rounds: int,
    delta: float,
    *,
    outputs: int = OUTPUTS,
    cells: int = CELLS,
) -> float:
    """ε of T steps of (1−q)·N(0, z²) + q·N(1, z²) against the same with −1, at ``delta``."""
    points = np.linspace(-1 - SPREAD * z, 1 + SPREAD * z, outputs)
    present, absent = (_log_density(points, z, q, sign) for sign in (1, -1))
    weights = np.exp(present)
    weights /= weights.sum()
    losses = present - absent
    mean = float(weights @ losses)
    std = math.sqrt(float(weights @ (losses - mean) ** 2))
    span = max(60 * std * math.sqrt(rounds), 3 * (losses.max() - losses.min()))
    cell = span / cells
    place = (losses - losses.min()) / cell
    left = np.floor(place).astype(int)
    right_share = place - left
    pmf = np.bincount(left, weights * (1 - right_share), cells)
    pmf += np.bincount(left + 1, weights * right_share, cells)[:cells]
    total = np.fft.irfft(np.fft.rfft(pmf) ** rounds, cells)
    # Positions are known modulo the span; the sum lies around its mean.
    at = rounds * losses.min() + cell * np.arange(cells)
    at += span * np.round((rounds * mean - at) / span)

    def excess(epsilon: float) -> float:
        above = at > epsilon
        return float(total[above] @ -np.expm1(epsilon - at[above])) - delta

    if excess(0.0) <= 0:
        return 0.0
    return float(scipy.optimize.brentq(excess, 0.0, span))


def _log_density(
    outputs: np.ndarray, z: float, q: float, sign: int
) -> np.ndarray:
    zero = -(outputs**2) / (2 * z**2) + (math.log1p(-q) if q < 1 else -math.inf)
    moved = -((outputs - sign) ** 2) / (2 * z**2) + math.log(q)
    return np.logaddexp(zero, moved)
