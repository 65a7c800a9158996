"""Mechanisms whose noise is right for a sensitivity that is not theirs, beside right ones.

Each says what it claims, for add-or-remove, and what is wrong. ``sensitivity`` is the claimed one,
of what is released; the noise has a standard deviation of ``noise_multiplier`` times that.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.conformance.games import AuditedMechanism, clipped
from fl_epe.mechanism import AdaptiveClip, gaussian_noise

Vector = NDArray[np.float64]
Updates = NDArray[np.float64]  # of shape (n, d)


class ClipsTheMean(AuditedMechanism):
    """Broken: averages first, and clips the average to C, not each update.

    Claims one Gaussian mechanism with ``noise_multiplier`` a step, as one of ``batch_size`` updates
    of norm C moves an average by C / batch_size. But a long update moves the clipped average by up
    to 2·C. The correct version is `NoisySum`.

    Seen in code that clips the gradient of a batch's mean loss, for want of per-example gradients.
    """

    def __init__(
        self, clip_norm: float, noise_multiplier: float, batch_size: float
    ) -> None:
        self.clip_norm, self.noise_multiplier = clip_norm, noise_multiplier
        self.batch_size, self.sensitivity = batch_size, clip_norm / batch_size

    def release(self, updates: Updates, rng: np.random.Generator) -> Vector:
        """The clipped average and noise, shape (d,)."""
        mean = updates.sum(axis=0, keepdims=True) / self.batch_size
        noise = gaussian_noise(
            rng, mean.size, self.noise_multiplier * self.sensitivity
        )
        return np.asarray(clipped(mean, self.clip_norm)[0] + noise)


class SensitivityOverBatch(AuditedMechanism):
    """Broken: divides the sensitivity by the batch size a second time.

    Gradients of a mean loss are divided by the batch size already when they are clipped to C each.
    One example then moves the sum of them by C, not by C / batch_size, for which the noise is.
    Claims one Gaussian mechanism with ``noise_multiplier`` a step. The correct version is
    `NoisySum`.

    Seen in the code of Backpropagation Clipping (Stevens et al. 2022), and in two others
    (Tramèr et al. 2022, section 4).
    """

    def __init__(
        self, clip_norm: float, noise_multiplier: float, batch_size: float
    ) -> None:
        self.clip_norm, self.noise_multiplier = clip_norm, noise_multiplier
        self.batch_size, self.sensitivity = batch_size, clip_norm / batch_size

    def release(self, updates: Updates, rng: np.random.Generator) -> Vector:
        """The sum of clipped shares of the mean and noise, shape (d,)."""
        total = clipped(updates / self.batch_size, self.clip_norm).sum(axis=0)
        noise = gaussian_noise(
            rng, total.size, self.noise_multiplier * self.sensitivity
        )
        return np.asarray(total + noise)


class WeightedSum(AuditedMechanism):
    """Updates clipped to C and weighted by numbers of examples, as in FedAvg.

    With ``most`` it is right: weights are capped there, and the noise is for a sensitivity of
    most·C. With ``most=None`` it is broken: the noise is for a weight of 1, and a client with w
    times as many examples moves the sum by w·C. Both claim one Gaussian mechanism with
    ``noise_multiplier`` a step.

    Args:
        clip_norm: C.
        noise_multiplier: as claimed.
        weights: of the updates by their place, in units of the usual number of examples.
        most: cap of the weights, or ``None``.
    """

    def __init__(
        self,
        clip_norm: float,
        noise_multiplier: float,
        weights: ArrayLike,
        most: float | None = None,
    ) -> None:
        self.clip_norm, self.noise_multiplier = clip_norm, noise_multiplier
        self._weights = np.minimum(
            np.array(weights, np.float64), math.inf if most is None else most
        )
        self.sensitivity = clip_norm * (1.0 if most is None else most)

    def release(self, updates: Updates, rng: np.random.Generator) -> Vector:
        """The weighted sum and noise, shape (d,)."""
        total = self._weights[: len(updates)] @ clipped(updates, self.clip_norm)
        noise = gaussian_noise(
            rng, total.size, self.noise_multiplier * self.sensitivity
        )
        return np.asarray(total + noise)


class OneTensorUnclipped(AuditedMechanism):
    """Broken: the last of two tensors is not clipped, such as a layer that was added later.

    Claims one Gaussian mechanism with ``noise_multiplier`` a step. The correct version is
    `NoisySum`, which clips all tensors together.
    """

    def __init__(self, clip_norm: float, noise_multiplier: float) -> None:
        self.clip_norm, self.noise_multiplier = clip_norm, noise_multiplier
        self.sensitivity = clip_norm

    def release(self, updates: Updates, rng: np.random.Generator) -> Vector:
        """The sum, one half of it clipped, and noise, shape (d,)."""
        half = updates.shape[1] // 2
        first = clipped(updates[:, :half], self.clip_norm)
        total = np.concatenate([first, updates[:, half:]], axis=1).sum(axis=0)
        noise = gaussian_noise(
            rng, total.size, self.noise_multiplier * self.clip_norm
        )
        return np.asarray(total + noise)


class ClippedByTensor(AuditedMechanism):
    """Each of several tensors is clipped on its own, and they are released with one noise.

    To claim a sensitivity of C, each may be as long as ``share``·C: right is 1 / sqrt(tensors).
    Broken is 1, the noise for the wrong clip norm: all tensors together are then as long as
    sqrt(tensors)·C. Both claim one Gaussian mechanism with ``noise_multiplier`` a step.
    """

    def __init__(
        self,
        clip_norm: float,
        noise_multiplier: float,
        tensors: int,
        share: float,
    ) -> None:
        self.clip_norm, self.noise_multiplier = clip_norm, noise_multiplier
        self.tensors, self.share, self.sensitivity = tensors, share, clip_norm

    def release(self, updates: Updates, rng: np.random.Generator) -> Vector:
        """The sum and noise, shape (d,)."""
        parts = np.array_split(updates, self.tensors, axis=1)
        rows = [
            clipped(part, self.share * self.clip_norm).sum(axis=0)
            for part in parts
        ]
        noise = gaussian_noise(
            rng, updates.shape[1], self.noise_multiplier * self.clip_norm
        )
        return np.asarray(np.concatenate(rows) + noise)


class AdaptiveSum(AuditedMechanism):
    """Clips to a norm that follows a quantile of the updates' norms (Andrew et al. 2021).

    ``right=False`` moves the clip norm the wrong way: up where too few updates are clipped already.
    That is a mistake but no leak: in each step the noise is in proportion to that step's clip norm,
    and the clip norm comes of a noisy count, so that no audit of ε can find it. It runs away from
    the norms that it should follow (`strays_from`), and training drowns in noise or stands still.

    Claims one Gaussian mechanism with ``noise_multiplier`` a step, for sum and count together.

    Attributes:
        clip_norm: of the next step.
    """

    def __init__(
        self, rule: AdaptiveClip, noise_multiplier: float, *, right: bool = True
    ) -> None:
        self.rule, self.noise_multiplier, self._sign = (
            rule,
            noise_multiplier,
            1 if right else -1,
        )
        self.clip_norm, self.sensitivity = (
            rule.init(),
            1.0,
        )  # in units of the clip norm
        self._multiplier = rule.sum_noise_multiplier(noise_multiplier)

    def reset(self) -> None:
        """Back to the first clip norm."""
        self.clip_norm = self.rule.init()

    def release(self, updates: Updates, rng: np.random.Generator) -> Vector:
        """The noisy sum, shape (d,), in units of the step's clip norm; then moves the clip norm."""
        before = self.clip_norm
        total = clipped(updates, before).sum(axis=0) / before
        noise = gaussian_noise(rng, total.size, self._multiplier)
        unclipped = int((np.linalg.norm(updates, axis=1) <= before).sum())
        after = self.rule.update(before, unclipped, len(updates), rng)
        self.clip_norm = before * (after / before) ** self._sign
        return np.asarray(total + noise)


def strays_from(
    mechanism: AdaptiveSum,
    updates: Updates,
    steps: int,
    rng: np.random.Generator,
) -> bool:
    """Whether the clip norm ends farther from the quantile that it should follow than it began.

    Args:
        mechanism: is reset.
        updates: the same in each step, shape (n, d).
        steps: of the run.
        rng: of its noise.
    """
    norms = np.linalg.norm(updates, axis=1)
    goal = math.log(float(np.quantile(norms, mechanism.rule.quantile)))
    mechanism.reset()
    before = abs(math.log(mechanism.clip_norm) - goal)
    for _ in range(steps):
        mechanism.release(updates, rng)
    return abs(math.log(mechanism.clip_norm) - goal) > before
