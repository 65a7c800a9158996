"""Schedules in which clients are alike: by coins, in cohorts of fixed size, or equally often."""

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
    """Everybody takes part in every round independently with probability ``rate``.

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

    Guarantee: given its size, every cohort is equally likely, independently of the other rounds.
    The size is public: ``rate * population`` if that is a whole number, else its floor or ceiling,
    spread evenly over the rounds. Amplification by sampling without replacement applies
    (`fl_epe.accounting.fixed_size_epsilon`).

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
        """See `Schedule.law`: fresh cohorts; for one client coins of each cohort's share of all."""
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
    """A cohort of fixed size, drawn from those who have rested for ``separation - 1`` rounds.

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
        pool = np.arange(population)  # the first `rested` entries may be drawn
        rested = population
        resting: collections.deque[Cohort] = collections.deque()
        for size in self._sizes(population):
            cohort = _take(pool, rested, draw(rng, rested, size))
            rested -= size
            resting.append(cohort)
            if len(resting) == self.separation:
                back = resting.popleft()
                pool[rested : rested + len(back)] = back
                rested += len(back)
            yield np.sort(cohort)

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: each cohort's share of those who have rested, and then a rest."""
        sizes = self._sizes(population)
        before = np.concatenate(
            [[0], np.cumsum(sizes)]
        )  # participations before each round
        rested_from = np.maximum(
            np.arange(self.rounds) - self.separation + 1, 0
        )
        resting = before[:-1] - before[rested_from]
        chances = sizes / np.maximum(population - resting, 1)
        return dataclasses.replace(
            super().law(population),
            separation=self.separation,
            events=Events.coins(chances, self.separation),
        )

    def _sizes(self, population: int) -> Integers:
        """As for `Rated`, at most so many that rounding asks for nobody who has not rested."""
        limit = population * self.rounds // self.separation
        total = min(round(self.rate * population * self.rounds), limit)
        return even_sizes(total, self.rounds)


@dataclasses.dataclass(frozen=True)
class BMinSep(Separated):
    """Everybody tosses a coin in every round, but those who took part in the last rounds rest.

    Source: b-min-sep sampling (arXiv 2602.09338), with clients in place of examples, from its
    stationary state: whoever has not rested long enough before the first round is drawn. So a
    client takes part in every round with probability ``rate``. Guarantee: any two participations of
    a client are at least ``separation`` rounds apart, and clients are independent, so that cohort
    sizes are binomial.

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

        Its privacy loss is at most that of coins in blocks of ``separation`` rounds of which each
        block's first head counts. Proof: docs/notes/unknown-rounds.md.
        """
        blocks = []
        (chance,) = self._chances_after(
            np.array([self.separation - 1])
        )  # once rested
        for first in range(0, self.rounds, self.separation):
            length = min(self.separation, self.rounds - first)
            tails = np.arange(length, dtype=np.float64)
            of_first_head = np.asarray(chance * (1 - chance) ** tails)
            blocks.append((first, of_first_head[of_first_head > 0]))
        return dataclasses.replace(
            super().law(population),
            hidden=self.rate < 1,
            adjacency="add-or-remove",
            separation=self.separation,
            events=Events.coins(self._chances(), self.separation),
            dominating=Events.blocks(blocks),
        )

    def _chances(self) -> Floats:
        """Of the coin in each round, for a client who did not take part in the last rounds.

        In the first rounds of the run some clients still rest from a participation before it.
        """
        absent_rounds = np.minimum(np.arange(self.rounds), self.separation - 1)
        return self._chances_after(absent_rounds)

    def _chances_after(self, rounds: Integers) -> Floats:
        """The coin's chances for a client who took no part in so many of the last rounds."""
        chances = self.rate / np.maximum(1 - rounds * self.rate, self.rate)
        return np.asarray(np.minimum(chances, 1.0))


def _take(pool: Cohort, rested: int, places: Cohort) -> Cohort:
    """Remove the entries at ``places`` from the first ``rested``; the last ones fill the holes."""
    cohort = pool[places]
    remaining = rested - len(places)
    holes = places[places < remaining]
    moves = np.ones(len(places), bool)  # of the last entries
    moves[places[places >= remaining] - remaining] = False
    pool[holes] = pool[remaining:rested][moves]
    return cohort


