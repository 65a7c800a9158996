"""The participation law: how a unit takes part in a run, and what adversaries do not know of it.

A unit is what privacy is claimed for: a client, or a record of a silo. A schedule gives the law
of one of its clients (`fl_epe.schedules.Schedule.law`), and the record of a run contains this law.
Theory and estimates depend on the law, not on the schedule's name.

Examples:
    >>> law = ParticipationLaw(rounds=4, participations=2.0, most=4, events=Events.coins([0.5] * 4))
    >>> law.events.participations
    2.0
    >>> law.first(2).events.participations
    1.0
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fl_epe.checks import (
    Booleans,
    Floats,
    Integers,
    check_count,
    raise_invalid,
    tail_sums,
)
from fl_epe.wording import unit_of_records

# Numbers of participations in a release that are less likely than this are left out.
_MIN_CHANCE = 1e-30
# Number of cells of the grid on which unequal steps are added, up to the largest weight.
_CELLS_OF_A_STEP = 100
# Number of cells of the coarser grid to which the sum of unequal steps is then reduced.
_CELLS_OF_A_SUM = 100
_ROUNDING = 1e-12  # relative difference of equal numbers that were rounded

Adjacency = Literal["zero-out", "add-or-remove"]
"""The relation of the two runs that ε compares.

