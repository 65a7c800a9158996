"""A round of DP-FedAvg: the clipped sum of updates, its noise, and what the server does then.

Updates are clipped and added up block by block, on a grid that makes the sum exact (timings:
docs/notes/clipped-sum.md). Server optimizers are SGD with momentum, or Adam. The clip norm is
fixed, or follows a quantile of the update norms: Algorithm 1 of Andrew et al. (2021),
"Differentially Private Learning with Adaptive Clipping", with votes of ±1/2.

Examples:
    >>> rule = FixedClip(1.0)
    >>> rule.update(rule.init(), unclipped=3, voted=4, rng=np.random.default_rng(0))
    1.0
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fl_epe.checks import (
    ArgumentError,
    Floats,
    Floats32,
    NamedArrays,
    Vector,
    check_positive,
    check_probability,
    raise_invalid,
)

_GRID_BITS = 32  # see docs/notes/clipped-sum.md
BLOCK = 1 << 15
"""Values that are worked on at once."""


def blocks(dim: int) -> Iterator[slice]:
    """The places of 0 … ``dim`` − 1, `BLOCK` at a time."""
    return (slice(start, min(start + BLOCK, dim)) for start in range(0, dim, BLOCK))


def norm(vector: Vector, less: Vector | None = None, share: float = 1.0) -> float:
    """Euclidean norm of ``vector``, or of ``vector − share · less``, shape ``(dim,)``.

    Accumulated in float64; infinite or NaN if an entry is.
    """
    square, flat = 0.0, np.ravel(vector)
    for here in blocks(flat.size):
        part = flat[here] if less is None else flat[here] - share * less[here]
        square += float(np.sum(np.square(part, dtype=np.float64)))
    return math.sqrt(square)


class ClippedSum:
    """A sum of clipped updates that is exact, so that their order does not matter.

    Longer updates are scaled down to the clip norm, and entries are cut (towards zero) to a grid of
    about ``clip_norm / 2^32``; a sum of up to 2^20 updates is then exact in float64.

    Args:
        dim: length of the updates.
        clip_norm: norm to which longer updates are scaled down.

    Raises:
        ValueError: if ``clip_norm`` is not positive and finite.
    """

    def __init__(self, dim: int, clip_norm: float) -> None:
        check_positive("clip_norm", clip_norm)
        self.clip_norm = clip_norm
        self._grid = 2.0 ** (math.frexp(clip_norm)[1] - _GRID_BITS)
        self._multiples = np.zeros(dim)  # of the grid
        self._block = np.empty(min(dim, BLOCK))

    def add(self, update: Vector) -> bool | None:
        """Clip ``update`` of shape ``(dim,)`` and add it.

        Returns:
            Whether its norm was at most the clip norm. ``None`` if nothing was added, because an
            entry was NaN or infinite or the update was not floating-point.

        Raises:
            ValueError: if ``update`` has another shape.
        """
        if update.shape != self._multiples.shape:
            raise_invalid(
                "update.shape", update.shape, f"to be {self._multiples.shape}"
            )
        if not np.issubdtype(update.dtype, np.floating):
            return None
        length = norm(update)
        if not math.isfinite(length):
            return None
        scale = self.scale(length)
        for here in blocks(len(update)):
            block = self._block[: here.stop - here.start]
            np.copyto(block, update[here])
            block *= scale
            np.trunc(block, out=block)
            self._multiples[here] += block
        return length <= self.clip_norm

    def scale(self, lengths: Any, where: Callable[..., Any] = np.where) -> Any:
        """Factors that clip updates with norms ``lengths``, in units of the grid.

        The products are then cut to whole numbers, towards zero.

        Args:
            lengths: a number or an array, finite.
            where: as `numpy.where`, of the library that the array is from.
        """
        longer = lengths > self.clip_norm
        # Rounding of the scale and of the products could lift the norm by a few parts in 10^16.
        shrink = (
            self.clip_norm / where(longer, lengths, self.clip_norm) * (1 - 2.0**-50)
        )
        return where(longer, shrink, 1.0) / self._grid

    def add_multiples(self, multiples: Floats) -> None:
        """Add a clipped update that was made elsewhere with `scale`, float64, shape ``(dim,)``."""
        self._multiples += multiples

    def total(self) -> Floats:
        """The sum, shape ``(dim,)``."""
        return self._multiples * self._grid

    def finish(self) -> Floats:
        """The sum, in the memory of this object, which is of no use any more."""
        self._multiples *= self._grid
        return self._multiples


def gaussian_noise(rng: np.random.Generator, dim: int, std: float) -> Floats:
    """``dim`` independent normal draws with standard deviation ``std`` ≥ 0, float64."""
    noise = rng.standard_normal(dim) if std else np.zeros(dim)
    noise *= std
    return noise


_BETA1, _BETA2 = 0.9, 0.99  # decay of the first and second moment of Adam
_EPSILON = 1e-3  # added to the root of the second moment


@dataclasses.dataclass(frozen=True)
class FixedClip:
    """A clip norm that stays the same.

    Attributes:
        norm: the clip norm, > 0.
    """

    norm: float

    def __post_init__(self) -> None:
        check_positive("norm", self.norm)

    def init(self) -> float:
        """The clip norm of the first round."""
        return self.norm

    def update(
        self, clip_norm: float, unclipped: float, voted: float, rng: np.random.Generator
    ) -> float:
        """The clip norm of the next round: the same."""
        return clip_norm

    def sum_noise_multiplier(self, noise_multiplier: float) -> float:
        """Noise multiplier of the sum: all of it, as no count is released."""
        return noise_multiplier


@dataclasses.dataclass(frozen=True)
class AdaptiveClip:
    """A clip norm that follows a quantile of the update norms (Andrew et al. 2021).

    ``C' = C * exp(-rate * (b - quantile))``, with ``b`` the noisy share of voters whose update was
    not clipped. Each voter adds 1/2 to a sum if its update was not clipped and -1/2 if it was;
    N(0, count_std^2) is added and the sum is released. One client changes it by at most 1/2, as
    `sum_noise_multiplier` assumes. ``b`` is the sum over the expected ``voters``, plus 1/2.

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
        check_positive("initial_norm", self.initial_norm)
        check_positive("rate", self.rate)
        check_positive("voters", self.voters)
        check_probability("quantile", self.quantile)
        if not 0 <= self.count_std < math.inf:
            raise_invalid("count_std", self.count_std, "in [0, inf)")

    def init(self) -> float:
        """The clip norm of the first round."""
        return self.initial_norm

    def update(
        self, clip_norm: float, unclipped: float, voted: float, rng: np.random.Generator
    ) -> float:
        """The clip norm of the next round, from the ``unclipped`` among those who ``voted``."""
        noisy = unclipped - voted / 2 + rng.normal(0.0, self.count_std)
        return clip_norm * math.exp(
            -self.rate * (noisy / self.voters + 0.5 - self.quantile)
        )

    def sum_noise_multiplier(self, noise_multiplier: float) -> float:
        """Noise multiplier of the sum, beside which the count of sensitivity 1/2 is released.

        ``z_sum = (z^-2 - (2 count_std)^-2)^(-1/2)`` (Andrew et al. 2021, Theorem 1), so that sum
        and count together cost what one Gaussian mechanism with ``noise_multiplier`` costs.

        Raises:
            ValueError: if the count alone costs as much as the whole budget, or more.
        """
        z, most = noise_multiplier, 2 * self.count_std
        if z == 0:
            return 0.0
        rest = z**-2 - most**-2 if z < most else 0.0
        if rest <= 0:
            text = "Expected {noise_multiplier} < 2 * {count_std}: the noisy count alone would "
            text += f"spend the whole budget. Set the latter to {z:g}, with 15% more noise on the "
            text += "sum, or use a fixed clip norm."
            raise ArgumentError(text, noise_multiplier=z, count_std=self.count_std)
        return 1 / math.sqrt(rest)


