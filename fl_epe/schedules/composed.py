"""Schedules made of other schedules: caps on participation, and participants who drop out."""

import abc
import collections
import dataclasses
import functools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from fl_epe.checks import check_count, check_fraction, raise_invalid
from fl_epe.schedules.contract import Cohort, Schedule
from fl_epe.schedules.law import Coins, Events, ParticipationLaw
from fl_epe.schedules.trace import Trace
from fl_epe.seeding import generator

# Number of simulated runs of `Capped.participations`, number of clients in each, and their seed.
_RUNS = 10
_CLIENTS = 1000
_SEED = 1


@dataclasses.dataclass(frozen=True)
class Composed(Schedule, abc.ABC):
    """A schedule that is made of another one, over the same rounds."""

    rounds: int = dataclasses.field(init=False, repr=False)
    schedule: Schedule

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", self.schedule.rounds)
        super().__post_init__()


@dataclasses.dataclass(frozen=True)
class DropOut(Composed):
    """Each participant of another schedule drops out by an independent coin.

    Guarantee: given the other schedule's cohort, those who do not drop out are a Poisson sample of
    it with probability ``1 - rate``. Every limit of the other schedule also holds here. Nobody
    replaces a participant who drops out.

    Attributes:
        rounds: number of rounds, as in ``schedule``.
        schedule: the other schedule.
        rate: probability of dropping out, in [0, 1).
    """

    kind: ClassVar[str] = "drop-out"

    rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("rate", self.rate)

    def participations(self) -> float:
        """Expected participations: ``1 - rate`` times those of the other schedule."""
        return (1 - self.rate) * self.schedule.participations()

    def most_participations(self) -> int:
        """The largest number of participations that the other schedule allows."""
        return self.schedule.most_participations()

    def cohorts(
        self, population: int, rng: np.random.Generator
    ) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(cohort) a round more than the other schedule."""
        for cohort in self.schedule.cohorts(population, rng):
            yield cohort[rng.random(len(cohort)) >= self.rate]

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: the other schedule's, with a coin for each participation.

        Limits and cohorts of fixed size do not change: dropping out cannot weaken privacy.
        """
        law = self.schedule.law(population)
        keep = 1 - self.rate
        # Without other coins, a client tosses one in each of its rounds.
        coins = law.coins or Coins(law.limit, 1.0)
        return dataclasses.replace(
            law,
            name=self.kind,
            participations=self.participations(),
            regular=False,
            coins=dataclasses.replace(coins, rate=coins.rate * keep),
            events=law.events and law.events.thinned(keep),
            events_at_most=law.events_at_most
            and law.events_at_most.thinned(keep),
            dominating=law.dominating and law.dominating.thinned(keep),
        )