One run has the unit. In the other one, the unit's updates are zero ("zero-out"), or the unit is
absent ("add-or-remove").
"""


@dataclasses.dataclass(frozen=True)
class Coins:
    """A unit takes part in each of ``rounds`` rounds with probability ``rate``, independently.

    The coin is independent of everything else, also of the coins of other units.

    Attributes:
        rounds: number of rounds in which the unit may take part.
        rate: largest probability of taking part in one of them, in [0, 1].
        condition: what the coins are conditional on, in words that follow "takes part by coins",
            such as ", in the busiest class".
    """

    rounds: int
    rate: float
    condition: str = ""


@dataclasses.dataclass(frozen=True)
class FixedCohorts:
    """Each of ``rounds`` rounds draws ``size`` units of ``available``, without replacement.

    Attributes:
        rounds: number of rounds in which a unit may be drawn.
        available: number of units from which a cohort is drawn.
        size: number of units in a cohort.
    """

    rounds: int
    available: int
    size: int


@dataclasses.dataclass(frozen=True)
class LocalSteps:
    """The steps of DP-SGD that a silo takes before each release, with Poisson-sampled records.

    Attributes:
        counts: number of steps before each release; 0 if the silo has no part in it.
        rates: sampling rate of the steps of each release.
        records: number of records of one unit, which are sampled independently in each step.
    """

    counts: tuple[int, ...]
    rates: tuple[float, ...]
    records: int = 1

    @property
    def total(self) -> int:
        """Number of steps in all releases."""
        return sum(self.counts)

    @property
    def participations(self) -> float:
        """Expected number of steps that have a record of the unit."""
        unit_rates = 1 - (1 - np.array(self.rates)) ** self.records
        return float(np.array(self.counts) @ unit_rates)

    def every_step(self) -> Events:
        """The events of a unit for an adversary who sees every step, which counts as a round."""
        rates = np.repeat(self.rates, self.counts).tolist()
        return Events.steps([np.ones(1)] * self.total, rates, self.records)

    def first(self, releases: int) -> LocalSteps:
        """The steps of the first releases."""
        return LocalSteps(
            self.counts[:releases], self.rates[:releases], self.records
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Event:
    """One event of a unit: its possible participations, of which at most one happens.

    Attributes:
        rounds: the round of each possible participation, ``(rows,)``.
        chances: the probability of each possible participation, ``(rows,)``.
        counts: how many times the round's release then has the unit, ``(rows,)``.
    """

    rounds: Integers
    chances: Floats
    counts: Floats

    @property
    def chance(self) -> float:
        """The probability that the unit takes part at all."""
        return min(float(self.chances.sum()), 1.0)

    @property
    def in_one_round(self) -> bool:
        """Whether all possible participations are in the same round."""
        return bool(np.all(self.rounds == self.rounds[0]))

    @property
    def is_coin(self) -> bool:
        """Whether the unit is in one fixed round once, or in none."""
        return len(self.rounds) == 1 and bool(self.counts[0] == 1)

    @property
    def is_known_round(self) -> bool:
        """Whether the unit is in one fixed round once for sure."""
        return self.is_coin and self.chance == 1

    @property
    def is_spread(self) -> bool:
        """Whether the unit is in one of several rounds once, or in none."""
        return not self.in_one_round and bool(np.all(self.counts == 1))

    @property
    def is_uniform(self) -> bool:
        """Whether the unit is in one of several rounds once, with equal probabilities."""
        return self.is_spread and bool(
            np.ptp(self.chances) <= _ROUNDING * self.chances[0]
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Events:
    """How a unit draws its rounds: by events that follow each other in time.

    In each event a unit takes part in at most one round. Events are independent, unless ``rest``,
    ``most`` or ``exactly`` makes them depend on each other. Units may be of several types. Arrays
    have a row for each possible round of each event of each type.

    Attributes:
        shares: probability that a unit is of each type, ``(types,)``; they add up to 1.
        types: index of the type of each row, ascending, ``(rows,)``.
        events: index of the event of each row, ascending from 0 within a type, ``(rows,)``.
        rounds: round of each row, ``(rows,)``.
        chances: probability of taking part in the row's round, ``(rows,)``; those of an event
            add up to at most 1.
        counts: how many times the round's release then has the unit, ``(rows,)``; ``None``
            if always once. A record that is in each of s equal steps of a silo with probability q
            has an event for each round, whose rows have the counts 1 … s and binomial chances.
        keep: probability that a participation that the cap has accepted counts. Whether it counts
            or not, it uses up the cap and causes a rest.
        most: the cap: the number of participations after which further ones are refused;
            ``None`` for no cap.
        rest: after an event in which it takes part, a unit takes no part in the next
            ``rest - 1`` events; ``chances`` are those of a unit that is not resting.
        exactly: number of events of the run in which a unit takes part, if this number is fixed
            and every choice of events is equally likely; else ``None``.
        among: number of events from which ``exactly`` are chosen.
    """

    shares: Floats
    types: Integers
    events: Integers
    rounds: Integers
    chances: Floats
    counts: Floats | None = None
    keep: float = 1.0
    most: int | None = None
    rest: int = 1
    exactly: int | None = None
    among: int = 0

    def __post_init__(self) -> None:
        columns = [self.types, self.events, self.rounds, self.chances]
        if self.counts is not None:
            columns.append(self.counts)
        shapes = [np.shape(column) for column in columns]
        if len(set(shapes)) > 1 or len(shapes[0]) != 1:
            raise_invalid("events", shapes, "to have rows of one length")
        last_type = len(self.shares) - 1
        is_type = (self.types >= 0) & (self.types <= last_type)
        if not np.all(is_type) or np.any(np.diff(self.types) < 0):
            wanted = f"from 0 to {last_type}, ascending"
            raise_invalid("events.types", self.types, wanted)
        if not np.all((self.chances >= 0) & (self.chances <= 1)):
            raise_invalid("events.chances", self.chances, "in [0, 1]")
        if np.any(self.rounds < 0):
            raise_invalid("events.rounds", self.rounds, ">= 0")

    @classmethod
    def coins(cls, chances: ArrayLike, rest: int = 1) -> Self:
        """One event a round, with these probabilities of taking part, ``(T,)``."""
        round_chances = np.asarray(chances, np.float64)
        rounds = np.flatnonzero(round_chances)
        # A rest is a number of events, so with a rest, rounds of chance 0 count as events as well.
        events = np.arange(len(rounds)) if rest == 1 else rounds
        return cls._of_one_type(
            events, rounds, round_chances[rounds], rest=rest
        )

    @classmethod
    def _of_one_type(
        cls, events: Integers, rounds: Integers, chances: Floats, **options: Any
    ) -> Self:
        """The events of units of a single type."""
        types = np.zeros(len(rounds), np.int64)
        return cls(np.ones(1), types, events, rounds, chances, **options)

    @classmethod
    def subset(cls, rounds: int, size: int) -> Self:
        """A uniform subset of ``size`` rounds."""
        coins = cls.coins(np.full(rounds, size / rounds))
        return dataclasses.replace(coins, exactly=size, among=rounds)

    @classmethod
    def steps(
        cls, steps: Sequence[Floats], rates: Sequence[float], records: int = 1
    ) -> Self:
        """A unit of ``records`` records that are sampled into the steps of each release.

        A release is the weighted sum of its steps. In each step, each record is sampled
        independently. If the steps of a release have equal weights, the law is exact. Otherwise
        it has at most 100 rows, and a sum between two rows is split between them so that
        probability and mean do not change. This spreads the sum, so all Rényi divergences of
        integer order from an absent unit are rounded up.

        Args:
            steps: for each release the weights of its steps, ``(s_t,)``, in units of what a
                record adds once.
            rates: for each release the probability that a record is in a step.
            records: number of records of the unit.
        """
        # Empty arrays, as there may be no release.
        rounds = [np.empty(0, np.int64)]
        counts = [np.empty(0)]
        chances = [np.empty(0)]
        for t, (weights, rate) in enumerate(zip(steps, rates, strict=True)):
            step_weights = tuple(np.asarray(weights, np.float64).tolist())
            release_counts, release_chances = _law_of_release(
                step_weights, rate, records
            )
            rounds.append(np.full(len(release_counts), t))
            counts.append(release_counts)
            chances.append(release_chances)
        all_rounds = np.concatenate(rounds)
        all_counts = np.concatenate(counts)
        return cls._of_one_type(
            all_rounds,
            all_rounds,
            np.concatenate(chances),
            counts=None if np.all(all_counts == 1) else all_counts,
        )

    @classmethod
    def blocks(cls, chances: Sequence[tuple[int, Floats]]) -> Self:
        """One event for each block of rounds.

        Args:
            chances: for each block its first round, and the probability of each of its rounds.
        """
        lengths = [len(block_chances) for _, block_chances in chances]
        rounds = [
            start + np.arange(len(block_chances))
            for start, block_chances in chances
        ]
        return cls._of_one_type(
            np.repeat(np.arange(len(chances)), lengths),
            np.concatenate(rounds),
            np.concatenate([block_chances for _, block_chances in chances]),
        )

    @classmethod
    def certain(cls, units: Integers, rounds: Integers, count: int) -> Self:
        """Units whose rounds are certain, each of which is a type.

        Args:
            units: index of the unit of each participation, ``(rows,)``.
            rounds: round of each participation, ``(rows,)``.
            count: number of units.
        """
        order = np.lexsort((rounds, units))
        types = units[order]
        events = np.arange(len(types)) - np.searchsorted(types, types)
        return cls(
            np.full(count, 1 / count),
            types,
            events,
            rounds[order],
            np.ones(len(types)),
        )

    def of_types(self) -> Iterator[tuple[float, Events]]:
        """The share of each type, and its events without those of other types."""
        ends = np.searchsorted(self.types, np.arange(len(self.shares) + 1))
        for index, share in enumerate(self.shares.tolist()):
            rows = self._rows(slice(ends[index], ends[index + 1]))
            types = np.zeros_like(rows.types)
            yield (
                share,
                dataclasses.replace(rows, shares=np.ones(1), types=types),
            )

    def first(self, rounds: int) -> Events:
        """The events of the first rounds of a run."""
        return self._rows(self.rounds < rounds)

    def thinned(self, keep: float) -> Events:
        """The events if each participation counts with probability ``keep`` only."""
        if not self.are_dependent:
            return dataclasses.replace(self, chances=self.chances * keep)
        # Participations that do not count still cause a rest, and still use up the cap.
        return dataclasses.replace(self, keep=self.keep * keep)

    @property
    def participations(self) -> float:
        """Expected number of rounds of a unit, without cap and rest."""
        return float(self.shares[self.types] @ self.chances) * self.keep

    @property
    def are_dependent(self) -> bool:
        """Whether a cap, a rest or a fixed number makes events depend on each other."""
        return (
            self.most is not None or self.rest > 1 or self.exactly is not None
        )

    @functools.cached_property
    def independent(self) -> tuple[Event, ...]:
        """The events one by one if they are independent, else an empty tuple.

        They are independent if all units are of one type, and neither a cap nor a rest nor a fixed
        number makes events depend on each other. The rows of an event must also be of one round, or
        of several rounds with counts of 1. No round may belong to two events of several rounds.
        """
        if len(self.shares) > 1 or self.keep < 1 or self.are_dependent:
            return ()
        starts = np.flatnonzero(np.diff(self.events, prepend=-1))
        ends = np.append(starts, len(self.events))[1:]
        counts = np.ones(len(self.rounds))
        if self.counts is not None:
            counts = self.counts
        events = []
        spread_rounds: list[int] = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            rows = slice(start, end)
            event = Event(self.rounds[rows], self.chances[rows], counts[rows])
            if event.is_spread:
                spread_rounds += event.rounds.tolist()
            elif not event.in_one_round:
                return ()
            events.append(event)
        has_shared_rounds = len(set(spread_rounds)) < len(spread_rounds)
        return () if has_shared_rounds else tuple(events)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Events):
            return self._key == other._key
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    @functools.cached_property
    def _key(self) -> tuple[Any, ...]:
        values = [
            getattr(self, field.name) for field in dataclasses.fields(self)
        ]
        return tuple(
            value.tobytes() if isinstance(value, np.ndarray) else value
            for value in values
        )

    def _rows(self, chosen: slice | Booleans) -> Events:
        """The events of these rows only."""
        return dataclasses.replace(
            self,
            types=self.types[chosen],
            events=self.events[chosen],
            rounds=self.rounds[chosen],
            chances=self.chances[chosen],
            counts=None if self.counts is None else self.counts[chosen],
        )


@functools.lru_cache(maxsize=1024)
def _law_of_release(
    steps: tuple[float, ...], rate: float, records: int
) -> tuple[Floats, Floats]:
    """How often a release may have a unit, in steps of weight 1, and the probabilities.

    Args:
        steps: weights of the release's steps.
        rate: probability that a record is in a step.
        records: number of records of the unit.

    Returns:
        The positive counts, and their probabilities, ``(rows,)`` each.
    """
    weights = np.array([weight for weight in steps if weight > 0])
    largest = float(weights.max(initial=0.0))
    if np.all(weights >= largest * (1 - _ROUNDING)):
        draws = len(weights) * records
        times = np.arange(1, draws + 1)
        counts = largest * times
        chances = scipy.stats.binom.pmf(times, draws, rate)
    else:
        counts, chances = _sum_of_steps(weights, rate, records)
    is_likely = (chances > _MIN_CHANCE) & (counts > 0)
    return counts[is_likely], chances[is_likely]


def _sum_of_steps(
    weights: Floats, rate: float, records: int
) -> tuple[Floats, Floats]:
    """The law of Σ w_s·Binomial(records, rate) over steps s: values, with 0, and probabilities."""
    cell = float(weights.max()) / _CELLS_OF_A_STEP
    times = np.arange(records + 1.0)
    drawn = np.asarray(scipy.stats.binom.pmf(times, records, rate), np.float64)
    law: Floats = np.ones(1)
    for weight in weights:
        cells = math.ceil(records * weight / cell) + 2
        grid = cell * np.arange(cells, dtype=np.float64)
        law = np.convolve(law, _split(weight * times, drawn, grid))
        law = law[: np.count_nonzero(tail_sums(law)[:-1] > _MIN_CHANCE)]
    values = cell * np.arange(len(law), dtype=np.float64)
    # Points are closest near 0, as small sums are most likely.
    points = values[-1] * np.linspace(0, 1, _CELLS_OF_A_SUM + 1) ** 2
    return points, _split(values, law, points)


def _split(values: Floats, chances: Floats, points: Floats) -> Floats:
    """The probability of each point, if each value is split between its two neighbours.

    The split does not change the total probability and the mean.
    """
    after = np.clip(
        np.searchsorted(points, values, side="right"), 1, len(points) - 1
    )
    upper = (values - points[after - 1]) / (points[after] - points[after - 1])
    of_lower = np.bincount(after - 1, (1 - upper) * chances, len(points))
    return np.asarray(
        of_lower + np.bincount(after, upper * chances, len(points))
    )


@dataclasses.dataclass(frozen=True)
class ParticipationLaw:
    """How a unit takes part in the rounds of a run, for a given adversary and adjacency.

    Attributes:
        rounds: number of rounds T.
        participations: expected number of rounds of a unit; ``None`` if it is not known.
        most: largest number of rounds of any unit; ``None`` if it is not limited.
        name: name of the schedule, for display only.
        unit: the unit of privacy, in a word.
        hidden: whether the adversary of the privacy claim does not know the unit's rounds.
        adjacency: the relation of the two runs that the ε of the privacy claim compares.
        separation: least distance between two rounds of a unit.
        regular: whether consecutive rounds of a unit are always ``separation`` apart.
        blocks: first round of each block and the round after its last, if a unit has at most
            one round in each block; blocks may overlap.
        uniform: whether a unit has one uniformly drawn round in each block, independent of
            everything else.
        coins: the coins, if the unit takes part in each round by a coin. They amplify privacy
            against an adversary who does not know the rounds.
        cohorts: the sizes, if each round draws a fresh cohort of fixed size. The draw amplifies
            privacy against an adversary who does not know the rounds.
        events: the exact law of one unit's rounds; ``None`` if it has no known closed form. It
            is the law of a single unit: with cohorts of fixed size, units depend on each other.
        events_at_most: if ``events`` is ``None``, the events of another law, of which this one
            only leaves out some participations.
        dominating: if ``events`` depend on each other, independent events whose privacy loss
            against an adversary who does not know the rounds is at least that of ``events``.
        local: the steps, if each release consists of steps of DP-SGD. Then ``participations``
            and ``most`` count steps, and theory holds for an adversary who sees every step.
    """

    rounds: int
    participations: float | None = None
    most: int | None = None
    name: str = "deployment"
    unit: str = "client"
    hidden: bool = False
    adjacency: Adjacency = "zero-out"
    separation: int = 1
    regular: bool = False
    blocks: tuple[tuple[int, int], ...] = ()
    uniform: bool = False
    coins: Coins | None = None
    cohorts: FixedCohorts | None = None
    events: Events | None = None
    events_at_most: Events | None = None
    dominating: Events | None = None
    local: LocalSteps | None = None

    def __post_init__(self) -> None:
        for events in (self.events, self.events_at_most, self.dominating):
            if events is not None and np.any(events.rounds >= self.rounds):
                raise_invalid(
                    "rounds",
                    self.rounds,
                    "to be larger than the index of every round of the events",
                )

    @classmethod
    def of_records(
        cls, steps: Sequence[Floats], rates: Sequence[float], records: int = 1
    ) -> Self:
        """The law of records in a silo that takes steps of DP-SGD before each of its releases.

        In each step, each record is sampled by a secret coin. With equal weights, the number of
        times that a release has a record is binomial, see `Events.steps`.

        Args:
            steps: for each release the weights of its steps, ``(s_t,)``, in units of what a
                record adds once to that release: ones, if steps are equal; empty if the silo
                has no part in the release.
            rates: for each release the sampling rate q of its steps, in [0, 1].
            records: number of records of the unit; a person may have several.

        Raises:
            ValueError: if an argument is out of range.
        """
        is_in_range = all(0 <= rate <= 1 for rate in rates)
        if len(steps) != len(rates) or not is_in_range:
            raise_invalid(
                "rates",
                rates,
                f"in [0, 1], one for each of {len(steps)} releases",
            )
        for weights in steps:
            if not np.all((weights >= 0) & np.isfinite(weights)):
                raise_invalid("steps", steps, "to be finite and >= 0")
        check_count("records", records)
        counts = tuple(len(weights) for weights in steps)
        local = LocalSteps(counts, tuple(map(float, rates)), records)
        coins = None
        if records == 1:
            coins = Coins(local.total, max(rates, default=0.0))
        return cls(
            len(steps),
            local.participations,
            local.total,
            name="records",
            unit=unit_of_records(records),
            hidden=min(local.rates, default=1.0) < 1,
            adjacency="add-or-remove",
            coins=coins,
            events=Events.steps(steps, rates, records),
            local=local,
        )

    @property
    def rate(self) -> float | None:
        """Expected share of the rounds in which a unit takes part; ``None`` if not known."""
        if self.participations is None:
            return None
        return self.participations / self.rounds

    @property
    def limit(self) -> int:
        """The largest number of rounds that a unit can have."""
        if self.most is None:
            return self.rounds
        return self.most

    @property
    def secret_events(self) -> Events | None:
        """Independent events for the ε of an adversary who does not know the rounds.

        They are ``events`` if these are independent, else ``dominating``, which may be ``None``.
        """
        if self.events is not None and self.events.independent:
            return self.events
        return self.dominating

    def in_record(self) -> ParticipationLaw:
        """The law as it is stored in a record: with ``events`` only if they are independent."""
        if self.events is not None and self.events.independent:
            return self
        return dataclasses.replace(self, events=None, events_at_most=None)

    def first(self, rounds: int) -> ParticipationLaw:
        """The law of the first ``rounds`` rounds of the run.

        A block that ends later is cut off. It still counts as a participation in ``most``.
        """
        if rounds >= self.rounds:
            return self
        blocks = tuple(
            (start, min(end, rounds))
            for start, end in self.blocks
            if start < rounds
        )
        participations = None if self.rate is None else self.rate * rounds
        limit = rounds
        local = None
        if self.local is not None:
            local = self.local.first(rounds)
            participations = local.participations
            limit = local.total
        coins = self.coins
        if coins is not None:
            coins = Coins(min(coins.rounds, limit), coins.rate, coins.condition)
        cohorts = self.cohorts
        if cohorts is not None:
            cohorts = dataclasses.replace(cohorts, rounds=rounds)
        return dataclasses.replace(
            self,
            rounds=rounds,
            participations=participations,
            most=min(self.limit, len(blocks) if blocks else limit),
            blocks=blocks,
            coins=coins,
            cohorts=cohorts,
            events=_first(self.events, rounds),
            events_at_most=_first(self.events_at_most, rounds),
            dominating=_first(self.dominating, rounds),
            local=local,
        )


def _first(events: Events | None, rounds: int) -> Events | None:
    """The events of the first rounds, if the events are known."""
    if events is None:
        return None
    return events.first(rounds)
