"""The law of one client's footprint under a schedule, and the largest footprint of many clients.

A footprint is what a client's rounds add up to: Σ w_t over its rounds for an adversary who sees the
final model, √Σ w_t for one who sees every round's. Where a schedule states the law of one client's
rounds (`Schedule.client_law`), the law of the sum is computed by convolution on a lattice. Weights
are rounded up to the lattice, by 0.1% of a mean participation on average, so that footprints are
never too small. Derivation: docs/notes/mixtures.md.

Examples:
    >>> from fl_epe.schedules import Poisson
    >>> law = footprint_law(Poisson(rounds=60, rate=0.05), np.ones(60), clients=10**6)
    >>> round(float(law.footprints @ law.shares), 6)  # three participations on average
    3.0
    >>> law.largest(10**6)  # 95% of the time nobody of a million takes part more often
    15.0
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.accounting.mixtures import rounded_up
from fl_epe.checks import check_count, check_probability
from fl_epe.schedules import Capped, ClientType, Schedule, Trace, TraceSample, trace_of
from fl_epe.seeding import generator

Floats = NDArray[np.float64]

_CELLS = 500  # of the lattice, for a mean participation
_FORGOTTEN = 1e-30  # a smaller tail is counted as taking part in every round
_MOST_ROWS = 1e8  # of simulated participations: half a minute
_ROWS_A_ROUND = 150  # as long as a round takes to draw
_FEW = 10_000  # clients that are drawn where all of them would take minutes
_MANY, _COARSE = 20_000, 2e-4  # a law of more footprints is rounded, by so much at most
_SEED = 13
_MOST_WORK = 4e9  # cells times rows: half a minute


@dataclasses.dataclass(frozen=True, eq=False)
class FootprintLaw:
    """Footprints of clients and their probabilities.

    Attributes:
        footprints: distinct and ascending, ``(values,)``.
        shares: probability of each, ``(values,)``; they add up to 1.
    """

    footprints: Floats
    shares: Floats

    @classmethod
    def of(cls, footprints: ArrayLike, shares: ArrayLike | None = None) -> FootprintLaw:
        """From values in any order; without ``shares`` all are equally likely."""
        given = np.asarray(footprints, np.float64).ravel()
        weights = np.ones(len(given)) if shares is None else np.asarray(shares, np.float64).ravel()
        values, places = np.unique(given, return_inverse=True)
        summed = np.asarray(np.bincount(places, weights / weights.sum()), np.float64)
        return cls(values[summed > 0], summed[summed > 0])

    def scaled(self, factor: float) -> FootprintLaw:
        """The law of ``factor`` times the footprint, for a factor ≥ 0."""
        return FootprintLaw.of(factor * self.footprints, self.shares)

    def root(self) -> FootprintLaw:
        """The law of the footprint's square root."""
        return FootprintLaw(np.sqrt(self.footprints), self.shares)

    def coarse(self, distance: float) -> FootprintLaw:
        """With each footprint rounded up, by a factor of at most ``1 + distance``."""
        return FootprintLaw.of(rounded_up(self.footprints, distance), self.shares)

    @property
    def mean(self) -> float:
        """The mean footprint."""
        return float(self.footprints @ self.shares)

    @property
    def equal(self) -> bool:
        """Whether footprints differ by less than 1%."""
        return bool(self.footprints[-1] - self.footprints[0] <= 0.01 * self.footprints[-1])

    def largest(self, clients: int, confidence: float = 0.95) -> float:
        """A footprint that none of ``clients`` clients exceeds, with probability ``confidence``.

        Guarantee: the probability that any of them exceeds it is at most ``1 - confidence``. It is
        at most ``clients`` times that of one client, however the clients depend on each other.

        Raises:
            ValueError: if an argument is out of range.
        """
        check_count("clients", clients)
        check_probability("confidence", confidence)
        beyond = np.append(np.cumsum(self.shares[:0:-1])[::-1], 0.0)  # P[footprint > value]
        return float(self.footprints[np.argmax(beyond * clients <= 1 - confidence)])


