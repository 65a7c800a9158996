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
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

Cohort = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Coins:
    """A client takes part in each of ``rounds`` rounds with probability ``rate``, independently.

    Attributes:
        rounds: how many rounds there are to take part in.
        rate: probability of taking part in one of them, in [0, 1].
        condition: words to add to "takes part by coins", such as ", in the busiest class".
    """

    rounds: int
    rate: float
    condition: str = ""

    def thinned(self, keep: float) -> Coins:
        """The coins of those who, having been drawn, stay with probability ``keep``."""
        return dataclasses.replace(self, rate=self.rate * keep)


@dataclasses.dataclass(frozen=True)
class FixedCohorts:
    """Each of ``rounds`` rounds draws ``size`` clients of ``available``, without replacement.

    Attributes:
        rounds: how many rounds there are to be drawn in.
        available: clients from whom a cohort is drawn.
        size: of a cohort.
        condition: words to add to "cohorts of fixed size".
    """

    rounds: int
    available: int
    size: int
    condition: str = ""


@dataclasses.dataclass(frozen=True)
class PrivacyLaw:
    """What a schedule promises about one client's participation, for `fl_epe.accounting`.

    Attributes:
        most: the most rounds in which any client takes part; ``None`` if nothing limits them.
        coins: independent coins that an adversary may not know, so that sampling amplifies.
        counts: the law of the number of participations, where it is binomial.
        cohorts: fresh cohorts of fixed size that an adversary may not know.
    """

    most: int | None = None
    coins: Coins | None = None
    counts: Coins | None = None
    cohorts: FixedCohorts | None = None


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
    """Who takes part in each of ``rounds`` rounds.

    The law treats all participants alike: any permutation of the numbers in ``[0, population)``
    leaves it as it is. So a canary that is scheduled among the clients, or by a schedule of the
    same kind, takes part as they do.
    """

    kind: ClassVar[str]
    """Name of the kind of schedule."""

    unknown_rounds: ClassVar[Literal["coins", "epochs"] | None] = None
    """How one client's rounds are drawn, for an adversary who does not know them.

    "coins": in each round independently, with the same probability. "epochs": once in each of
    equally long stretches, in any of their rounds. ``None`` where neither holds.
    """

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

    def privacy_law(self, population: int) -> PrivacyLaw:
        """What theorems may count on, for whichever of ``population`` clients takes part most.

        A schedule that promises more than a limit on participations overrides this.
        """
        most = self.most_participations()
        return PrivacyLaw(most=None if most >= self.rounds > 1 else most)


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


def presence(schedule: Schedule, population: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Who takes part when, as a boolean array of shape ``(rounds, population)``."""
    out = np.zeros((schedule.rounds, population), bool)
    for row, cohort in zip(out, schedule.cohorts(population, rng), strict=True):
        row[cohort] = True
    return out
