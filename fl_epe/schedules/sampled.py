"""Schedules with equal clients: independent coins, cohorts of fixed size, or epochs."""

import abc
import collections
import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from fl_epe.checks import Floats, Integers, check_count, raise_invalid
from fl_epe.schedules.contract import (
    Cohort,
    Epochs,
    Rated,
    by_round,
    draw,
    even_sizes,
)
from fl_epe.schedules.law import Coins, Events, FixedCohorts, ParticipationLaw


@dataclasses.dataclass(frozen=True)
class Poisson(Rated):
    """Each client takes part in every round independently with probability ``rate``.

    Guarantee: all coins are independent, so that privacy amplification by Poisson subsampling
    applies (add-or-remove adjacency).

    Attributes:
        rounds: number of rounds.
        rate: probability of taking part in a round, in (0, 1].
    """

    kind: ClassVar[str] = "poisson"
    drawn_by_clients: ClassVar[bool] = True

    def cohorts(
        self, population: int, rng: np.random.Generator
    ) -> Iterator[Cohort]:
        """See `Schedule.cohorts`."""
        for _ in range(self.rounds):
            yield np.sort(
                draw(rng, population, rng.binomial(population, self.rate))
            )

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: independent coins."""
        return dataclasses.replace(
            super().law(population),
            hidden=self.rate < 1,
            adjacency="add-or-remove",
            coins=Coins(self.rounds, self.rate),
            events=Events.coins(np.full(self.rounds, self.rate)),
        )


@dataclasses.dataclass(frozen=True)
class FixedSize(Rated):
    """Every round draws a fresh cohort of fixed size, uniformly without replacement.

    Guarantee: given its size, every cohort is equally likely, independently of the other
    rounds. The size is public: ``rate * population`` if that is a whole number, else its floor
    or ceiling, spread evenly over the rounds. Amplification by sampling without replacement
    applies (`fl_epe.accounting.fixed_size_epsilon`).

    Attributes:
        rounds: number of rounds.
        rate: share of the population in a cohort, in (0, 1].
    """

    kind: ClassVar[str] = "fixed-size"

    def cohorts(
        self, population: int, rng: np.random.Generator
    ) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(cohort) a round."""
        for size in self._sizes(population):
            yield np.sort(draw(rng, population, size))

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: fresh cohorts.

        For one client these are independent coins, with each cohort's share of the population.
        """
        size = min(population, math.ceil(self.rate * population * (1 - 1e-12)))
        return dataclasses.replace(
            super().law(population),
            hidden=self.rate < 1,
            cohorts=FixedCohorts(self.rounds, population, size),
            events=Events.coins(self._sizes(population) / population),
        )


@dataclasses.dataclass(frozen=True)
class Separated(Rated, abc.ABC):
    """Two participations of a client are at least ``separation`` rounds apart.

    Attributes:
        rounds: number of rounds.
        rate: probability of taking part in a round, in (0, 1 / separation].
        separation: least distance between two participations of a client, in rounds.
    """

    separation: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("separation", self.separation)
        if self.rate * self.separation > 1 + 1e-12:
            raise_invalid(
                "rate",
                self.rate,
                f"<= 1/separation={1 / self.separation}, or too few clients would be rested (it is "
                "participations over rounds)",
            )

    def most_participations(self) -> int:
        """``ceil(rounds / separation)``."""
        return -(-self.rounds // self.separation)


@dataclasses.dataclass(frozen=True)
class MinSeparation(Separated):
    """A cohort of fixed size, drawn from the clients that rested for ``separation - 1`` rounds.

    Guarantee: any two participations of a client are at least ``separation`` rounds apart, so
    nobody takes part more than ``ceil(rounds / separation)`` times. Correlated noise (DP-FTRL,
    banded matrix factorization) is calibrated for this (k, b)-participation. Sizes are as in
    `FixedSize`. No amplification is claimed, as past cohorts show who is resting.

    Attributes:
        rounds: number of rounds.
        rate: share of the population in a cohort, in (0, 1 / separation].
        separation: least distance between two participations of a client, in rounds.
    """

    kind: ClassVar[str] = "min-separation"

    def cohorts(
        self, population: int, rng: np.random.Generator
    ) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(cohort) a round."""
        # The first `rested` entries of the pool may be drawn.
        pool = np.arange(population)
        rested = population
        resting: collections.deque[Cohort] = collections.deque()
        for size in self._sizes(population):
            cohort = _take(pool, rested, draw(rng, rested, size))
            rested -= size
            resting.append(cohort)
            if len(resting) == self.separation:
                returning = resting.popleft()
                pool[rested : rested + len(returning)] = returning
                rested += len(returning)
            yield np.sort(cohort)

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: coins with a cohort's share of the rested clients, and rests."""
        sizes = self._sizes(population)
        participations_before = np.concatenate([[0], np.cumsum(sizes)])
        rested_from = np.maximum(
            np.arange(self.rounds) - self.separation + 1, 0
        )
        resting = (
            participations_before[:-1] - participations_before[rested_from]
        )
        chances = sizes / np.maximum(population - resting, 1)
        return dataclasses.replace(
            super().law(population),
            separation=self.separation,
            events=Events.coins(chances, self.separation),
        )

    def _sizes(self, population: int) -> Integers:
        """Sizes as for `Rated`, limited so that there are always enough rested clients."""
        limit = population * self.rounds // self.separation
        total = min(round(self.rate * population * self.rounds), limit)
        return even_sizes(total, self.rounds)