ClipNorm = FixedClip | AdaptiveClip
"""The clip norm of every round: fixed, or adapted to the norms of the updates."""


@dataclasses.dataclass(frozen=True)
class ServerSGD:
    """Server optimizer ``v = momentum * v + mean``, ``theta = theta + learning_rate * v``.

    The mean of the clients' updates (local minus global model) points downhill, so it is added.

    Attributes:
        learning_rate: > 0.
        momentum: in [0, 1).
    """

    learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        if not 0 <= self.momentum < 1:
            raise_invalid("momentum", self.momentum, "in [0, 1)")

    def init(self, dim: int) -> NamedArrays:
        """Zero velocity; kept in float32, as the model is."""
        return {"velocity": np.zeros(dim, np.float32)}

    def update(
        self, state: NamedArrays, mean: Floats, t: int
    ) -> tuple[NamedArrays, Floats]:
        """The next state, and the step to add to the model, in round t from 0."""
        velocity = np.float64(self.momentum) * state["velocity"]
        velocity += mean
        return {"velocity": velocity}, np.float64(self.learning_rate) * velocity

    def undo(self, velocity: Vector, step: Vector) -> tuple[Vector, Vector]:
        """The next velocity and the mean, from the velocity before a ``step`` of the model.

        The inverse of `update`, for an adversary who sees only models. Has the dtype of ``step``.
        """
        real = step.dtype.type
        after = step / real(self.learning_rate)
        return after, after - real(self.momentum) * velocity


