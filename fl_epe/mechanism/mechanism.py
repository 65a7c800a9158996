"""The DP mechanism of a round: clip, sum, add noise, move the model, move the clip norm.

McMahan et al. (2018) with the adaptive clip norm of Andrew et al. (2021), Algorithm 1.
State goes in and comes out of every `update`; nothing is changed in place.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import check_probability

Vector = NDArray[np.floating]

# Clipped updates are whole multiples of about clip_norm / 2^32, so that float64 adds up to 2^20 of
# them without rounding: a sum has the same bits in any order and on any number of workers.
_GRID_BITS = 32


def norm(vector: Vector) -> float:
    """Euclidean norm, accumulated in float64; infinite or NaN where an entry is."""
    return math.sqrt(float(np.sum(np.square(vector, dtype=np.float64))))


def clip(update: Vector, clip_norm: float) -> tuple[NDArray[np.float64] | None, bool]:
    """Scale ``update`` of shape ``(dim,)`` down to norm ``clip_norm`` where it is longer.

    Entries are cut (towards zero) to a grid of about ``clip_norm / 2^32``; a sum of up to 2^20
    clipped updates is then exact in float64, whatever its order.

    Returns:
        The clipped update as float64, and whether its norm was at most ``clip_norm``. An update
        with a NaN or infinite entry, or one that is not a floating-point vector, is ``None``:
        its client counts as absent.

    Raises:
        ValueError: if ``clip_norm`` is not positive and finite.
    """
    if not 0 < clip_norm < math.inf:
        raise ValueError(f"Expected clip_norm={clip_norm} in (0, inf).")
    if update.ndim != 1 or not np.issubdtype(update.dtype, np.floating):
        return None, False
    length = norm(update)
    if not math.isfinite(length):
        return None, False
    # Rounding of the scale and of the products could lift the norm by a few parts in 10^16.
    scale = 1.0 if length <= clip_norm else clip_norm / length * (1 - 2.0**-50)
    grid = 2.0 ** (math.frexp(clip_norm)[1] - _GRID_BITS)
    clipped = update * np.float64(scale / grid)
    np.trunc(clipped, out=clipped)
    clipped *= grid
    return clipped, length <= clip_norm


def gaussian_noise(rng: np.random.Generator, dim: int, std: float) -> NDArray[np.float64]:
    """``dim`` independent normal draws with standard deviation ``std``."""
    return rng.standard_normal(dim) * std if std else np.zeros(dim)


def split_noise_multiplier(noise_multiplier: float, count_std: float) -> float:
    """Noise multiplier of the sum when a noisy count of sensitivity 1/2 is released beside it.

    ``z_sum = (z^-2 - (2 count_std)^-2)^(-1/2)`` (Andrew et al. 2021, Theorem 1), so that sum and
    count together cost what one Gaussian mechanism with ``noise_multiplier`` costs.

    Raises:
        ValueError: if the count alone already costs more than the whole budget.
    """
    if noise_multiplier == 0:
        return 0.0
    rest = noise_multiplier**-2 - (2 * count_std) ** -2
    if rest <= 0:
        raise ValueError(
            f"Expected noise_multiplier={noise_multiplier} < 2 * count_std={2 * count_std}:"
            " raise count_std or use a fixed clip norm."
        )
    return 1 / math.sqrt(rest)


@dataclasses.dataclass(frozen=True)
class FixedClip:
    """A clip norm that stays."""

    norm: float

    def __post_init__(self) -> None:
        _check_positive("norm", self.norm)

    def init(self) -> float:
        """The clip norm of the first round."""
        return self.norm

    def update(
        self, clip_norm: float, unclipped: float, voted: float, rng: np.random.Generator
    ) -> float:
        """The clip norm of the next round: the same."""
        return clip_norm

    def sum_noise_multiplier(self, noise_multiplier: float) -> float:
        """All of the budget goes to the sum."""
        return noise_multiplier


@dataclasses.dataclass(frozen=True)
class AdaptiveClip:
    """A clip norm that follows a quantile of the update norms (Andrew et al. 2021).

    ``C' = C * exp(-rate * (b - quantile))``, with ``b`` the noisy share of voters whose update was
    not clipped. What is released is the sum of ``1/2`` for each update that was not clipped and
    ``-1/2`` for each that was, plus N(0, count_std^2): one client more or less moves it by 1/2,
    which is what `split_noise_multiplier` takes for granted, and a client who is absent moves
    nothing. ``b`` is that sum over the expected ``voters``, plus 1/2.

    Attributes:
        initial_norm: clip norm of the first round.
        quantile: the share of updates that should not be clipped.
        rate: step size of the geometric update.
        count_std: standard deviation of the noise on the count; 0 for none.
        voters: expected number of clients that vote in a round.
    """

    initial_norm: float
    quantile: float
    rate: float
    count_std: float
    voters: float

    def __post_init__(self) -> None:
        _check_positive("initial_norm", self.initial_norm)
        _check_positive("rate", self.rate)
        _check_positive("voters", self.voters)
        check_probability("quantile", self.quantile)
        if not 0 <= self.count_std < math.inf:
            raise ValueError(f"Expected count_std={self.count_std} in [0, inf).")

    def init(self) -> float:
        """The clip norm of the first round."""
        return self.initial_norm

    def update(
        self, clip_norm: float, unclipped: float, voted: float, rng: np.random.Generator
    ) -> float:
        """The clip norm of the next round, from the ``unclipped`` among those who ``voted``."""
        noisy = unclipped - voted / 2 + rng.normal(0.0, self.count_std)
        return clip_norm * math.exp(-self.rate * (noisy / self.voters + 0.5 - self.quantile))

    def sum_noise_multiplier(self, noise_multiplier: float) -> float:
        """What is left for the sum, see `split_noise_multiplier`."""
        return split_noise_multiplier(noise_multiplier, self.count_std)


ClipNorm = FixedClip | AdaptiveClip
OptimizerState = dict[str, NDArray[np.float64]]


@dataclasses.dataclass(frozen=True)
class ServerSGD:
    """Server optimizer ``v = momentum * v + mean``, ``theta = theta + learning_rate * v``.

    The released mean of the clients' updates (local minus global) is a negative gradient.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        _check_positive("learning_rate", self.learning_rate)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"Expected momentum={self.momentum} in [0, 1).")

    def init(self, dim: int) -> OptimizerState:
        """The velocity, at rest."""
        return {"velocity": np.zeros(dim)}

    def update(
        self, state: OptimizerState, mean: NDArray[np.float64]
    ) -> tuple[OptimizerState, NDArray[np.float64]]:
        """The next state, and the step to add to the model."""
        velocity = self.momentum * state["velocity"] + mean
        return {"velocity": velocity}, np.float64(self.learning_rate) * velocity

    def undo(self, velocity: Vector, step: Vector) -> tuple[Vector, Vector]:
        """The next velocity and the mean, from the velocity before a ``step`` of the model.

        The inverse of `update`, for who sees the model only; in the dtype of ``step``.
        """
        real = step.dtype.type
        after = step / real(self.learning_rate)
        return after, after - real(self.momentum) * velocity

    def weights(self, rounds: int) -> NDArray[np.float64]:
        """Weight of each round's mean in ``theta_T - theta_0``, shape ``(rounds,)``."""
        return sgd_weights(np.full(rounds, self.learning_rate), self.momentum)


