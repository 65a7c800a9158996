"""The server optimizers, which move the model by a round's mean update: SGD and Adam.

Examples:
    >>> optimizer = ServerSGD(learning_rate=0.5)
    >>> _, step = optimizer.update(optimizer.init(2), np.array([2.0, 0.0]), t=0)
    >>> step
    array([1., 0.])
"""

import dataclasses

import numpy as np

from fl_epe.checks import (
    Floats,
    Floats32,
    NamedArrays,
    Vector,
    check_positive,
    raise_invalid,
)
from fl_epe.mechanism.clipping import blocks

_BETA1 = 0.9  # the decay of the first moment of Adam
_BETA2 = 0.99  # the decay of the second moment
_EPSILON = 1e-3  # the term that is added to the root of the second moment


@dataclasses.dataclass(frozen=True)
class ServerSGD:
    """SGD with momentum: ``v = momentum * v + mean``, ``theta = theta + learning_rate * v``.

    Here ``mean`` is the mean of the clients' updates (local minus global model). It is a descent
    direction, so it is added.

    Attributes:
        learning_rate: the learning rate, > 0.
        momentum: the momentum, in [0, 1).
    """

    learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        if not 0 <= self.momentum < 1:
            raise_invalid("momentum", self.momentum, "in [0, 1)")

    def init(self, dim: int) -> NamedArrays:
        """The initial state: a velocity of zero, in float32 like the model."""
        return {"velocity": np.zeros(dim, np.float32)}

    def update(
        self, state: NamedArrays, mean: Floats, t: int
    ) -> tuple[NamedArrays, Floats]:
        """The next state, and the step to add to the model, both in float64.

        Args:
            state: the state before the round.
            mean: the mean update of the round, shape ``(dim,)``.
            t: the index of the round, from 0.
        """
        velocity = np.float64(self.momentum) * state["velocity"]
        velocity += mean
        return {"velocity": velocity}, np.float64(self.learning_rate) * velocity

    def undo(self, velocity: Vector, step: Vector) -> tuple[Vector, Vector]:
        """The next velocity and the round's mean, from a ``step`` and the velocity before it.

        This is the inverse of `update`, for an adversary who sees only models. The results have
        the dtype of ``step``.
        """
        dtype = step.dtype.type
        next_velocity = step / dtype(self.learning_rate)
        return next_velocity, next_velocity - dtype(self.momentum) * velocity


def discounted_sums(values: Floats, decay: float) -> Floats:
    """Each value plus ``decay`` times the sum before it, along the first axis.

    With the means of rounds and the momentum, these are the velocities of `ServerSGD`.
    """
    sums = values.copy()
    for t in range(1, len(sums)):
        sums[t] += decay * sums[t - 1]
    return sums


def sgd_weights(learning_rates: Floats, momentum: float) -> Floats:
    """The weight of each round's mean in ``theta_T - theta_0`` of `ServerSGD`.

    It is ``w_t = sum over s >= t of learning_rates[s] * momentum^(s - t)``, shape ``(rounds,)``.

    Args:
        learning_rates: the learning rate of each round, shape ``(rounds,)``.
        momentum: the momentum.
    """
    weights = np.array(learning_rates, np.float64)
    for t in range(len(weights) - 2, -1, -1):
        weights[t] += momentum * weights[t + 1]
    return weights


@dataclasses.dataclass(frozen=True)
class ServerAdam:
    """The server optimizer Adam (Reddi et al. 2021, FedAdam), with bias correction.

    Attributes:
        learning_rate: the learning rate, > 0.
    """

    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)

    def init(self, dim: int) -> NamedArrays:
        """The initial state: moments of zero, in float32 like the model."""
        return {
            "first": np.zeros(dim, np.float32),
            "second": np.zeros(dim, np.float32),
        }

    def update(
        self, state: NamedArrays, mean: Floats, t: int
    ) -> tuple[NamedArrays, Floats]:
        """The next state, and the step to add to the model, both in float64.

        Args:
            state: the state before the round.
            mean: the mean update of the round, shape ``(dim,)``.
            t: the index of the round, from 0.
        """
        # In an array, so that NumPy computes the powers below. Python's powers differ in the last
        # bit for some t, and the same run would have other results.
        num_updates = np.array([t + 1.0])
        first = _BETA1 * state["first"] + (1 - _BETA1) * mean
        second = _BETA2 * state["second"] + (1 - _BETA2) * np.square(mean)
        direction = first / (1 - _BETA1**num_updates)
        scale = np.sqrt(second / (1 - _BETA2**num_updates)) + _EPSILON
        state = {"first": first, "second": second}
        return state, self.learning_rate * direction / scale


ServerOptimizer = ServerSGD | ServerAdam
"""The optimizers by which the server moves the model."""


def advance(
    optimizer: ServerOptimizer,
    state: NamedArrays,
    theta: Floats32,
    mean: Floats,
    t: int,
    step: Floats | None,
) -> tuple[NamedArrays, Floats32]:
    """The next state and model, computed block by block in float64 and stored in float32.

    Args:
        optimizer: the server optimizer.
        state: the state of the optimizer.
        theta: the model, shape ``(dim,)``.
        mean: the mean update of the round, shape ``(dim,)``.
        t: the index of the round, from 0.
        step: if not ``None``, an array into which the optimizer's step is written, ``(dim,)``, in
            float64.
    """
    next_theta = np.empty_like(theta)
    next_state = {name: np.empty_like(values) for name, values in state.items()}
    for block in blocks(len(theta)):
        block_state = {name: values[block] for name, values in state.items()}
        new_block_state, block_step = optimizer.update(
            block_state, mean[block], t
        )
        next_theta[block] = block_step + theta[block]
        if step is not None:
            step[block] = block_step
        for name, values in new_block_state.items():
            next_state[name][block] = values
    return next_state, next_theta