@dataclasses.dataclass(frozen=True)
class ShuffledEpochs(Epochs):
    """Everybody in a fresh random order, epoch after epoch, spread evenly over the rounds.

    This is the paper's schedule, for clients and for canaries. Guarantee: everybody takes part
    ``floor(epochs)`` or ``ceil(epochs)`` times, at most once in a round, and the sizes of any two
    cohorts differ by at most one. Where a round spans the end of an epoch and the start of the
    next, those who are already in it come later in the new order.

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
        """See `Schedule.law`: once in each epoch, at a random place of its order.

        An epoch may begin within a round. A round that spans two epochs has a chance in both, in
        proportion to its share of each. There clients of both are kept apart; that is left out.
        The last epoch may be a part of one.
        """
        length = self.rounds / self.epochs
        blocks = []
        chances = []
        for epoch in range(self.most_participations()):
            first = math.floor(epoch * length + 1e-9)
            last = min(math.ceil((epoch + 1) * length - 1e-9), self.rounds)
            rounds = np.arange(first, last)
            starts = np.maximum(rounds, epoch * length)
            ends = np.minimum(rounds + 1, (epoch + 1) * length)
            blocks.append((first, last))
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
    repeated = np.isin(order, tail)
    fresh = order[~repeated]
    late = order[repeated]
    head = size - len(tail)
    mixed = rng.permutation(np.concatenate([fresh[head:], late]))
    return np.concatenate([fresh[:head], mixed])


@dataclasses.dataclass(frozen=True)
class Cyclic(Epochs):
    """One random order that is fixed for the whole run and repeated.

    Guarantee: everybody takes part ``floor(epochs)`` or ``ceil(epochs)`` times, cohort sizes
    differ by at most one, and two participations of a client that follow each other are
    ``rounds * population / round(epochs * population)`` rounds apart, rounded down or up. An
    adversary who knows one participation of a client knows the others as well.

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
            repeated = max(
                end - population, 0
            )  # from the start of the order again
            yield np.sort(np.concatenate([order[start:end], order[:repeated]]))
            start = repeated or end

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: always as far apart, up to one round; a type for each place."""
        total = max(round(self.epochs * population), 1)
        distance, remainder = divmod(self.rounds * population, total)
        places = min(population, 4 * self.rounds)
        sizes = even_sizes(round(self.epochs * places), self.rounds)
        when = np.repeat(np.arange(self.rounds), sizes)
        place = (
            np.arange(len(when)) % places
        )  # one after another, again and again
        return dataclasses.replace(
            super().law(population),
            separation=max(distance, 1),
            regular=remainder == 0,
            events=Events.certain(place, when, places),
        )


@dataclasses.dataclass(frozen=True)
class WholeEpochs(Epochs, abc.ABC):
    """Everybody takes part in exactly ``epochs`` rounds, a whole number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("epochs", self.epochs)


@dataclasses.dataclass(frozen=True)
class RandomAllocation(WholeEpochs):
    """Everybody takes part in exactly ``epochs`` rounds, a uniform subset of all.

    Source: Feldman and Shenfeld 2025, "Privacy amplification by random allocation" (k out of t),
    with clients in place of examples. Guarantee: all choices of rounds are equally likely,
    independently of all others, so that cohort sizes are binomial.

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

        Its privacy loss is at most that of one uniform round in each of ``epochs`` blocks: in a
        random order the rounds of the blocks are a uniform subset, and divergences from the one
        run without the client are convex.
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
    """In each block of rounds everybody takes part once, in a uniformly random round of the block.

    The rounds are cut into ``epochs`` blocks whose lengths differ by at most one (the first ones
    are the longer, as in `numpy.array_split`). Source: Chua et al. 2024, "Balls-and-Bins Sampling
    for DP-SGD", with clients in place of examples. Guarantee: everybody takes part exactly
    ``epochs`` times, once in each block, independently of all others. So cohort sizes are binomial.

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
