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
    draw,
    even_sizes,
)
from fl_epe.schedules.law import Coins, Events, FixedCohorts, ParticipationLaw

_ROUNDING = 1e-12  # relative rounding error of a rate times a whole number
_END_ROUNDING = 1e-9  # rounding error of the end of an epoch, in rounds


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

        For one client these are independent coins, whose chance is the cohort's share of the
        population.
        """
        largest = math.ceil(self.rate * population * (1 - _ROUNDING))
        return dataclasses.replace(
            super().law(population),
            hidden=self.rate < 1,
            cohorts=FixedCohorts(
                self.rounds, population, min(largest, population)
            ),
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
        if self.rate * self.separation > 1 + _ROUNDING:
            raise_invalid(
                "rate",
                self.rate,
                f"<= 1/separation={1 / self.separation}, or too few clients would be rested (it is "
                "participations over rounds)",
            )

    def most_participations(self) -> int:
        """``ceil(rounds / separation)``."""
        return math.ceil(self.rounds / self.separation)


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
        # The first `num_rested` entries of the pool are the clients that may be drawn.
        pool = np.arange(population)
        num_rested = population
        resting: collections.deque[Cohort] = collections.deque()
        for size in self._sizes(population):
            places = draw(rng, num_rested, size)
            cohort = _remove(pool[:num_rested], places)
            num_rested -= size
            resting.append(cohort)
            if len(resting) == self.separation:
                returning = resting.popleft()
                pool[num_rested : num_rested + len(returning)] = returning
                num_rested += len(returning)
            yield np.sort(cohort)

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: coins and rests.

        A coin's chance is the cohort's share of the clients that are not resting.
        """
        sizes = self._sizes(population)
        # The clients of the last separation − 1 cohorts are resting.
        drawn_before = np.cumsum(sizes) - sizes
        first_resting = np.arange(self.rounds) - self.separation + 1
        rested_before = drawn_before[np.maximum(first_resting, 0)]
        num_resting = drawn_before - rested_before
        chances = sizes / np.maximum(population - num_resting, 1)
        return dataclasses.replace(
            super().law(population),
            separation=self.separation,
            events=Events.coins(chances, self.separation),
        )

    def _sizes(self, population: int) -> Integers:
        """Cohort sizes as for `Rated`, limited so that there are always enough rested clients."""
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
        # The first round in which each client has rested long enough.
        rested_from = np.zeros(population, np.int64)
        for t, chance in enumerate(self._chances()):
            is_heads = rng.random(population) < chance
            cohort = np.flatnonzero((rested_from <= t) & is_heads)
            rested_from[cohort] = t + self.separation
            yield cohort

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: coins and rests.

        The privacy loss is at most that of a client without rests who tosses the coin of a rested
        client, and takes part at the first head in each block of ``separation`` rounds. Proof:
        docs/notes/unknown-rounds.md.
        """
        blocks = []
        chance = self._chance_after(self.separation - 1)
        for first in range(0, self.rounds, self.separation):
            length = min(self.separation, self.rounds - first)
            num_tails = np.arange(float(length))
            first_head_chances = np.asarray(chance * (1 - chance) ** num_tails)
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
        """The chance of the coin in each round, for a client that was in no earlier round.

        Such a client may still rest in the first rounds, from a participation before the run.
        """
        longest = self.separation - 1
        return np.array(
            [self._chance_after(min(t, longest)) for t in range(self.rounds)]
        )

    def _chance_after(self, absent_rounds: int) -> float:
        """The chance of the coin for a client that was absent from this many last rounds.

        It is ``rate`` over the probability of the absence, so that the client takes part with
        probability ``rate``.
        """
        absence = max(1 - absent_rounds * self.rate, self.rate)
        return min(self.rate / absence, 1.0)


def _remove(pool: Cohort, places: Cohort) -> Cohort:
    """Remove the entries at ``places`` from ``pool``, in place, and return them.

    The last entries of ``pool`` move to the places that become free.
    """
    removed = pool[places]
    remaining = len(pool) - len(places)
    free_places = places[places < remaining]
    # Whether each of the last entries moves; the others are removed themselves.
    is_moved = np.ones(len(places), bool)
    is_moved[places[places >= remaining] - remaining] = False
    pool[free_places] = pool[remaining:][is_moved]
    return removed


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

        An epoch may begin within a round. In such a round a client may take part by either epoch,
        with a chance in proportion to the part of the epoch that lies in the round. The law ignores
        that no client is drawn twice into such a round. The last epoch may be incomplete.
        """
        length = self.rounds / self.epochs
        blocks = []
        chances = []
        for epoch in range(self.most_participations()):
            epoch_start = epoch * length
            epoch_end = (epoch + 1) * length
            first = math.floor(epoch_start + _END_ROUNDING)
            end = min(math.ceil(epoch_end - _END_ROUNDING), self.rounds)
            rounds = np.arange(first, end)
            starts = np.maximum(rounds, epoch_start)
            ends = np.minimum(rounds + 1, epoch_end)
            blocks.append((first, end))
            chances.append((first, (ends - starts) / length))
        return dataclasses.replace(
            super().law(population),
            blocks=tuple(blocks),
            events=Events.blocks(chances),
        )


def _next_epoch(
    rng: np.random.Generator, population: int, in_cohort: Cohort, size: int
) -> Cohort:
    """The random order of an epoch that begins within a cohort.

    Args:
        rng: the generator that draws the order.
        population: number of clients.
        in_cohort: the clients that the cohort has from the end of the epoch before. They are not
            among the first clients of the order, which complete the cohort.
        size: number of clients in the complete cohort.
    """
    order = rng.permutation(population)
    if not len(in_cohort):
        return order
    may_not_be_first = np.isin(order, in_cohort)
    new_clients = order[~may_not_be_first]
    num_missing = size - len(in_cohort)
    later = np.concatenate([new_clients[num_missing:], order[may_not_be_first]])
    return np.concatenate([new_clients[:num_missing], rng.permutation(later)])


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
            start = wrapped if wrapped > 0 else end

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: a type of clients for each position in the order.

        Distances between participations differ by at most one round.
        """
        total = max(round(self.epochs * population), 1)
        distance, remainder = divmod(self.rounds * population, total)
        # Of a larger population, four positions for each round are enough.
        positions = min(population, 4 * self.rounds)
        sizes = even_sizes(round(self.epochs * positions), self.rounds)
        rounds = np.repeat(np.arange(self.rounds), sizes)
        position_of_row = np.arange(len(rounds)) % positions
        return dataclasses.replace(
            super().law(population),
            separation=max(distance, 1),
            regular=remainder == 0,
            events=Events.certain(position_of_row, rounds, positions),
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

        The privacy loss is at most that of one uniform round in each of ``epochs`` blocks: in a
        random order of all rounds, the rounds of the blocks are a uniform subset. Without the
        client the order changes nothing, and divergences are convex.
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
            rounds = rng.integers(length, size=population, dtype=np.int32)
            by_round = np.argsort(rounds, kind="stable")
            ends = np.cumsum(np.bincount(rounds, minlength=length))
            yield from np.split(by_round, ends[:-1])

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
