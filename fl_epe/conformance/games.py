"""Membership games: observations of a world with the canary and of a world without it.

`play_game` makes observations of a mechanism, and `play` those of one round of an aggregation
function. Both return `Scores`. `find_evidence` estimates ε from them, with an interval and a lower
bound, and compares it with a claim. The absence of a bound proves nothing: the scores are of one
canary and one statistic.

The two worlds are neighbouring data sets. By adjacency, the canary's record is removed
("add-or-remove"), or its update becomes zero ("zero-out"), or −c, which is the farthest from the
canary c ("substitute", Pradhan et al. 2025).

A canary is an update, shape (d,), or a function from the step to an update, where steps are
counted from 0 through the whole game. Its norm should be the clip norm or more: a shorter
canary does not use all that the mechanism allows.

Examples:
    >>> class NoisySum(AuditedMechanism):
    ...     def release(self, updates, rng):
    ...         return clipped(updates, 1.0).sum(axis=0) + rng.normal(0, 1, updates.shape[1])
    >>> canary = np.eye(20)[0]
    >>> scores = play_game(NoisySum(), "add-or-remove", canary, observations=1000, seed=1)
    >>> bool(scores.observed.mean() > scores.unobserved.mean() + 0.5)
    True
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Literal, assert_never

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.auditing.scoring import Scores
from fl_epe.checks import (
    Floats,
    check_rate,
    checked_type,
    raise_invalid,
    rename_arguments,
)
from fl_epe.seeding import generator

Adjacency = Literal["add-or-remove", "zero-out", "substitute"]
ByStep = ArrayLike | Callable[[int], ArrayLike]

# Streams of a game's seed.
_NOISE = 1
_SAMPLING = 2


class AuditedMechanism(abc.ABC):
    """A mechanism under audit: a step from many updates (or gradients of examples) to a release."""

    @abc.abstractmethod
    def release(self, updates: Floats, rng: np.random.Generator) -> ArrayLike:
        """What the mechanism releases of the updates of one step.

        Args:
            updates: the updates before clipping, shape (n, d), n ≥ 0. The last row may be the
                canary's; a mechanism that depends on the order of rows is audited with that
                order.
            rng: the source of all its noise, so that a game with a seed can be repeated.

        Returns:
            Shape (d,).
        """

    def reset(self) -> None:  # noqa: B027 (most mechanisms have no state)
        """Forget earlier steps, as at the beginning of a run."""


def clipped(updates: Floats, clip_norm: float) -> Floats:
    """Each row of ``updates``, shape (n, d), scaled down to ``clip_norm`` if it is longer."""
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    return np.asarray(updates * (clip_norm / np.maximum(norms, clip_norm)))


@dataclasses.dataclass(frozen=True)
class Statistic:
    """A score of an observation: a larger score is stronger evidence of the canary's presence.

    The adversary knows the canary's update in each step, but not the steps in which it was sampled.

    Attributes:
        name: the name in words, as reports print it.
        score: a function from the releases of s steps, shape (s, d), and the canary's update in
            these steps, shape (s, d), zero where it takes no part, to a number.
    """

    name: str
    score: Callable[[Floats, Floats], float]


def _along(released: Floats, canaries: Floats) -> float:
    products = [
        release @ (canary / np.linalg.norm(canary))
        for release, canary in zip(released, canaries, strict=True)
        if canary.any()
    ]
    return float(np.sum(products))


ALONG_CANARY = Statistic("along the canary", _along)
"""Inner product with the canary's direction, summed over steps: the likelihood ratio's statistic
where noise is Gaussian and the canary takes part in every step."""


def play_game(
    mechanism: AuditedMechanism,
    adjacency: Adjacency,
    canary: ByStep,
    *,
    observations: int,
    steps: int = 1,
    sampling_rate: float = 1.0,
    others: ByStep = (),
    statistic: Statistic = ALONG_CANARY,
    two_runs: bool = False,
    seed: int = 0,
) -> Scores:
    """Scores of ``observations`` observations of each world, made in random order.

    The mechanism is reset before each observation.

    Args:
        mechanism: the mechanism under test.
        adjacency: the difference between the two worlds.
        canary: the canary's update, shape (d,), or a function from the step to it.
        observations: the number of observations of each of the two worlds, at least 2.
        steps: the number of steps of the mechanism in one observation, at least 1.
        sampling_rate: probability, in (0, 1], with which the canary's record is in a step's batch;
            in a step without it, both worlds are alike.
        others: updates of the other records, shape (n, d), or a function from the step to these.
        statistic: the score of an observation.
        two_runs: whether to make one run in each world instead, in which every step is an
            observation (Nasr et al. 2023, section 4). This is cheap if a step is a step of
            training, and valid if the noise of the steps is independent.
        seed: the seed of the order of the observations, the canary's sampling and the
            mechanism's noise.

    Raises:
        ValueError: if an argument is out of range, or an update or a release has another shape or
            is not finite.
    """
    if observations < 2:
        raise_invalid("observations", observations, ">= 2")
    if two_runs and steps != 1:
        raise_invalid("steps", steps, "to be 1 with two_runs=True")
    if steps < 1:
        raise_invalid("steps", steps, ">= 1")
    check_rate("sampling_rate", sampling_rate)
    noise = generator(seed, _NOISE)
    sampling = generator(seed, _SAMPLING)
    if not callable(canary) and not np.any(canary):
        wanted = "> 0, with some entry of the canary that is not 0"
        raise_invalid("norm", 0.0, wanted)

    def step(is_present: bool, index: int) -> tuple[Floats, Floats]:
        """The release of one step of one world, and the canary's update in this step."""
        update = _vector("canary", _at_step(canary, index))
        rows = _rows(_at_step(others, index), update.size)
        if sampling_rate == 1 or sampling.random() < sampling_rate:
            rows = world(is_present, adjacency, update, rows)
        released = _vector(
            "released", mechanism.release(rows, noise), update.size
        )
        return released, update

    order = np.arange(2 * observations)
    if not two_runs:
        order = generator(seed).permutation(order)
    takes_part = order < observations
    scores = np.empty(takes_part.size)
    for i, is_present in enumerate(takes_part):
        # With two runs, the order is not random, and each world is one run.
        if not two_runs or i in (0, observations):
            mechanism.reset()
        pairs = [step(bool(is_present), i * steps + s) for s in range(steps)]
        released = np.array([release for release, _ in pairs])
        canaries = np.array([update for _, update in pairs])
        scores[i] = statistic.score(released, canaries)
    return Scores(
        scores[takes_part], scores[~takes_part], statistic=statistic.name
    )