def sgd_weights(learning_rates: Floats, momentum: float) -> Floats:
    """Weight of each round's mean in ``theta_T - theta_0`` of `ServerSGD`.

    ``w_t = sum over s >= t of learning_rates[s] * momentum^(s - t)``, shape ``(rounds,)``; the
    learning rate may differ between rounds.
    """
    weights = np.array(learning_rates, np.float64)
    for t in range(len(weights) - 2, -1, -1):
        weights[t] += momentum * weights[t + 1]
    return weights


@dataclasses.dataclass(frozen=True)
class ServerAdam:
    """Server optimizer Adam (Reddi et al. 2021, FedAdam), with bias correction.

    Attributes:
        learning_rate: > 0.
    """

    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)

    def init(self, dim: int) -> NamedArrays:
        """Zero moments; kept in float32, as the model is."""
        first, second = np.zeros((2, dim), np.float32)
        return {"first": first, "second": second}

    def update(
        self, state: NamedArrays, mean: Floats, t: int
    ) -> tuple[NamedArrays, Floats]:
        """The next state, and the step to add to the model, in round t from 0."""
        step = np.array([t + 1.0])
        first = _BETA1 * state["first"] + (1 - _BETA1) * mean
        second = _BETA2 * state["second"] + (1 - _BETA2) * np.square(mean)
        direction = first / (1 - _BETA1**step)
        scale = np.sqrt(second / (1 - _BETA2**step)) + _EPSILON
        state = {"first": first, "second": second}
        return state, self.learning_rate * direction / scale


ServerOptimizer = ServerSGD | ServerAdam
"""How the server moves the model by the mean update of a round."""


def advance(
    optimizer: ServerOptimizer,
    state: NamedArrays,
    theta: Floats32,
    mean: Floats,
    t: int,
    step: Floats | None,
) -> tuple[NamedArrays, Floats32]:
    """The next state and model, worked out block by block.

    Args:
        optimizer: how to move.
        state: of the optimizer.
        theta: the model, shape ``(dim,)``.
        mean: update of the round, shape ``(dim,)``.
        t: number of the round, from 0.
        step: takes what is added to the model, shape ``(dim,)``.
    """
    next_theta = np.empty_like(theta)
    next_state = {name: np.empty_like(values) for name, values in state.items()}
    for here in blocks(len(theta)):
        before = {name: values[here] for name, values in state.items()}
        after, update = optimizer.update(before, mean[here], t)
        next_theta[here] = update + theta[here]
        if step is not None:
            step[here] = update
        for name, values in after.items():
            next_state[name][here] = values
    return next_state, next_theta