@dataclasses.dataclass(frozen=True)
class BMinSep(Separated):
    """Each client tosses a coin in every round, except while it rests after taking part.

    Source: b-min-sep sampling (arXiv 2602.09338), with clients in place of examples, from its
    stationary state: the clients that are resting before the first round are drawn at random.
    So a client takes part in every round with probability ``rate``. Guarantee: any two
    participations of a client are at least ``separation`` rounds apart, and clients are
    independent, so that cohort sizes are binomial.

    Attributes:
        rounds: number of rounds.
        rate: probability of taking part in a round, in (0, 1 / separation].
        separation: b, least distance between two participations of a client, in rounds.
    """

    kind: ClassVar[str] = "b-min-sep"
    drawn_by_clients: ClassVar[bool] = True

    def cohorts(
        self, population: int, rng: np.random.Generator
    ) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(population) a round."""
        rested_from = np.zeros(population, np.int64)
        for t, chance in enumerate(self._chances()):
            is_heads = rng.random(population) < chance
            cohort = np.flatnonzero((rested_from <= t) & is_heads)
            rested_from[cohort] = t + self.separation
            yield cohort

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: coins and rests.

        The privacy loss is at most that of coins in blocks of ``separation`` rounds if only the
        first head in each block counts. Proof: docs/notes/unknown-rounds.md.
        """
        blocks = []
        # The chance of a client that has rested.
        (chance,) = self._chances_after(np.array([self.separation - 1]))
        for first in range(0, self.rounds, self.separation):
            length = min(self.separation, self.rounds - first)
            tails = np.arange(length, dtype=np.float64)
            first_head_chances = np.asarray(chance * (1 - chance) ** tails)
            blocks.append((first, first_head_chances[first_head_chances > 0]))
        return dataclasses.replace(
            super().law(population),
            hidden=self.rate < 1,
            adjacency="add-or-remove",
            separation=self.separation,
            events=Events.coins(self._chances(), self.separation),
            dominating=Events.blocks(blocks),
        )

    def _chances(self) -> Floats:
        """The chance of the coin in each round, for a client absent from the last rounds.

        In the first rounds, some clients still rest from a participation before the run.
        """
        absent_rounds = np.minimum(np.arange(self.rounds), self.separation - 1)
        return self._chances_after(absent_rounds)

    def _chances_after(self, rounds: Integers) -> Floats:
        """The chances of the coin for a client that was absent from so many last rounds."""
        chances = self.rate / np.maximum(1 - rounds * self.rate, self.rate)
        return np.asarray(np.minimum(chances, 1.0))