def play(
    aggregate: Callable[[list[Floats]], ArrayLike],
    updates: ArrayLike,
    canary: ArrayLike,
    *,
    trials: int,
    seed: int = 0,
) -> Scores:
    """Scores of the one-round membership game for an aggregation function, zero-out adjacency.

    This is the smallest case of `play_game`, an audit of one step (Nasr et al. 2023, Tramèr et
    al. 2022). ``aggregate`` gets the other clients' updates and either the canary or zeros, in
    random order over the calls; it must draw fresh noise in every call.

    Args:
        aggregate: a function from n + 1 updates, each of shape (d,), to a release, shape (d,).
        updates: the updates of the other clients, shape (n, d), n ≥ 0.
        canary: the update to hide, shape (d,); scores are inner products with its direction.
        trials: the number of calls with the canary, and that of calls without it, at least 2.
            No call may affect later ones.
        seed: the seed of the order of calls.

    Raises:
        ValueError: for a wrong shape, a value that is not finite, or an argument out of range.
    """
    with rename_arguments(observations="trials"):
        return play_game(
            _OfFunction(aggregate),
            "zero-out",
            canary,
            observations=trials,
            others=updates,
            seed=seed,
        )


class _OfFunction(AuditedMechanism):
    def __init__(self, aggregate: Callable[[list[Floats]], ArrayLike]) -> None:
        self._aggregate = aggregate

    def release(self, updates: Floats, rng: np.random.Generator) -> ArrayLike:
        return self._aggregate([update.copy() for update in updates])


def world(
    present: bool,
    adjacency: Adjacency,
    canary: Floats,
    others: Floats,
    zero_update: float | Floats = 0.0,
) -> Floats:
    """The updates of a step with the canary, which is last, or without it.

    Args:
        present: whether the canary takes part.
        adjacency: the adjacency, which defines the update that replaces an absent canary.
        canary: the canary's update, shape (d,).
        others: the updates of the other records, shape (n, d).
        zero_update: the entries of the update of an absent canary in "zero-out".
    """
    checked: Adjacency = checked_type("adjacency", adjacency, Adjacency)
    match checked:
        case _ if present:
            last_rows = [canary]
        case "add-or-remove":
            last_rows = []
        case "zero-out":
            last_rows = [np.zeros_like(canary) + zero_update]
        case "substitute":
            last_rows = [-canary]
        case _:
            assert_never(checked)
    return np.vstack([others, *last_rows])


def _at_step(values: ByStep, step: int) -> ArrayLike:
    """The values of a step; steps are counted through all observations."""
    return values(step) if callable(values) else values


def _vector(name: str, values: ArrayLike, size: int | None = None) -> Floats:
    vector = np.array(values, np.float64)
    has_size = size is None or vector.size == size
    if vector.ndim != 1 or not has_size or not np.all(np.isfinite(vector)):
        raise_invalid(
            f"{name}.shape", vector.shape, f"to be ({size or 'd'},), finite"
        )
    return vector


def _rows(values: ArrayLike, dim: int) -> Floats:
    rows = np.array(values, np.float64)
    if rows.size == 0:
        return np.empty((0, dim))
    if rows.ndim != 2 or rows.shape[1] != dim or not np.all(np.isfinite(rows)):
        raise_invalid("others.shape", rows.shape, f"to be (n, {dim}), finite")
    return rows
