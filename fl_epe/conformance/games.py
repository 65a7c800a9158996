"""Games against a mechanism: observations of a world with the canary and of one without it.

`play_game` makes observations, `play` is the game of one round for an aggregation function. Both
give `Scores`, of which `find_evidence` says ε, its interval, a proof and what becomes of a claim:
how far the mechanism can be told apart in a world of the auditor's making. That no bound was found
proves nothing.

The two worlds are two neighbouring data sets. By adjacency, the canary's record is replaced by none
("add-or-remove"), by one whose update is zero ("zero-out"), or by the one that is farthest from it,
−c ("substitute", Pradhan et al. 2025).

A canary is its update, shape (d,), or a function from the step to it, where steps are counted from
0 through the whole game. It should be as long as the clip norm or longer: a shorter one uses less
than the mechanism allows.

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
import functools
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

_NOISE, _SAMPLING = 1, 2  # streams of a game's seed


class AuditedMechanism(abc.ABC):
    """What is audited: one step, from many updates (or gradients of examples) to one release."""

    @abc.abstractmethod
    def release(self, updates: Floats, rng: np.random.Generator) -> ArrayLike:
        """What is released of the updates of one step.

        Args:
            updates: before they are clipped, shape (n, d), n ≥ 0. The last row may be the canary's;
                a mechanism that looks at the order of rows is played with that order.
            rng: of all its noise, so that a game with a seed repeats.

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
    """One number from an observation, the larger the more it says "took part".

    The adversary knows the canary's update in each step, but not in which steps it was sampled.

    Attributes:
        name: in words, as reports print it.
        score: from what was released in each of s steps, shape (s, d), and the canary's update in
            these steps, shape (s, d), zero where it takes no part, to a number.
    """

    name: str
    score: Callable[[Floats, Floats], float]


def _along(released: Floats, canaries: Floats) -> float:
    pairs = zip(released, canaries, strict=True)
    return float(
        np.array([r @ (c / np.linalg.norm(c)) for r, c in pairs if c.any()]).sum()
    )


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
    """Scores of ``observations`` of each world, each of a fresh mechanism, in random order.

    Args:
        mechanism: under test; reset before each observation.
        adjacency: what differs between the two worlds.
        canary: the canary's update, shape (d,), or a function from the step to it.
        observations: in each of the two worlds, at least 2.
        steps: of the mechanism in one observation, at least 1.
        sampling_rate: probability, in (0, 1], with which the canary's record is in a step's batch;
            in a step without it, both worlds are alike.
        others: updates of the other records, shape (n, d), or a function from the step to these.
        statistic: from what was released to a score.
        two_runs: make one run in each world instead, in which every step is an observation (Nasr et
            al. 2023, section 4): cheap where a step is a step of training, and valid as long as the
            noise of steps is independent.
        seed: of the order of the observations, the canary's sampling and the mechanism's noise.

    Raises:
        ValueError: if an argument is out of range, or an update or what was released has another
            shape or is not finite.
    """
    if observations < 2:
        raise_invalid("observations", observations, ">= 2")
    if steps < 1 or (two_runs and steps != 1):
        raise_invalid(
            "steps", steps, "to be 1 with two_runs=True" if two_runs else ">= 1"
        )
    check_rate("sampling_rate", sampling_rate)
    noise = generator(seed, _NOISE)
    sampling = generator(seed, _SAMPLING)
    fixed = None if callable(canary) else _canary(canary)

    def step(here: bool, number: int) -> tuple[Floats, Floats]:
        """What is released in one step of one world, and the canary's update in it."""
        own = fixed if fixed is not None else _vector("canary", canary(number))  # type: ignore[operator]
        rest = _rows(others(number) if callable(others) else others, own.size)
        if sampling_rate == 1 or sampling.random() < sampling_rate:
            rest = world(here, adjacency, own, rest)
        return _vector("released", mechanism.release(rest, noise), own.size), own.copy()

    number = np.arange(2 * observations)
    takes_part = (
        number if two_runs else generator(seed).permutation(number)
    ) < observations
    scores = np.empty(takes_part.size)
    for i, here in enumerate(takes_part):
        if not two_runs or i in (0, observations):
            mechanism.reset()
        seen = [step(bool(here), i * steps + s) for s in range(steps)]
        scores[i] = statistic.score(*map(np.array, zip(*seen, strict=True)))
    return Scores(scores[takes_part], scores[~takes_part], statistic=statistic.name)


def play(
    aggregate: Callable[[list[Floats]], ArrayLike],
    updates: ArrayLike,
    canary: ArrayLike,
    *,
    trials: int,
    seed: int = 0,
) -> Scores:
    """Scores of the one-round membership game for an aggregation function, zero-out adjacency.

    The smallest case of `play_game`: it audits one step (Nasr et al. 2023, Tramèr et al. 2022).
    ``aggregate`` gets the updates and, in random order, the canary or zeros; it must draw fresh
    noise in every call.

    Args:
        aggregate: from n + 1 updates, each of shape (d,), to what is released, shape (d,).
        updates: of the other clients, shape (n, d), n ≥ 0.
        canary: the update to hide, shape (d,); scores are inner products with its direction.
        trials: number of calls with the canary, and without it, at least 2; none may affect others.
        seed: of the order of calls.

    Raises:
        ValueError: for a wrong shape, a value that is not finite, or an argument out of range.
    """
    game = functools.partial(
        play_game, _OfFunction(aggregate), "zero-out", canary, seed=seed
    )
    with rename_arguments(observations="trials"):
        return game(observations=trials, others=updates)


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
    nothing: float | Floats = 0.0,
) -> Floats:
    """The updates of a step with the canary, which is last, or without it.

    Args:
        present: whether the canary is there.
        adjacency: what takes its place where it is not.
        canary: its update, shape (d,).
        others: updates of the other records, shape (n, d).
        nothing: entries of the update that stands for none in "zero-out".
    """
    known: Adjacency = checked_type("adjacency", adjacency, Adjacency)
    match known:
        case _ if present:
            place = [canary]
        case "add-or-remove":
            place = []
        case "zero-out":
            place = [np.zeros_like(canary) + nothing]
        case "substitute":
            place = [-canary]
        case _:
            assert_never(known)
    return np.vstack([others, *place])


def _canary(values: ArrayLike) -> Floats:
    canary = _vector("canary", values)
    if not canary.any():
        raise_invalid("norm", 0.0, "> 0, with some entry of the canary that is not 0")
    return canary


def _vector(name: str, values: ArrayLike, size: int | None = None) -> Floats:
    vector = np.array(values, np.float64)
    if (
        vector.ndim != 1
        or size not in (None, vector.size)
        or not np.all(np.isfinite(vector))
    ):
        raise_invalid(f"{name}.shape", vector.shape, f"to be ({size or 'd'},), finite")
    return vector


def _rows(others: ArrayLike, dim: int) -> Floats:
    rows = np.array(others, np.float64)
    if rows.size == 0:
        return np.empty((0, dim))
    if rows.ndim != 2 or rows.shape[1] != dim or not np.all(np.isfinite(rows)):
        raise_invalid("others.shape", rows.shape, f"to be (n, {dim}), finite")
    return rows