def footprint_law(schedule: Schedule, weights: ArrayLike, clients: int) -> FootprintLaw | None:
    """The law of Σ w_t over the rounds of one client.

    Args:
        schedule: who takes part when. Of a trace, one of its clients is drawn at random.
        weights: what taking part in each round adds, w_t ≥ 0, shape ``(T,)``.
        clients: number of clients that the schedule is for; cohorts of fixed size depend on it.

    Returns:
        ``None`` if no law in closed form is known, or if it would take minutes.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count("clients", clients)
    added = np.asarray(weights, np.float64)
    if added.shape != (schedule.rounds,) or not np.all((added >= 0) & np.isfinite(added)):
        raise ValueError(f"Expected weights={added} >= 0, one for each of {schedule.rounds}.")
    trace = trace_of(schedule)
    if isinstance(schedule, Trace | TraceSample) and trace is not None:
        sums = np.bincount(trace.client_ids, added[trace.round_ids], minlength=trace.population)
        return FootprintLaw.of(sums)
    if trace is not None and _replays(schedule):
        return FootprintLaw.of(_sums(schedule, added, trace.population, generator(_SEED, 0)))
    kinds = schedule.client_law(clients)
    if kinds is None:
        return None
    found = [_of_type(kind, added) for kind in kinds]
    if any(part is None for part in found):
        return None
    values, shares = zip(*(part for part in found if part is not None), strict=True)
    return FootprintLaw.of(np.concatenate(values), np.concatenate(shares))


def largest_footprint(
    schedule: Schedule,
    weights: ArrayLike,
    clients: int,
    confidence: float = 0.95,
    rng: np.random.Generator | None = None,
) -> tuple[float, bool] | None:
    """A footprint Σ w_t that none of ``clients`` clients exceeds, and whether it was simulated.

    By the exact law where there is one (`FootprintLaw.largest`). Otherwise populations are drawn,
    so many that the largest footprint of all of them is above the quantile ``confidence`` of one
    population's largest, with probability ``confidence`` (59 of them for 95%).

    Args:
        schedule: who takes part when.
        weights: what taking part in each round adds, w_t ≥ 0, shape ``(T,)``.
        clients: how many clients there are.
        confidence: of the statement.
        rng: for simulation; one with a fixed seed by default.

    Returns:
        ``None`` if there is no exact law and simulation would take minutes.

    Raises:
        ValueError: if an argument is out of range.
    """
    law = footprint_law(schedule, weights, clients)
    if law is not None:
        return law.largest(clients, confidence), False
    check_probability("confidence", confidence)
    simulated = simulated_law(schedule, weights, clients, _populations(confidence), rng)
    return None if simulated is None else (float(simulated.footprints[-1]), True)


def simulated_law(
    schedule: Schedule,
    weights: ArrayLike,
    clients: int,
    runs: int = 59,
    rng: np.random.Generator | None = None,
) -> FootprintLaw | None:
    """Footprints Σ w_t of all clients in simulated runs; ``None`` if that would take minutes.

    Arguments are as in `largest_footprint`; ``runs`` is the number of populations.
    """
    rows = clients * (1 + schedule.participations()) + _ROWS_A_ROUND * schedule.rounds
    if runs * rows > _MOST_ROWS:
        return None
    rng = rng or generator(_SEED, 0)
    added = np.asarray(weights, np.float64)
    return FootprintLaw.of([_sums(schedule, added, clients, rng) for _ in range(runs)])


@dataclasses.dataclass(frozen=True, eq=False)
class ClientsLaw:
    """The law of a client's footprint, computed or of clients that were drawn.

    Attributes:
        law: the law.
        drawn: number of clients that were drawn; 0 where the law is computed.
        whole: whether all clients of a population were drawn together.
    """

    law: FootprintLaw
    drawn: int = 0
    whole: bool = True

    def largest(self, clients: int, confidence: float) -> float | None:
        """A footprint that none of ``clients`` clients exceeds; ``None`` if it is not known."""
        if not self.drawn:
            return self.law.largest(clients, confidence)
        return float(self.law.footprints[-1]) if self.whole else None


def clients_law(
    schedule: Schedule,
    weights: ArrayLike,
    clients: int,
    *,
    confidence: float = 0.95,
    replicates: int = 1,
    seed: int = 0,
) -> ClientsLaw | None:
    """The law of Σ w_t over the rounds of a client: computed, or else of clients that are drawn.

    Args:
        schedule: who takes part when.
        weights: what taking part in each round adds, w_t ≥ 0, shape ``(T,)``.
        clients: how many clients there are.
        confidence: of `ClientsLaw.largest`; it decides how many populations are drawn.
        replicates: so many times as many.
        seed: of the draws, the same for all weights.

    Returns:
        ``None`` if there is no exact law and drawing would take minutes.
    """
    law = footprint_law(schedule, weights, clients)
    if law is not None:
        return ClientsLaw(law if len(law.footprints) < _MANY else law.coarse(_COARSE))
    runs = _populations(confidence) * replicates
    for many in (clients, min(clients, _FEW)):
        law = simulated_law(schedule, weights, many, runs, generator(seed, 0))
        if law is not None:
            return ClientsLaw(law, runs * many, many == clients)
    return None


def _populations(confidence: float) -> int:
    """So many that their largest client is above that share of them, with that probability."""
    return math.ceil(math.log(1 - confidence) / math.log(confidence) - 1e-9)


def _replays(schedule: Schedule) -> bool:
    """Whether nothing is random: a trace, or caps on one."""
    return isinstance(schedule, Trace) or (
        isinstance(schedule, Capped) and _replays(schedule.schedule)
    )


def _sums(schedule: Schedule, added: Floats, clients: int, rng: np.random.Generator) -> Floats:
    """Footprints of all clients in one draw of the schedule."""
    sums = np.zeros(clients)
    for weight, cohort in zip(added, schedule.cohorts(clients, rng), strict=True):
        sums[cohort] += weight
    return sums


def _of_type(kind: ClientType, added: Floats) -> tuple[Floats, Floats] | None:
    """Footprints of a type of clients, and their probabilities times the type's share."""
    inside = added[kind.rounds]
    if np.all(kind.chances == 1) and kind.keep == 1 and kind.most is None and kind.rest == 1:
        return np.array([inside.sum()]), np.array([kind.share])
    expected = float(kind.chances.sum())
    if expected == 0 or not np.any(inside > 0):
        return np.zeros(1), np.array([kind.share])
    step = _step(inside, kind.chances)
    places = np.ceil(inside / step * (1 - 1e-12)).astype(np.int64)
    most = _most(kind)
    rows = 1 if kind.most is None else kind.most + 1
    if rows * kind.rest * len(places) * (expected + 20) * places.mean() > _MOST_WORK:
        return None
    mass, lost = _walk(kind, places, rows)
    values = step * np.arange(float(len(mass)))
    ends = np.sort(inside)[::-1][:most].sum()  # nobody has more
    values = np.append(np.minimum(values, ends), ends)
    return values, np.append(mass, lost) * kind.share


