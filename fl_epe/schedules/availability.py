"""Schedules in which devices differ: in when they are available, or in how often they take part."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from fl_epe.checks import Booleans, check_count, check_rate, raise_invalid
from fl_epe.schedules.contract import (
    Cohort,
    Rated,
    Schedule,
    by_round,
    draw,
    even_sizes,
)
from fl_epe.schedules.law import Coins, Events, FixedCohorts, ParticipationLaw

_MOST_CELLS = (
    10**7
)  # windows times rounds; zones times rounds of a day may be ten times as many


@dataclasses.dataclass(frozen=True)
class CheckIn(Schedule):
    """Each client checks in once in each of its windows, at a uniformly random round of the window.

    A client's windows follow each other without a gap. Where they begin is random for each client,
    so that a window may begin before the run or end after it. Guarantee: all clients are
    independent, each takes part in any given round with probability ``keep / window``, and nobody
    takes part more than once in a window.

    Source: Balle et al. 2020, "Privacy Amplification via Random Check-Ins", where a client checks
    in once in a run, in a fixed window, and the server picks one of those who come to a round.
    Here windows repeat, and all check-ins that are kept take part.

    Attributes:
        rounds: number of rounds.
        window: length of a window, in rounds.
        keep: probability that a check-in becomes a participation, in (0, 1].
    """

    kind: ClassVar[str] = "check-in"
    drawn_by_clients: ClassVar[bool] = True
    part_time: ClassVar[bool] = True

    window: int
    keep: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("window", self.window)
        check_rate("keep", self.keep)

    def participations(self) -> float:
        """Expected participations: ``keep * rounds / window``."""
        return self.keep * self.rounds / self.window

    def most_participations(self) -> int:
        """The most windows that a run can touch."""
        return min(self.rounds, -(-(self.rounds + self.window - 1) // self.window))

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(population) a window: O(cohort) a round on average."""
        # How many rounds before each multiple of `window` a client's own window begins.
        phase = rng.integers(self.window, size=population)
        ids, when = self._check_ins(phase, rng)
        for start in range(0, self.rounds, self.window):
            late = (
                when >= 0
            )  # in the block of rounds from `start`, not in the one before
            next_ids, next_when = self._check_ins(phase, rng)
            early = next_when < 0
            here = np.concatenate([ids[late], next_ids[early]])
            times = np.concatenate([when[late], next_when[early] + self.window])
            length = min(self.window, self.rounds - start)
            inside = times < length
            for places in by_round(times[inside], length):
                yield np.sort(here[inside][places])
            ids = next_ids
            when = next_when

    def _check_ins(
        self, phase: Cohort, rng: np.random.Generator
    ) -> tuple[Cohort, Cohort]:
        """Who checks in, and how many rounds after the multiple of ``window`` they do."""
        many = len(phase)
        ids = (
            np.arange(many)
            if self.keep == 1
            else draw(rng, many, rng.binomial(many, self.keep))
        )
        return ids, rng.integers(self.window, size=len(ids)) - phase[ids]

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: once in each window, a type for every place where it may begin.

        Without events if windows and rounds are so many that they would take too much memory.
        """
        law = super().law(population)
        if self.window * self.rounds > _MOST_CELLS:
            return law
        chance = self.keep / self.window
        types = []
        for phase in range(self.window):
            edges = [
                0,
                *range(self.window - phase, self.rounds, self.window),
                self.rounds,
            ]
            blocks = [(a, np.full(b - a, chance)) for a, b in itertools.pairwise(edges)]
            types.append(Events.blocks(blocks))
        shares = np.full(self.window, 1 / self.window)
        return dataclasses.replace(law, events=Events.mixed(shares, types))


@dataclasses.dataclass(frozen=True)
class TimeOfDay(Rated):
    """Clients who are available at night: a cohort of fixed size from the zones where it is night.

    Each client is in a random time zone, and available in the first ``hours`` of its local day.
    Zones are equally full, up to one client. Every round draws its cohort uniformly from those
    available; if rounding leaves one too few, it takes all of them. So the cohort's population
    changes with the time of day (semi-cyclic, Eichner et al. 2019).
    Guarantee: nobody takes part outside its hours; sizes are as in `FixedSize`; everybody takes
    part in every round with probability ``rate`` if the zone is not known. For an adversary who
    knows the zone, the rate in open hours is about ``24 / hours`` times higher.

    Attributes:
        rounds: number of rounds.
        rate: share of the whole population in a cohort, in (0, 1].
        rounds_per_day: length of a day, in rounds.
        hours: how long a client is available on each day, in hours (default: 8).
        zones: number of time zones (default: 24).
    """

    kind: ClassVar[str] = "time-of-day"
    part_time: ClassVar[bool] = True

    rounds_per_day: int
    hours: float = 8
    zones: int = 24

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("rounds_per_day", self.rounds_per_day)
        check_count("zones", self.zones)
        if not 24 / self.zones <= self.hours <= 24:
            raise_invalid(
                "hours",
                self.hours,
                f"in [24/zones={24 / self.zones}, 24], so that one zone is always open",
            )
        if min(self.rounds_per_day, self.rounds) * self.zones > 10 * _MOST_CELLS:
            raise_invalid(
                "zones", self.zones, f"<= {10 * _MOST_CELLS} / rounds_per_day"
            )
        least = self.open_zones().mean(axis=1).min()
        if self.rate > least + 1e-12:
            raise_invalid(
                "rate",
                self.rate,
                f"<= {least}, the share of zones open in some round (it is participations over "
                "rounds)",
            )

    def most_participations(self) -> int:
        """The most rounds for which a zone is open."""
        days, rest = divmod(self.rounds, self.rounds_per_day)
        is_open = self.open_zones()
        return int(np.max(days * is_open.sum(axis=0) + is_open[:rest].sum(axis=0)))

    def open_zones(self) -> Booleans:
        """Which zones are open at which round of the day, shape ``(rounds of a day, zones)``.

        In round r the local time of zone z is the fraction ``r / rounds_per_day + z / zones`` of
        a day, whole days left out. A day that is longer than the run is cut to the run.
        """
        day = self.rounds_per_day
        zones = self.zones
        round_of_day = np.arange(min(day, self.rounds))[:, None]
        local = (round_of_day * zones + np.arange(zones) * day) % (day * zones)
        return 24 * local < self.hours * day * zones

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(cohort + zones) a round."""
        is_open = self.open_zones()
        members = np.roll(even_sizes(population, self.zones), rng.integers(self.zones))
        clients = rng.permutation(population)  # zone after zone
        starts = np.cumsum(members) - members
        for t, size in enumerate(self._sizes(population)):
            zones = np.flatnonzero(is_open[t % len(is_open)])
            ends = np.cumsum(members[zones])
            available = int(ends[-1])
            places = draw(rng, available, min(size, available))
            # From a place among the available to the place among all.
            zone = np.searchsorted(ends, places, side="right")
            shift = starts[zones] - (ends - members[zones])
            yield np.sort(clients[places + shift[zone]])

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: for each zone, coins in the rounds in which it is open.

        Zones are taken as equally full, which they are up to one client. Theorems are for cohorts
        that are drawn within the open hours of a known zone.
        """
        is_open = self.open_zones()
        open_at = is_open[np.arange(self.rounds) % len(is_open)]
        drawn = (
            self._sizes(population) * self.zones
        )  # so that all zones together are exact
        share = np.minimum(drawn / (population * open_at.sum(axis=1)), 1.0)
        fewest = int(is_open.sum(axis=1).min())  # zones in any round
        available = max(1, population * fewest // self.zones)
        size = min(available, math.ceil(self.rate * population))
        rounds = self.most_participations()
        return dataclasses.replace(
            super().law(population),
            cohorts=FixedCohorts(rounds, available, size, ", the zone known"),
            events=Events.mixed(
                np.full(self.zones, 1 / self.zones),
                [Events.coins(column * share) for column in open_at.T],
            ),
        )


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
    drawn_by_clients: ClassVar[bool] = True

    rates: tuple[float, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.rates) != len(self.shares):
            raise_invalid("rates", self.rates, f"to be as many as shares={self.shares}")
        for name in ("rates", "shares"):
            if not all(0 <= value <= 1 for value in getattr(self, name)):
                raise_invalid(name, getattr(self, name), "in [0, 1]")
        if not abs(sum(self.shares) - 1) < 1e-9:
            raise_invalid("shares", self.shares, "to add up to 1")

    def participations(self) -> float:
        """Expected participations: ``rounds`` times the mean rate."""
        return self.rounds * sum(
            r * s for r, s in zip(self.rates, self.shares, strict=True)
        )

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(cohort) a round."""
        members = rng.multinomial(population, np.array(self.shares) / sum(self.shares))
        clients = rng.permutation(population)  # class after class
        starts = np.cumsum(members) - members
        for _ in range(self.rounds):
            sizes = rng.binomial(members, self.rates)
            classes = zip(starts, members, sizes, strict=True)
            parts = [start + draw(rng, many, size) for start, many, size in classes]
            yield np.sort(clients[np.concatenate(parts)])

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: the coins of each class; theorems are for the busiest one."""
        return dataclasses.replace(
            super().law(population),
            coins=Coins(self.rounds, max(self.rates), ", in the busiest class"),
            events=Events.mixed(
                np.array(self.shares) / sum(self.shares),
                [Events.coins(np.full(self.rounds, rate)) for rate in self.rates],
            ),
        )
