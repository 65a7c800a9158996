"""Schedules that draw a random cohort in every round: by coins, or of fixed size."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import ArgumentError, check_count, raise_invalid
from fl_epe.schedules.contract import (
    ClientLaw,
    ClientType,
    Cohort,
    Coins,
    FixedCohorts,
    PrivacyLaw,
    Rated,
    Schedule,
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
            raise ArgumentError(
                f"Expected {{rate}} <= 1/separation={1 / self.separation}: otherwise too few "
                "clients would be rested. (The rate is participations over rounds.)",
                rate=self.rate,
            )

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
class DeviceClasses(Schedule):
    """Classes of devices, each with a Poisson rate of its own.

    Each client is of class c with probability ``shares[c]``, independently and for the whole run.
    Guarantee: given the classes, all coins are independent, so amplification by Poisson
    subsampling holds for a client of class c at ``rates[c]``, and for everybody at the largest
    rate. Clients of the busiest class leak more than the average client.

    Attributes:
        rounds: number of rounds.
        rates: probability of taking part in a round, one for each class, in [0, 1].
        shares: probability that a client is of the class, one for each; they add up to 1.
    """

    kind: ClassVar[str] = "device-classes"

    rates: tuple[float, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rates", tuple(float(rate) for rate in self.rates))
        object.__setattr__(self, "shares", tuple(float(share) for share in self.shares))
        if len(self.rates) != len(self.shares):
            raise ArgumentError(
                "Expected {rates} to be as many as {shares}.", rates=self.rates, shares=self.shares
            )
        for name in ("rates", "shares"):
            if not all(0 <= value <= 1 for value in getattr(self, name)):
                raise_invalid(name, getattr(self, name), "in [0, 1]")
        if not abs(sum(self.shares) - 1) < 1e-9:
            raise ArgumentError("Expected {shares} to add up to 1.", shares=self.shares)
        if not self.participations():
            raise ArgumentError("Expected {rates} to let some class take part.", rates=self.rates)

    def participations(self) -> float:
        """Expected participations: ``rounds`` times the mean rate."""
        return self.rounds * sum(r * s for r, s in zip(self.rates, self.shares, strict=True))

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(cohort) a round."""
        shares = np.array(self.shares) / sum(self.shares)
        members = rng.multinomial(population, shares)
        clients = rng.permutation(population)  # class after class
        starts = np.cumsum(members) - members
        for _ in range(self.rounds):
            sizes = rng.binomial(members, self.rates)
            parts = [
                start + draw(rng, many, size)
                for start, many, size in zip(starts, members, sizes, strict=True)
            ]
            yield np.sort(clients[np.concatenate(parts)])

    def privacy_law(self, population: int) -> PrivacyLaw:
        """See `Schedule.privacy_law`: the coins of the busiest class."""
        return PrivacyLaw(
            self.rounds, coins=Coins(self.rounds, max(self.rates), ", in the busiest class")
        )

    def client_law(self, population: int) -> ClientLaw:
        """See `Schedule.client_law`: the coins of each class."""
        return tuple(
            ClientType.coins(share / sum(self.shares), np.full(self.rounds, rate))
            for share, rate in zip(self.shares, self.rates, strict=True)
        )
