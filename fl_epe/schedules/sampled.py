"""Schedules in which clients are alike: by coins, in cohorts of fixed size, or equally often."""

import collections
import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import check_count, raise_invalid
from fl_epe.schedules.contract import (
    ClientLaw,
    ClientType,
    Cohort,
    Coins,
    Epochs,
    FixedCohorts,
    Pattern,
    PrivacyLaw,
    Rated,
    by_round,
    draw,
    even_sizes,
)


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
    unknown_rounds: ClassVar[Literal["coins", "epochs"] | None] = "coins"

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`."""
        for _ in range(self.rounds):
            yield np.sort(draw(rng, population, rng.binomial(population, self.rate)))

    def privacy_law(self, population: int) -> PrivacyLaw:
        """See `Schedule.privacy_law`: independent coins."""
        coins = Coins(self.rounds, self.rate)
        return PrivacyLaw(self.rounds, coins=coins, counts=coins)

    def pattern(self, population: int) -> Pattern:
        """See `Schedule.pattern`: a coin in every round."""
        return Pattern(self.rounds, rate=self.rate)

    def client_law(self, population: int) -> ClientLaw:
        """See `Schedule.client_law`: coins."""
        return (ClientType.coins(1.0, np.full(self.rounds, self.rate)),)


@dataclasses.dataclass(frozen=True)
class FixedSize(Rated):
    """Every round draws a fresh cohort of fixed size, uniformly without replacement.

    Guarantee: given its size, every cohort is equally likely, independently of the other rounds.
    The size is public: ``rate * population`` if that is a whole number, else its floor or ceiling,
    spread evenly over the rounds. Amplification by sampling without replacement applies
    (replace-one adjacency).

    Attributes:
        rounds: number of rounds.
        rate: share of the population in a cohort, in (0, 1].
    """

    kind: ClassVar[str] = "fixed-size"
    unknown_rounds: ClassVar[Literal["coins", "epochs"] | None] = "coins"

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(cohort) a round."""
        for size in self._sizes(population):
            yield np.sort(draw(rng, population, size))

    def privacy_law(self, population: int) -> PrivacyLaw:
        """See `Schedule.privacy_law`: fresh cohorts."""
        size = min(population, math.ceil(self.rate * population * (1 - 1e-12)))
        return PrivacyLaw(self.rounds, cohorts=FixedCohorts(self.rounds, population, size))

    def client_law(self, population: int) -> ClientLaw:
        """See `Schedule.client_law`: for one client, coins of each cohort's share of all."""
        return (ClientType.coins(1.0, self._sizes(population) / population),)


@dataclasses.dataclass(frozen=True)
class MinSeparation(Rated):
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

    separation: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("separation", self.separation)
        if self.rate * self.separation > 1 + 1e-12:
            wanted = f"<= 1/separation={1 / self.separation}, or too few clients would be rested"
            raise_invalid("rate", self.rate, f"{wanted} (it is participations over rounds)")

    def most_participations(self) -> int:
        """``ceil(rounds / separation)``."""
        return -(-self.rounds // self.separation)

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
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

    def pattern(self, population: int) -> Pattern:
        """See `Schedule.pattern`: at least ``separation`` rounds apart."""
        return Pattern(self.most_participations(), self.separation)

    def client_law(self, population: int) -> ClientLaw:
        """See `Schedule.client_law`: each cohort's share of those who have rested, then a rest."""
        sizes = self._sizes(population)
        before = np.concatenate([[0], np.cumsum(sizes)])
        resting = before[:-1] - before[np.maximum(np.arange(self.rounds) - self.separation + 1, 0)]
        return (ClientType.coins(1.0, sizes / (population - resting), self.separation),)

    def _sizes(self, population: int) -> NDArray[np.int64]:
        """As for `Rated`, at most so many that rounding asks for nobody who has not rested."""
        most = population * self.rounds // self.separation
        return even_sizes(min(round(self.rate * population * self.rounds), most), self.rounds)


def _take(pool: Cohort, rested: int, places: Cohort) -> Cohort:
    """Remove the entries at ``places`` from the first ``rested``; the last ones fill the holes."""
    taken = pool[places]
    left = rested - len(places)
    holes = places[places < left]
    moves = np.ones(len(places), bool)
    moves[places[places >= left] - left] = False
    pool[holes] = pool[left:rested][moves]
    return taken


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
    unknown_rounds: ClassVar[Literal["coins", "epochs"] | None] = "epochs"

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`."""
        queue = np.empty(0, np.int64)
        for size in even_sizes(round(self.epochs * population), self.rounds):
            if size > len(queue):
                queue = np.concatenate([queue, _next_epoch(rng, population, queue, size)])
            yield np.sort(queue[:size])
            queue = queue[size:]

    def pattern(self, population: int) -> Pattern:
        """See `Schedule.pattern`: once in each epoch; an epoch may begin within a round."""
        length, count = self.rounds / self.epochs, self.most_participations()
        starts = [math.floor(e * length + 1e-9) for e in range(count)]
        ends = [min(math.ceil((e + 1) * length - 1e-9), self.rounds) for e in range(count)]
        return Pattern(count, blocks=tuple(zip(starts, ends, strict=True)))

    def client_law(self, population: int) -> ClientLaw:
        """See `Schedule.client_law`: once in each epoch, at a random place of its order.

        A round that spans two epochs has a chance in both, in proportion to its share of each.
        There clients of both are kept apart; that is left out. The last epoch may be a part of one.
        """
        length, blocks = self.rounds / self.epochs, []
        for epoch, (first, last) in enumerate(self.pattern(population).blocks):
            places = np.arange(first, last)
            ends = np.minimum(places + 1, (epoch + 1) * length)
            blocks.append((first, (ends - np.maximum(places, epoch * length)) / length))
        return (ClientType.blocks(1.0, blocks),)


def _next_epoch(rng: np.random.Generator, population: int, tail: Cohort, size: int) -> Cohort:
    """A permutation whose first ``size - len(tail)`` entries are not in ``tail``."""
    order = rng.permutation(population)
    if not len(tail):
        return order
    repeated = np.isin(order, tail)
    fresh, late = order[~repeated], order[repeated]
    head = size - len(tail)
    return np.concatenate([fresh[:head], rng.permutation(np.concatenate([fresh[head:], late]))])


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

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(cohort) a round."""
        order = rng.permutation(population)
        start = 0
        for size in even_sizes(round(self.epochs * population), self.rounds):
            end = start + size
            beyond = max(end - population, 0)
            yield np.sort(np.concatenate([order[start:end], order[:beyond]]))
            start = beyond or end

    def pattern(self, population: int) -> Pattern:
        """See `Schedule.pattern`: always as far apart, up to one round."""
        distance, rest = divmod(self.rounds * population, round(self.epochs * population))
        return Pattern(self.most_participations(), max(distance, 1), regular=not rest)

    def client_law(self, population: int) -> ClientLaw:
        """See `Schedule.client_law`: the rounds of each place in the order."""
        places = min(population, 4 * self.rounds)
        sizes = even_sizes(round(self.epochs * places), self.rounds)
        when = np.repeat(np.arange(self.rounds), sizes)
        own = (when[place::places] for place in range(places))  # one place after another comes
        return tuple(ClientType(1 / places, np.arange(len(t)), t, np.ones(len(t))) for t in own)


@dataclasses.dataclass(frozen=True)
class BallsInBins(Epochs):
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
    unknown_rounds: ClassVar[Literal["coins", "epochs"] | None] = "epochs"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("epochs", self.epochs)

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(population) a block: O(cohort) a round on average."""
        for start, end in self.pattern(population).blocks:
            length = end - start
            yield from by_round(rng.integers(length, size=population, dtype=np.int32), length)

    def pattern(self, population: int) -> Pattern:
        """See `Schedule.pattern`: once in each block."""
        parts = np.array_split(np.arange(self.rounds), int(self.epochs))
        blocks = tuple((int(part[0]), int(part[-1]) + 1) for part in parts)
        return Pattern(len(blocks), blocks=blocks, uniform=True)

    def client_law(self, population: int) -> ClientLaw:
        """See `Schedule.client_law`: once in each block."""
        blocks = self.pattern(population).blocks
        chances = [(start, np.full(end - start, 1 / (end - start))) for start, end in blocks]
        return (ClientType.blocks(1.0, chances),)
