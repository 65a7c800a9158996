"""Mechanisms under test: anything that makes one released vector of many updates.

A mechanism may be a round of federated learning (its updates are clients') or a step of DP-SGD
(they are gradients of examples); a game does not tell them apart. One with a state, such as a clip
norm that adapts, starts anew at ``reset``.

Examples:
    >>> import numpy as np
    >>> noisy_sum = NoisySum(clip_norm=1.0, noise_multiplier=0.0)
    >>> noisy_sum.release(np.array([[0.5, 0.0], [0.0, 7.0]]), np.random.default_rng(1))
    array([0.5, 1. ])
"""

from __future__ import annotations

import abc
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.checks import raise_invalid
from fl_epe.mechanism import gaussian_noise

Vector = NDArray[np.float64]
Updates = NDArray[np.float64]
"""The updates, or gradients of examples, of one step before they are clipped, shape (n, d)."""


class AuditedMechanism(abc.ABC):
    """What is audited: one step, from updates to what is released."""

    @abc.abstractmethod
    def release(self, updates: Updates, rng: np.random.Generator) -> ArrayLike:
        """What is released of the updates of one step.

        Args:
            updates: shape (n, d), n ≥ 0. The last row may be the canary's; a mechanism that looks
                at the order of rows is played with that order.
            rng: of all its noise, so that a game with a seed repeats.

        Returns:
            Shape (d,).
        """

    def reset(self) -> None:  # noqa: B027 (most mechanisms have no state)
        """Forget earlier steps, as at the beginning of a run."""


class NoisySum(AuditedMechanism):
    """Clip each update, add them up, add Gaussian noise, divide: right DP-SGD or DP-FedAvg.

    Its sensitivity is the clip norm for add-or-remove and zero-out, twice that for substitute.

    Args:
        clip_norm: C > 0.
        noise_multiplier: z ≥ 0; the noise has a standard deviation of z·C in each coordinate.
        denominator: what the noisy sum is divided by, such as the expected size of a batch.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, clip_norm: float, noise_multiplier: float, denominator: float = 1.0) -> None:
        for name, value in (("clip_norm", clip_norm), ("denominator", denominator)):
            if not 0 < value < math.inf:
                raise_invalid(name, value, "> 0, finite")
        if not 0 <= noise_multiplier < math.inf:
            raise_invalid("noise_multiplier", noise_multiplier, ">= 0, finite")
        self.clip_norm, self.noise_multiplier = clip_norm, noise_multiplier
        self.denominator = denominator

    def release(self, updates: Updates, rng: np.random.Generator) -> Vector:
        """The noisy mean, shape (d,)."""
        total = clipped(updates, self.clip_norm).sum(axis=0)
        noise = gaussian_noise(rng, total.size, self.noise_multiplier * self.clip_norm)
        return np.asarray((total + noise) / self.denominator)


def clipped(updates: Updates, clip_norm: float) -> Updates:
    """Each row of ``updates``, shape (n, d), scaled down to ``clip_norm`` if it is longer."""
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    return np.asarray(updates * (clip_norm / np.maximum(norms, clip_norm)))
