"""Schedules made of other schedules: caps on participation, and participants who drop out."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from fl_epe.checks import check_count
from fl_epe.schedules.contract import Cohort, PrivacyLaw, Schedule
from fl_epe.schedules.trace import Trace
from fl_epe.seeding import generator

CLIENTS = 1000
"""Clients in each of the runs that estimate what has no closed form (a trace brings its own)."""

RUNS = 10
"""How many of these runs there are."""

_SEED = 1


@dataclasses.dataclass(frozen=True)
class DropOut(Schedule):
    """Each participant of another schedule drops out by an independent coin.

    Guarantee: who is left is, given the other schedule's cohort, a Poisson sample of it with
    probability ``1 - rate``; every limit of the other schedule holds here too. A dropped
    participation is not made up for.
    """

    kind: ClassVar[str] = "drop-out"

    rounds: int = dataclasses.field(init=False, repr=False)
    schedule: Schedule
    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", self.schedule.rounds)
        super().__post_init__()
        if not 0 <= self.rate < 1:
            raise ValueError(f"Expected rate={self.rate} in [0, 1).")

    def participations(self) -> float:
        """Expected participations: ``1 - rate`` times those of the other schedule."""
        return (1 - self.rate) * self.schedule.participations()

    def most_participations(self) -> int:
        """As many as the other schedule allows."""
        return self.schedule.most_participations()

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(cohort) a round more than the other schedule."""
        for cohort in self.schedule.cohorts(population, rng):
            yield cohort[rng.random(len(cohort)) >= self.rate]

    def privacy_law(self, population: int) -> PrivacyLaw:
        """See `Schedule.privacy_law`: the other schedule's, with coins and counts thinned.

        Limits and cohorts of fixed size stay as they are, since dropping out only helps.
        """
        law, keep = self.schedule.privacy_law(population), 1 - self.rate
        return dataclasses.replace(
            law,
            coins=law.coins and law.coins.thinned(keep),
            counts=law.counts and law.counts.thinned(keep),
        )


@dataclasses.dataclass(frozen=True)
class Capped(Schedule):
    """Another schedule, with participations beyond a cap refused.

    Guarantee: nobody takes part more than ``per_run`` times, nor more than ``per_window`` times
    in any ``window`` consecutive rounds. Only participations that were let in count, the earliest
    come first, and nobody takes the place of the refused: each cohort is a part of the other
    schedule's cohort. So later rounds may be emptier than the first ones.
    """

    kind: ClassVar[str] = "capped"

    rounds: int = dataclasses.field(init=False, repr=False)
    schedule: Schedule
    per_run: int | None = None
    per_window: int | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", self.schedule.rounds)
        super().__post_init__()
        if self.per_run is None and self.per_window is None:
            raise ValueError("Expected a cap, got per_run=None and per_window=None.")
        if (self.per_window is None) != (self.window is None):
            raise ValueError(
                f"Expected per_window={self.per_window} and window={self.window} together."
            )
        for name in ("per_run", "window", "per_window"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        _, per_window, window = self._caps()
        if per_window > window:
            raise ValueError(f"Expected per_window={per_window} <= window={window}.")

    def participations(self) -> float:
        """Expected participations, from simulated runs unless the cap cannot matter.

        There is no closed form: this is the mean of `RUNS` runs with `CLIENTS` clients each (a
        trace's own clients, if there is one inside), with a fixed seed; simulated once and kept.
        See `participations_error` for its standard error. With few clients, rounded cohort sizes
        can move the truth a little.
        """
        return self._estimate[0]

    def participations_error(self) -> float:
        """Standard error of `participations`, from the spread of its runs; 0 if it is exact."""
        return self._estimate[1]

    def most_participations(self) -> int:
        """The least of the caps and of what the other schedule allows."""
        per_run, per_window, window = self._caps()
        windows, rest = divmod(self.rounds, window)
        in_windows = windows * per_window + min(rest, per_window)
        return min(self.schedule.most_participations(), per_run, in_windows)

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(cohort) a round more than the other schedule."""
        per_run, per_window, window = self._caps()
        in_run = np.zeros(population, np.int32)
        in_window = np.zeros(population, np.int32)
        recent: collections.deque[Cohort] = collections.deque()
        for cohort in self.schedule.cohorts(population, rng):
            if len(recent) == window:
                in_window[recent.popleft()] -= 1
            let_in = cohort[(in_run[cohort] < per_run) & (in_window[cohort] < per_window)]
            in_run[let_in] += 1
            in_window[let_in] += 1
            recent.append(let_in)
            yield let_in

    def _caps(self) -> tuple[int, int, int]:
        """The caps with numbers that cannot matter for those that are not set."""
        per_run = self.rounds if self.per_run is None else self.per_run
        if self.per_window is None or self.window is None:
            return per_run, 1, 1
        return per_run, self.per_window, self.window

    @functools.cached_property
    def _estimate(self) -> tuple[float, float]:
        """Expected participations, and the standard error."""
        most = self.schedule.most_participations()
        per_run, per_window, window = self._caps()
        if most <= per_run and (most <= per_window or per_window == window):
            return self.schedule.participations(), 0.0
        clients = _population(self.schedule)
        totals = [
            sum(len(cohort) for cohort in self.cohorts(clients, generator(_SEED, run)))
            for run in range(RUNS)
        ]
        means = np.array(totals) / clients
        return float(means.mean()), float(means.std(ddof=1) / np.sqrt(RUNS))


def _population(schedule: Schedule) -> int:
    """The clients of the trace that a composition replays, or else `CLIENTS`."""
    if isinstance(schedule, Trace):
        return schedule.population
    if isinstance(schedule, DropOut | Capped):
        return _population(schedule.schedule)
    return CLIENTS