def _take(pool: Cohort, rested: int, places: Cohort) -> Cohort:
    """Remove the entries at ``places`` from the first ``rested`` entries of ``pool``, in place.

    The last of these entries move to the places that become free.

    Returns:
        The removed entries.
    """
    cohort = pool[places]
    remaining = rested - len(places)
    free_places = places[places < remaining]
    # Whether each of the last entries moves.
    is_moved = np.ones(len(places), bool)
    is_moved[places[places >= remaining] - remaining] = False
    pool[free_places] = pool[remaining:rested][is_moved]
    return cohort


@dataclasses.dataclass(frozen=True)
class ShuffledEpochs(Epochs):
    """Each epoch has all clients in a fresh random order, spread evenly over the rounds.

    This is the paper's schedule, for clients and for canaries. Guarantee: each client takes
    part ``floor(epochs)`` or ``ceil(epochs)`` times, at most once in a round, and the sizes of
    any two cohorts differ by at most one. If a round spans the end of an epoch and the start of
    the next, the clients that are already in it come later in the new order.

    Attributes:
        rounds: number of rounds.
        epochs: expected participations of each participant, in (0, rounds].
    """

    kind: ClassVar[str] = "epochs"

    def cohorts(
        self, population: int, rng: np.random.Generator
    ) -> Iterator[Cohort]:
        """See `Schedule.cohorts`."""
        queue = np.empty(0, np.int64)
        for size in even_sizes(round(self.epochs * population), self.rounds):
            if size > len(queue):
                epoch = _next_epoch(rng, population, queue, size)
                queue = np.concatenate([queue, epoch])
            yield np.sort(queue[:size])
            queue = queue[size:]

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: once in each epoch, at a random position of its order.

        An epoch may begin within a round. A round that spans two epochs has a chance in both,
        in proportion to its share of each. The law ignores that no client is drawn twice into
        such a round. The last epoch may be incomplete.
        """
        length = self.rounds / self.epochs
        blocks = []
        chances = []
        for epoch in range(self.most_participations()):
            # The small terms undo rounding of ends that are whole numbers.
            first = math.floor(epoch * length + 1e-9)
            end = min(math.ceil((epoch + 1) * length - 1e-9), self.rounds)
            rounds = np.arange(first, end)
            starts = np.maximum(rounds, epoch * length)
            ends = np.minimum(rounds + 1, (epoch + 1) * length)
            blocks.append((first, end))
            chances.append((first, (ends - starts) / length))
        return dataclasses.replace(
            super().law(population),
            blocks=tuple(blocks),
            events=Events.blocks(chances),
        )


def _next_epoch(
    rng: np.random.Generator, population: int, tail: Cohort, size: int
) -> Cohort:
    """A permutation whose first ``size - len(tail)`` entries are not in ``tail``."""
    order = rng.permutation(population)
    if not len(tail):
        return order
    in_tail = np.isin(order, tail)
    new_clients = order[~in_tail]
    tail_clients = order[in_tail]
    places = size - len(tail)
    later = np.concatenate([new_clients[places:], tail_clients])
    return np.concatenate([new_clients[:places], rng.permutation(later)])


@dataclasses.dataclass(frozen=True)
class Cyclic(Epochs):
    """One random order that is fixed for the whole run and repeated.

    Guarantee: each client takes part ``floor(epochs)`` or ``ceil(epochs)`` times, cohort sizes
    differ by at most one, and consecutive participations of a client are
    ``rounds * population / round(epochs * population)`` rounds apart, rounded down or up. An
    adversary who knows one participation of a client knows all of them.

    Attributes:
        rounds: number of rounds.
        epochs: expected participations of each participant, in (0, rounds].
    """

    kind: ClassVar[str] = "cyclic"

    def cohorts(
        self, population: int, rng: np.random.Generator
    ) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(cohort) a round."""
        order = rng.permutation(population)
        start = 0
        for size in even_sizes(round(self.epochs * population), self.rounds):
            end = start + size
            # Where the order ends, the cohort goes on from its start.
            wrapped = max(end - population, 0)
            yield np.sort(np.concatenate([order[start:end], order[:wrapped]]))
            start = wrapped or end

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: equal distances up to one round, and a type for each position."""
        total = max(round(self.epochs * population), 1)
        distance, remainder = divmod(self.rounds * population, total)
        # Larger populations are represented by four positions for each round.
        places = min(population, 4 * self.rounds)
        sizes = even_sizes(round(self.epochs * places), self.rounds)
        when = np.repeat(np.arange(self.rounds), sizes)
        place = np.arange(len(when)) % places
        return dataclasses.replace(
            super().law(population),
            separation=max(distance, 1),
            regular=remainder == 0,
            events=Events.certain(place, when, places),
        )


@dataclasses.dataclass(frozen=True)
class WholeEpochs(Epochs, abc.ABC):
    """Each client takes part in exactly ``epochs`` rounds, a whole number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("epochs", self.epochs)


