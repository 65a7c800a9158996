"""A schedule in which classes of devices take part at different rates."""

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from fl_epe.checks import raise_invalid
from fl_epe.schedules.contract import Cohort, Schedule, draw
from fl_epe.schedules.law import Coins, Events, ParticipationLaw

_ROUNDING = 1e-9  # relative rounding error of the sum of shares


@dataclasses.dataclass(frozen=True)
class DeviceClasses(Schedule):
    """Each class of devices takes part by independent coins, at the class's rate.

    Each client is of class c with probability ``shares[c]``, independently and for the whole
    run. Guarantee: given the classes, all coins are independent, so amplification by Poisson
    subsampling holds for a client of class c at ``rates[c]``, and for everybody at the largest
    rate. Clients of the busiest class leak more than the average client.

    Attributes:
        rounds: number of rounds.
        rates: probability of taking part in a round, one for each class, in [0, 1].
        shares: probability that a client is of the class, one for each; they add up to 1.
    """

    kind: ClassVar[str] = "device-classes"
    drawn_by_clients: ClassVar[bool] = True

    rates: tuple[float, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.rates) != len(self.shares):
            raise_invalid(
                "rates", self.rates, f"to be as many as shares={self.shares}"
            )
        for name in ("rates", "shares"):
            if not all(0 <= value <= 1 for value in getattr(self, name)):
                raise_invalid(name, getattr(self, name), "in [0, 1]")
        if not math.isclose(sum(self.shares), 1, rel_tol=_ROUNDING):
            raise_invalid("shares", self.shares, "to add up to 1")

    def participations(self) -> float:
        """Expected participations: ``rounds`` times the mean rate."""
        return self.rounds * sum(
            rate * share
            for rate, share in zip(self.rates, self.shares, strict=True)
        )

    def cohorts(
        self, population: int, rng: np.random.Generator
    ) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(cohort) a round."""
        class_sizes = rng.multinomial(
            population, np.array(self.shares) / sum(self.shares)
        )
        # In this order the clients of each class are consecutive.
        clients = rng.permutation(population)
        class_starts = np.cumsum(class_sizes) - class_sizes
        for _ in range(self.rounds):
            sizes = rng.binomial(class_sizes, self.rates)
            classes = zip(class_starts, class_sizes, sizes, strict=True)
            places = [
                start + draw(rng, class_size, size)
                for start, class_size, size in classes
            ]
            yield np.sort(clients[np.concatenate(places)])

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: events of each class; ``coins`` are those of the busiest class."""
        num_classes = len(self.rates)
        rounds = np.tile(np.arange(self.rounds), num_classes)
        events = Events(
            shares=np.array(self.shares) / sum(self.shares),
            types=np.repeat(np.arange(num_classes), self.rounds),
            events=rounds,
            rounds=rounds,
            chances=np.repeat(self.rates, self.rounds),
        )
        return dataclasses.replace(
            super().law(population),
            coins=Coins(self.rounds, max(self.rates), ", in the busiest class"),
            events=events,
        )