@dataclasses.dataclass(frozen=True)
class Capped(Composed):
    """Another schedule, with participations beyond a cap refused.

    Guarantee: nobody takes part more than ``per_run`` times, nor more than ``per_window`` times
    in any ``window`` consecutive rounds. The earliest participations are accepted, and refused
    ones do not count. Nobody replaces a client who is refused, so later cohorts may be smaller.

    Attributes:
        rounds: number of rounds, as in ``schedule``.
        schedule: the other schedule.
        per_run: largest number of participations of a client in the run (default: no such cap).
        per_window: largest number in any ``window`` consecutive rounds (default: no such cap).
        window: length of the window, in rounds; given together with ``per_window``.
    """

    kind: ClassVar[str] = "capped"

    per_run: int | None = None
    per_window: int | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_run is None and self.per_window is None:
            raise_invalid(
                "per_run", None, "to be a number, or per_window to be given"
            )
        if (self.per_window is None) != (self.window is None):
            raise_invalid(
                "per_window",
                self.per_window,
                f"to be given together with window, which is {self.window}",
            )
        for name in ("per_run", "window", "per_window"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        _, per_window, window = self._caps()
        if per_window > window:
            raise_invalid("per_window", per_window, f"<= window={window}")

    # The cache keeps schedules alive, but there are few, and equal ones share an entry.
    @functools.cache  # noqa: B019
    def participations(self) -> float:
        """Expected participations: exact if the cap changes nothing, else simulated.

        There is no closed form. The simulated value is the mean over 10 runs from a fixed seed,
        with 1,000 clients each, or with the clients of the trace that is capped. In a small
        population, rounded cohort sizes can change the mean a little.
        """
        if not self.refuses:
            return self.schedule.participations()
        clients = clients_of(self.schedule, _CLIENTS)
        means = []
        for run in range(_RUNS):
            cohorts = self.cohorts(clients, generator(_SEED, run))
            means.append(sum(map(len, cohorts)) / clients)
        return float(np.mean(means))

    def most_participations(self) -> int:
        """The smallest of the caps and of the other schedule's limit."""
        per_run, per_window, window = self._caps()
        windows, remaining_rounds = divmod(self.rounds, window)
        in_windows = windows * per_window + min(remaining_rounds, per_window)
        return min(self.schedule.most_participations(), per_run, in_windows)

    def cohorts(
        self, population: int, rng: np.random.Generator
    ) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(cohort) a round more than the other schedule."""
        per_run, per_window, window = self._caps()
        # Accepted participations of each client in the run, and in the last ``window`` rounds.
        in_run = np.zeros(population, np.int32)
        in_window = np.zeros(population, np.int32)
        recent: collections.deque[Cohort] = collections.deque()
        for cohort in self.schedule.cohorts(population, rng):
            if len(recent) == window:
                in_window[recent.popleft()] -= 1
            is_below_caps = in_run[cohort] < per_run
            is_below_caps &= in_window[cohort] < per_window
            accepted = cohort[is_below_caps]
            in_run[accepted] += 1
            in_window[accepted] += 1
            recent.append(accepted)
            yield accepted

    @property
    def refuses(self) -> bool:
        """Whether the caps can refuse a participation at all."""
        limit = self.schedule.most_participations()
        per_run, per_window, window = self._caps()
        return limit > per_run or (limit > per_window and per_window < window)

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: the other schedule's, with the cap's limit.

        A client that a cap refuses takes part in fewer of the rounds that the coins gave it,
        which cannot weaken privacy (docs/notes/limit.md). For cohorts of fixed size no such
        theorem is claimed, as cohorts with refused clients are smaller. The events are known for a
        trace, and for a cap on the run unless rests, a fixed number of participations, or
        drop-outs make the other schedule's events depend on each other; of a cap inside a cap,
        the smaller one counts.
        """
        law = dataclasses.replace(
            self.schedule.law(population),
            name=self.kind,
            participations=self.participations(),
        )
        if not self.refuses:
            return law
        inner = law.events
        events = None
        if isinstance(self.schedule, Trace):
            # The cohorts of a trace are not random.
            clients = self.schedule.population
            cohorts = list(self.cohorts(clients, generator(_SEED)))
            sizes = [len(cohort) for cohort in cohorts]
            rounds = np.repeat(np.arange(self.rounds), sizes)
            events = Events.certain(np.concatenate(cohorts), rounds, clients)
        elif (
            inner is not None
            and self.per_run is not None
            and self.per_window is None
        ):
            is_capped_at_most = (
                inner.keep == 1 and inner.rest == 1 and inner.exactly is None
            )
            if is_capped_at_most:
                most = min(self.per_run, inner.most or self.per_run)
                events = dataclasses.replace(inner, most=most)
        return ParticipationLaw(
            self.rounds,
            law.participations,
            self.most_participations(),
            self.kind,
            coins=law.coins,
            events=events,
            events_at_most=inner or law.events_at_most,
        )

    def _caps(self) -> tuple[int, int, int]:
        """``per_run``, ``per_window`` and ``window``, with values that refuse nobody by default."""
        per_run = self.rounds if self.per_run is None else self.per_run
        if self.per_window is None or self.window is None:
            return per_run, 1, 1
        return per_run, self.per_window, self.window


def basis_of(schedule: Schedule) -> Schedule:
    """The schedule itself, or the one that a composition is made of."""
    while isinstance(schedule, Composed):
        schedule = schedule.schedule
    return schedule


def trace_of(schedule: Schedule) -> Trace | None:
    """The trace that a schedule or a composition replays; ``None`` if it replays none."""
    basis = basis_of(schedule)
    if isinstance(basis, Trace):
        return basis
    return None


def clients_of(schedule: Schedule, clients: int) -> int:
    """The number of clients: that of the trace that the schedule replays, else ``clients``."""
    trace = trace_of(schedule)
    if trace is None:
        return clients
    return trace.population