@dataclasses.dataclass(frozen=True)
class RandomAllocation(WholeEpochs):
    """Each client takes part in exactly ``epochs`` rounds, a uniform subset of all rounds.

    Source: Feldman and Shenfeld 2025, "Privacy amplification by random allocation" (k out of
    t), with clients in place of examples. Guarantee: all choices of rounds are equally likely,
    and clients are independent, so that cohort sizes are binomial.

    Attributes:
        rounds: number of rounds.
        epochs: participations of each participant: a whole number from 1 to ``rounds``.
    """

    kind: ClassVar[str] = "k-out-of-t"
    drawn_by_clients: ClassVar[bool] = True

    def cohorts(
        self, population: int, rng: np.random.Generator
    ) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(population) a round."""
        remaining = np.full(population, int(self.epochs), np.int32)
        for t in range(self.rounds):
            is_present = rng.random(population) * (self.rounds - t) < remaining
            remaining -= is_present
            yield np.flatnonzero(is_present)

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: a uniform subset of the rounds.

        The privacy loss is at most that of one uniform round in each of ``epochs`` blocks: if
        the rounds are in random order, the rounds of the blocks are a uniform subset, and
        divergences from the run without the client, which does not depend on the order, are
        convex.
        """
        blocks = BallsInBins(self.rounds, self.epochs).law(population)
        return dataclasses.replace(
            super().law(population),
            hidden=self.epochs < self.rounds,
            events=Events.subset(self.rounds, int(self.epochs)),
            dominating=blocks.events,
        )


@dataclasses.dataclass(frozen=True)
class BallsInBins(WholeEpochs):
    """In each block of rounds, each client takes part in one uniformly random round.

    The rounds are divided into ``epochs`` blocks whose lengths differ by at most one (the first
    blocks are longer, as in `numpy.array_split`). Source: Chua et al. 2024, "Balls-and-Bins
    Sampling for DP-SGD", with clients in place of examples. Guarantee: each client takes part
    exactly ``epochs`` times, once in each block, and clients are independent. So cohort sizes
    are binomial.

    Attributes:
        rounds: number of rounds.
        epochs: participations of each participant: a whole number from 1 to ``rounds``.
    """

    kind: ClassVar[str] = "balls-in-bins"
    drawn_by_clients: ClassVar[bool] = True

    def cohorts(
        self, population: int, rng: np.random.Generator
    ) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(population) a block: O(cohort) a round on average."""
        for start, end in self._blocks():
            length = end - start
            when = rng.integers(length, size=population, dtype=np.int32)
            yield from by_round(when, length)

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: once in each block."""
        blocks = self._blocks()
        chances = []
        for start, end in blocks:
            length = end - start
            chances.append((start, np.full(length, 1 / length)))
        return dataclasses.replace(
            super().law(population),
            hidden=self.epochs < self.rounds,
            blocks=blocks,
            uniform=True,
            events=Events.blocks(chances),
        )

    def _blocks(self) -> tuple[tuple[int, int], ...]:
        parts = np.array_split(np.arange(self.rounds), int(self.epochs))
        return tuple((int(part[0]), int(part[-1]) + 1) for part in parts)
