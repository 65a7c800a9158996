"""Participation schedules: who takes part in which round.

A schedule is a frozen dataclass. Public facts (the number of rounds, the rate) are its fields;
facts that only the server knows (the population, the generator) are arguments of
`Schedule.cohorts`. Canaries are scheduled by a schedule of the same kind as the clients'.
"""

import abc
import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from fl_epe.checks import (
    ArgumentError,
    Booleans,
    Integers,
    check_rate,
    raise_invalid,
)
from fl_epe.schedules.law import ParticipationLaw

# Relative rounding error of ``epochs`` that should be a whole number.
_ROUNDING = 1e-12

Cohort = Integers
"""The ids of the participants of one round."""


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
    """A participation schedule, which draws the cohort of each of ``rounds`` rounds.

    Participants are exchangeable: renumbering them does not change the distribution. So a
    canary that is scheduled among the clients, or by a schedule of the same kind, has the same
    distribution of participations as a client.

    Attributes:
        rounds: number of rounds, at least 1.
    """

    kind: ClassVar[str]
    """Name of the kind of schedule."""

    drawn_by_clients: ClassVar[bool] = False
    """Whether each client can draw its rounds itself, without a server that knows who is online."""

    part_time: ClassVar[bool] = False
    """Whether clients need to be online only at times that they choose."""

    rounds: int

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise_invalid("rounds", self.rounds, ">= 1")

    @abc.abstractmethod
    def participations(self) -> float:
        """Expected number of rounds in which one participant takes part."""

    def most_participations(self) -> int:
        """The largest number of rounds of any participant; ``rounds`` if there is no limit."""
        return self.rounds

    @abc.abstractmethod
    def cohorts(
        self, population: int, rng: np.random.Generator
    ) -> Iterator[Cohort]:
        """The cohort of every round: sorted, distinct ids in ``[0, population)``.

        A generator with the same seed gives the same cohorts in every process.
        """

    def cohort_size(self, population: int) -> float:
        """Expected number of participants in a round."""
        return population * self.participations() / self.rounds

    def law(self, population: int) -> ParticipationLaw:
        """The participation law of one of ``population`` clients; by default only its limit.

        Each kind of schedule adds its guarantees by `dataclasses.replace`.
        """
        return ParticipationLaw(
            self.rounds,
            self.participations(),
            self.most_participations(),
            self.kind,
        )


@dataclasses.dataclass(frozen=True)
class Epochs(Schedule, abc.ABC):
    """Each participant has ``floor(epochs)`` or ``ceil(epochs)`` rounds, each at most once.

    Attributes:
        rounds: number of rounds.
        epochs: expected participations of each participant, in (0, rounds].
    """

    epochs: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.epochs <= self.rounds:
            raise ArgumentError(
                "Expected {epochs} in (0, {rounds}].",
                epochs=self.epochs,
                rounds=self.rounds,
            )

    def participations(self) -> float:
        """Expected participations: ``epochs``."""
        return self.epochs

    def most_participations(self) -> int:
        """``epochs``, rounded up."""
        return math.ceil(self.epochs * (1 - _ROUNDING))


@dataclasses.dataclass(frozen=True)
class Rated(Schedule, abc.ABC):
    """Each participant takes part in each round with the same probability.

    Attributes:
        rounds: number of rounds.
        rate: probability of taking part in a round, in (0, 1].
    """

    rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rate("rate", self.rate)

    def participations(self) -> float:
        """Expected participations: ``rate * rounds``."""
        return self.rate * self.rounds

    def _sizes(self, population: int) -> Integers:
        """Even cohort sizes with a mean of ``rate`` times the population, rounded in total."""
        return even_sizes(
            round(self.rate * population * self.rounds), self.rounds
        )


def even_sizes(total: int, rounds: int) -> Integers:
    """Cohort sizes that add up to ``total``, spread evenly.

    The sizes of any ``b`` consecutive rounds add up to ``b * total / rounds``, rounded down or
    up. So sizes differ by at most one.
    """
    # The products are Python integers, as those of NumPy would overflow.
    ends = [t * total // rounds for t in range(rounds + 1)]
    return np.asarray(np.diff(np.array(ends)), np.int64)


def draw(rng: np.random.Generator, population: int, size: int) -> Cohort:
    """A uniformly random set of ``size`` distinct ids in ``[0, population)``, in any order."""
    return rng.choice(population, size, replace=False, shuffle=False)


def presence(
    schedule: Schedule,
    population: int,
    rng: np.random.Generator,
    first: int | None = None,
) -> Booleans:
    """Whether each participant is in each round.

    Args:
        schedule: the participation schedule.
        population: number of participants.
        rng: the generator that draws them.
        first: number of the first participants to which the result is limited; by default all.

    Returns:
        An array of shape ``(rounds, population)``, or ``(rounds, first)``.
    """
    columns = population if first is None else first
    present = np.zeros((schedule.rounds, columns), bool)
    cohorts = schedule.cohorts(population, rng)
    for row, cohort in zip(present, cohorts, strict=True):
        row[cohort[cohort < columns]] = True
    return present