def sgd_weights(learning_rates: NDArray[np.float64], momentum: float) -> NDArray[np.float64]:
    """Weight of each round's mean in ``theta_T - theta_0`` of `ServerSGD`.

    ``w_t = sum over s >= t of learning_rates[s] * momentum^(s - t)``; shape as ``learning_rates``,
    ``(rounds,)``, which may decay.
    """
    weights = np.array(learning_rates, np.float64)
    for t in range(len(weights) - 2, -1, -1):
        weights[t] += momentum * weights[t + 1]
    return weights


@dataclasses.dataclass(frozen=True)
class ServerAdam:
    """Server optimizer Adam (Reddi et al. 2021, FedAdam), with bias correction."""

    learning_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        _check_positive("learning_rate", self.learning_rate)
        _check_positive("epsilon", self.epsilon)
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise ValueError(f"Expected {name}={value} in [0, 1).")

    def init(self, dim: int) -> OptimizerState:
        """Zero moments."""
        return {"first": np.zeros(dim), "second": np.zeros(dim), "step": np.zeros(1)}

    def update(
        self, state: OptimizerState, mean: NDArray[np.float64]
    ) -> tuple[OptimizerState, NDArray[np.float64]]:
        """The next state, and the step to add to the model."""
        step = state["step"] + 1
        first = self.beta1 * state["first"] + (1 - self.beta1) * mean
        second = self.beta2 * state["second"] + (1 - self.beta2) * np.square(mean)
        direction = first / (1 - self.beta1**step)
        scale = np.sqrt(second / (1 - self.beta2**step)) + self.epsilon
        state = {"first": first, "second": second, "step": step}
        return state, self.learning_rate * direction / scale

    def weights(self, rounds: int) -> None:
        """``None``: the final model is not linear in the rounds' means."""


ServerOptimizer = ServerSGD | ServerAdam


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"Expected {name}={value} in (0, inf).")
