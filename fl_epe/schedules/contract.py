"""Participation schedules: who takes part in which round.

A schedule is a frozen dataclass. What anybody may know (how many rounds, how often) is a field;
what only the server knows (the population, the generator) is an argument of `Schedule.cohorts`.
Canaries are scheduled by a schedule of the same kind as the clients'.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Cohort = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
    """Who takes part in each of ``rounds`` rounds.

    The law treats all participants alike: any permutation of the numbers in ``[0, population)``
    leaves it as it is. So a canary that is scheduled among the clients, or by a schedule of the
    same kind, takes part as they do.
    """

    kind: ClassVar[str]
    """Name of the kind of schedule."""

    rounds: int

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"Expected rounds={self.rounds} >= 1.")

    @abc.abstractmethod
    def participations(self) -> float:
        """Expected number of rounds in which one participant takes part."""

    @abc.abstractmethod
    def most_participations(self) -> int:
        """The most rounds in which any participant takes part; ``rounds`` if nothing limits it."""

    @abc.abstractmethod
    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """The cohort of every round: sorted, distinct numbers in ``[0, population)``.

        A generator with the same seed gives the same cohorts in every process.
        """

    def cohort_size(self, population: int) -> float:
        """Expected number of participants in a round."""
        return population * self.participations() / self.rounds


@dataclasses.dataclass(frozen=True)
class Epochs(Schedule, abc.ABC):
    """Everybody takes part ``floor(epochs)`` or ``ceil(epochs)`` times, at most once in a round."""

    epochs: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.epochs <= self.rounds:
            raise ValueError(f"Expected epochs={self.epochs} in (0, rounds={self.rounds}].")

    def participations(self) -> float:
        """Expected participations: ``epochs``."""
        return self.epochs

    def most_participations(self) -> int:
        """See `Schedule.most_participations`: ``epochs``, rounded up."""
        return math.ceil(self.epochs)


@dataclasses.dataclass(frozen=True)
class ShuffledEpochs(Epochs):
    """Everybody in a fresh random order, epoch after epoch, spread evenly over the rounds.

    This is the paper's schedule, for clients (epochs over the data) and for canaries (repeats).
    Guarantee: everybody takes part ``floor(epochs)`` or ``ceil(epochs)`` times, at most once in a
    round, and the sizes of any two cohorts differ by at most one. Where one round spans the end
    of an epoch and the start of the next, those already in it come later in the new order.
    """

    kind: ClassVar[str] = "epochs"

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`."""
        slots = round(self.epochs * population)
        queue = np.empty(0, np.int64)
        for t in range(self.rounds):
            size = (t + 1) * slots // self.rounds - t * slots // self.rounds
            if size > len(queue):
                queue = np.concatenate([queue, _next_epoch(rng, population, queue, size)])
            yield np.sort(queue[:size])
            queue = queue[size:]


def _next_epoch(rng: np.random.Generator, population: int, tail: Cohort, size: int) -> Cohort:
    """A permutation whose first ``size - len(tail)`` entries are not in ``tail``."""
    order = rng.permutation(population)
    if not len(tail):
        return order
    repeated = np.isin(order, tail)
    fresh, late = order[~repeated], order[repeated]
    head = size - len(tail)
    rest = np.concatenate([fresh[head:], late])
    return np.concatenate([fresh[:head], rng.permutation(rest)])


@dataclasses.dataclass(frozen=True)
class Poisson(Schedule):
    """Everybody takes part in every round independently with probability ``rate``.

    Guarantee: the participation of each is a sequence of independent coins, so that the
    subsampled Gaussian mechanism's privacy amplification applies (add/remove adjacency).
    """

    kind: ClassVar[str] = "poisson"

    rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rate <= 1:
            raise ValueError(f"Expected rate={self.rate} in (0, 1].")

    def participations(self) -> float:
        """Expected participations: ``rate * rounds``."""
        return self.rate * self.rounds

    def most_participations(self) -> int:
        """See `Schedule.most_participations`: nothing limits it."""
        return self.rounds

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`."""
        for _ in range(self.rounds):
            size = rng.binomial(population, self.rate)
            yield np.sort(rng.choice(population, size, replace=False, shuffle=False))


def presence(schedule: Schedule, population: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Who takes part when, as a boolean array of shape ``(rounds, population)``."""
    out = np.zeros((schedule.rounds, population), bool)
    for row, cohort in zip(out, schedule.cohorts(population, rng), strict=True):
        row[cohort] = True
    return out
