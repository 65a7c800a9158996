"""Participation schedules: who takes part in which round.

A schedule is a frozen dataclass. What anybody may know (how many rounds, how often) is a field;
what only the server knows (the population, the generator) is an argument of `Schedule.cohorts`.
Canaries are scheduled by a schedule of the same kind as the clients'.
"""

import abc
import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import ArgumentError, Floats, check_rate, raise_invalid

Cohort = NDArray[np.int64]
"""The ids of those who take part in one round."""


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
class Pattern:
    """The sets of rounds that a client may have, for noise that is correlated between rounds.

    Attributes:
        most: the most rounds of a client.
        separation: least distance between two of them.
        regular: all distances are ``separation``.
        blocks: first round of each block and the one after its last, if a client has at most one
            round in each; blocks may overlap.
        rate: probability of taking part in each round of such a set, by a coin of its own that
            depends on nothing else; 1 where no such coin is promised.
        uniform: the set has a uniform round of each block, and depends on nothing else.
    """

    most: int
    separation: int = 1
    regular: bool = False
    blocks: tuple[tuple[int, int], ...] = ()
    rate: float = 1.0
    uniform: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class ClientType:
    """Clients whose rounds are drawn in the same way, by events that follow each other in time.

    In each event a client takes part in at most one round. Events are independent but for
    ``rest`` and ``most``.

    Attributes:
        share: probability that a client is of this type.
        events: number of the event of each row, ascending from 0, shape ``(rows,)``.
        rounds: a round of that event, ``(rows,)``.
        chances: probability of taking part in that round, ``(rows,)``; those of an event add up
            to at most 1.
        keep: probability with which a participation counts, once the cap has let it in.
        most: cap: events after so many participations are refused; ``None`` for no cap.
        rest: after taking part in an event a client takes no part in the ``rest - 1`` next ones;
            chances are those of a client who is not resting.
    """

    share: float
    events: NDArray[np.int64]
    rounds: NDArray[np.int64]
    chances: Floats
    keep: float = 1.0
    most: int | None = None
    rest: int = 1

    @classmethod
    def coins(cls, share: float, chances: Floats, rest: int = 1) -> Self:
        """One event a round, with these probabilities of taking part, ``(T,)``."""
        used = np.flatnonzero(chances)
        events = np.arange(len(used)) if rest == 1 else used
        return cls(share, events, used, np.asarray(chances, np.float64)[used], rest=rest)

    @classmethod
    def blocks(cls, share: float, chances: list[tuple[int, Floats]]) -> Self:
        """One event a block of rounds: its first round and the chances of its rounds."""
        starts, parts = zip(*chances, strict=True)
        lengths = [len(part) for part in parts]
        rounds = [start + np.arange(length) for start, length in zip(starts, lengths, strict=True)]
        events = np.repeat(np.arange(len(parts)), lengths)
        return cls(share, events, np.concatenate(rounds), np.concatenate(parts))

    def thinned(self, keep: float) -> Self:
        """Each participation then counts with probability ``keep``."""
        if self.most is None and self.rest == 1:
            return dataclasses.replace(self, chances=self.chances * keep)
        return dataclasses.replace(self, keep=self.keep * keep)

    def capped(self, most: int) -> Self:
        """With a cap on participations."""
        return dataclasses.replace(self, most=min(most, self.most or most))


ClientLaw = tuple[ClientType, ...]  # the types of clients; their shares add up to 1


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
            raise_invalid("rounds", self.rounds, ">= 1")

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

    def pattern(self, population: int) -> Pattern:
        """The sets of rounds that a client may have; by default any, of `most_participations`."""
        return Pattern(self.most_participations())

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
            wanted = "Expected {epochs} in (0, {rounds}]."
            raise ArgumentError(wanted, epochs=self.epochs, rounds=self.rounds)

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


def even_sizes(total: int, rounds: int) -> NDArray[np.int64]:
    """Cohort sizes that add up to ``total``, spread evenly.

    The sizes of any ``b`` consecutive rounds add up to ``b * total / rounds``, rounded down or up.
    So sizes differ by at most one.
    """
    ends = [t * total // rounds for t in range(rounds + 1)]  # would overflow in NumPy
    return np.asarray(np.diff(np.array(ends)), np.int64)


def draw(rng: np.random.Generator, population: int, size: int) -> Cohort:
    """A uniform set of ``size`` distinct numbers in ``[0, population)``, in an arbitrary order."""
    return rng.choice(population, size, replace=False, shuffle=False)


def by_round(when: NDArray[np.integer], rounds: int) -> Iterator[Cohort]:
    """For each round t, the positions at which ``when`` is t, ascending.

    Takes time linear in ``len(when)``.
    """
    # NumPy sorts 16-bit keys by radix.
    keys = when.astype(np.uint16) if rounds <= 2**16 else when
    order = np.argsort(keys, kind="stable")
    start = 0
    for end in np.cumsum(np.bincount(when, minlength=rounds)):
        yield order[start:end]
        start = end


def presence(
    schedule: Schedule, population: int, rng: np.random.Generator, first: int | None = None
) -> NDArray[np.bool_]:
    """Who is in each round, as a boolean array of shape ``(rounds, population)``.

    Args:
        schedule: the participation schedule.
        population: number of participants.
        rng: what draws them.
        first: show only so many of them; of all, only the cohorts are held.
    """
    out = np.zeros((schedule.rounds, population if first is None else first), bool)
    for row, cohort in zip(out, schedule.cohorts(population, rng), strict=True):
        row[cohort[: np.searchsorted(cohort, len(row))]] = True
    return out