def _step(inside: Floats, chances: Floats) -> float:
    """Distance of the lattice's points; exact where all rounds add the same."""
    largest = float(inside.max())
    positive = inside[inside > 0]
    if positive.min() >= largest * (1 - 1e-12):
        return largest
    return float(inside @ chances / chances.sum()) / _CELLS


def _most(kind: ClientType) -> int:
    """The most participations of a client of this type."""
    events = len(np.unique(kind.events))
    return events if kind.most is None else min(events, kind.most)


def _walk(kind: ClientType, places: NDArray[np.int64], rows: int) -> tuple[Floats, float]:
    """Probability of each lattice point after all events, and what was cut off above."""
    free = np.zeros((rows, 1))  # by participations so far where there is a cap, by lattice point
    free[0, 0] = 1.0
    resting: collections.deque[Floats] = collections.deque()
    lost = 0.0
    for kernel in _kernels(kind, places):
        moved = np.zeros_like(free)
        if kernel is not None:
            able = free if rows == 1 else free[:-1]
            gone = _convolved(able, kernel * kind.keep)
            if kind.keep < 1:
                gone[:, : able.shape[1]] += (1 - kind.keep) * kernel.sum() * able
            absent = 1 - kernel.sum()
            stay = free * (absent if absent > 1e-12 else 0.0)  # rounding is nobody's absence
            if rows == 1:
                moved = gone
            else:
                stay[-1] = free[-1]
                moved = np.vstack([np.zeros((1, gone.shape[1])), gone])
            free = stay
        resting.append(moved)
        if len(resting) >= kind.rest:
            free = _sum(free, resting.popleft())
        free, cut = _cut(free)
        lost += cut
    for moved in resting:
        free = _sum(free, moved)
    return free.sum(axis=0), lost


def _kernels(kind: ClientType, places: NDArray[np.int64]) -> Iterator[Floats | None]:
    """For each event the chance of each step on the lattice; ``None`` for an event without any."""
    ends = np.searchsorted(kind.events, np.arange(kind.events[-1] + 1), side="right")
    start = 0
    for end in ends.tolist():
        chances = np.bincount(places[start:end], kind.chances[start:end])
        yield np.asarray(chances, np.float64) if end > start else None
        start = end


def _convolved(mass: Floats, kernel: Floats) -> Floats:
    out = np.zeros((len(mass), mass.shape[1] + len(kernel) - 1))
    for place in np.flatnonzero(kernel).tolist():  # few: no more than an event has rounds
        out[:, place : place + mass.shape[1]] += kernel[place] * mass
    return out


def _sum(first: Floats, second: Floats) -> Floats:
    if first.shape[1] < second.shape[1]:
        first, second = second, first
    total = first.copy()
    total[:, : second.shape[1]] += second
    return total


def _cut(mass: Floats) -> tuple[Floats, float]:
    """Without the lattice points whose tail is too small to matter, and that tail."""
    if mass.shape[1] < 2 * _CELLS:
        return mass, 0.0
    tails = np.cumsum(mass.sum(axis=0)[::-1])
    dropped = int(np.searchsorted(tails, _FORGOTTEN, side="right"))
    if dropped == 0:
        return mass, 0.0
    return mass[:, : mass.shape[1] - dropped], float(tails[dropped - 1])
