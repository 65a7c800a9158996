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

from fl_epe.checks import ArgumentError, check_rate
from fl_epe.schedules.client_law import ClientLaw
from fl_epe.schedules.draws import Cohort, even_sizes


@dataclasses.dataclass(frozen=True)
class Coins:
    """A client takes part in each of ``rounds`` rounds with probability ``rate``, independently.

    Attributes:
        rounds: number of rounds in which the client may take part.
        rate: probability of taking part in each of them, in [0, 1].
        condition: text to append to "takes part by coins", such as ", in the busiest class".
    """

    rounds: int
    rate: float
    condition: str = ""

    def thinned(self, keep: float) -> Coins:
        """The coins of a client who, once drawn, takes part with probability ``keep``."""
        return dataclasses.replace(self, rate=self.rate * keep)


@dataclasses.dataclass(frozen=True)
class FixedCohorts:
    """Each of ``rounds`` rounds draws ``size`` clients of ``available``, without replacement.

    Attributes:
        rounds: number of rounds in which a client may be drawn.
        available: number of clients from whom a cohort is drawn.
        size: number of clients in a cohort.
        condition: text to append to "cohorts of fixed size".
    """

    rounds: int
    available: int
    size: int
    condition: str = ""


@dataclasses.dataclass(frozen=True)
class PrivacyLaw:
    """What a schedule promises about one client's participation, for `fl_epe.accounting`.

    Attributes:
        most: the most rounds in which any client takes part.
        coins: set if each round is decided by an independent coin. Sampling then amplifies
            privacy against an adversary who does not know the rounds.
        counts: set if the number of participations of a client drawn at random is at most
            binomial: its rounds and rate. Otherwise `Schedule.client_law` says how often it comes.
        cohorts: set if each round draws a fresh cohort of fixed size. Sampling then amplifies
            privacy against an adversary who does not know the rounds.
    """

    most: int
    coins: Coins | None = None
    counts: Coins | None = None
    cohorts: FixedCohorts | None = None


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
    """Who takes part in each of ``rounds`` rounds.

    All participants are treated alike: renumbering them does not change the distribution. So a
    canary that is scheduled among the clients, or by a schedule of the same kind, takes part as
    they do.

    Attributes:
        rounds: number of rounds, at least 1.
    """

    kind: ClassVar[str]
    """Name of the kind of schedule."""

    unknown_rounds: ClassVar[Literal["coins", "epochs"] | None] = None
    """How one client's rounds are drawn: "coins", "epochs" or ``None`` if it is neither.

    "coins": in each round independently, with the same probability. "epochs": once in each of
    several equally long blocks of rounds, uniformly within the block.
    """

    rounds: int

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ArgumentError("Expected {rounds} >= 1.", rounds=self.rounds)

    @abc.abstractmethod
    def participations(self) -> float:
        """Expected number of rounds in which one participant takes part."""

    def most_participations(self) -> int:
        """The most rounds in which any participant takes part; ``rounds`` if nothing limits it."""
        return self.rounds

    @abc.abstractmethod
    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """The cohort of every round: sorted, distinct numbers in ``[0, population)``.

        A generator with the same seed gives the same cohorts in every process.
        """

    def cohort_size(self, population: int) -> float:
        """Expected number of participants in a round."""
        return population * self.participations() / self.rounds

    def privacy_law(self, population: int) -> PrivacyLaw:
        """What holds for every one of ``population`` clients, as theorems need it.

        By default the limit on participations; other schedules promise more.
        """
        return PrivacyLaw(self.most_participations())

    def client_law(self, population: int) -> ClientLaw | None:
        """The exact law of one client's rounds; ``None`` where none in closed form is known.

        It is the law of a single client: with cohorts of fixed size clients depend on each other.

        Args:
            population: number of clients.
        """
        return None


@dataclasses.dataclass(frozen=True)
class Epochs(Schedule, abc.ABC):
    """Everybody takes part ``floor(epochs)`` or ``ceil(epochs)`` times, at most once in a round.

    Attributes:
        rounds: number of rounds.
        epochs: expected participations of each participant, in (0, rounds].
    """

    epochs: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.epochs <= self.rounds:
            raise ArgumentError(
                "Expected {epochs} in (0, {rounds}].", epochs=self.epochs, rounds=self.rounds
            )

    def participations(self) -> float:
        """Expected participations: ``epochs``."""
        return self.epochs

    def most_participations(self) -> int:
        """``epochs``, rounded up."""
        return math.ceil(self.epochs * (1 - 1e-12))


@dataclasses.dataclass(frozen=True)
class Rated(Schedule, abc.ABC):
    """Everybody takes part in each round with the same probability.

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

    def _sizes(self, population: int) -> NDArray[np.int64]:
        """Sizes of cohorts that together have ``rate`` times the population, spread evenly."""
        return even_sizes(round(self.rate * population * self.rounds), self.rounds)


def presence(schedule: Schedule, population: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Who is in each round, as a boolean array of shape ``(rounds, population)``."""
    out = np.zeros((schedule.rounds, population), bool)
    for row, cohort in zip(out, schedule.cohorts(population, rng), strict=True):
        row[cohort] = True
    return out
