"""The law of one client's expected score under a schedule, and the largest of many clients.

An expected score is what a client's rounds add up to: Σ w_t over its rounds for an adversary who
sees the final model, √Σ w_t for one who sees every round's. Where a schedule states the law of one
client's rounds (`fl_epe.schedules.Events`), the law of the sum is computed by convolution on a
lattice. Weights are rounded up to the lattice, by 0.05% of a mean participation on average, so
that expected scores are never too small. Derivation: docs/notes/unknown-rounds.md.

Examples:
    >>> from fl_epe.schedules import Poisson
    >>> law = expected_score_law(Poisson(rounds=60, rate=0.05).law(10**6).events, np.ones(60))
    >>> round(float(law.expected_scores @ law.shares), 6)  # three participations on average
    3.0
    >>> law.largest(10**6)  # 95% of the time nobody of a million takes part more often
    15.0
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.accounting.mixtures import rounded_up
from fl_epe.checks import Booleans, Floats, Integers, raise_invalid, tail_sums
from fl_epe.schedules import Events, Schedule, presence
from fl_epe.seeding import generator

_CELLS = 1000  # of the lattice, for a mean participation
_FORGOTTEN = 1e-30  # a smaller tail is counted as taking part in every round
_MOST_ROWS = 1e8  # of simulated participations: half a minute
_ROWS_A_ROUND = 150  # as long as a round takes to draw
_MOST_CELLS = 4_000_000  # rounds times drawn clients
_FEW = 10_000  # clients that are drawn where all of them would take minutes
_AS_LARGE = 1e-6  # relative difference of weights that count as the largest one
_EVENTS_BETWEEN_CUTS = 8
_MANY = 20_000  # a law of more expected scores is rounded,
_COARSE = 2e-4  # by so much at most
_MOST_WORK = 4e9  # cells times rows: half a minute


@dataclasses.dataclass(frozen=True, eq=False)
class ExpectedScoreLaw:
    """Expected scores of clients and their probabilities, computed or of clients that were drawn.

    Attributes:
        expected_scores: distinct and ascending, ``(values,)``.
        shares: probability of each, ``(values,)``; they add up to 1.
        drawn: number of clients that were drawn; 0 where the law is computed.
        whole: whether all clients of a population were drawn together.
    """

    expected_scores: Floats
    shares: Floats
    drawn: int = 0
    whole: bool = True

    @classmethod
    def of(
        cls, expected_scores: np.ndarray, shares: Floats | None = None
    ) -> ExpectedScoreLaw:
        """From values in any order; without ``shares`` all are equally likely."""
        weights = np.ones(len(expected_scores)) if shares is None else shares
        values, places = np.unique(expected_scores, return_inverse=True)
        summed = np.asarray(
            np.bincount(places, weights / weights.sum()), np.float64
        )
        return cls(values[summed > 0], summed[summed > 0])

    def root(self) -> ExpectedScoreLaw:
        """The law of the expected score's square root."""
        return dataclasses.replace(
            self, expected_scores=np.sqrt(self.expected_scores)
        )

    def largest(self, clients: int, confidence: float = 0.95) -> float | None:
        """What none of ``clients`` clients exceeds, with probability ``confidence``.

        Guarantee: the probability that any of them exceeds it is at most ``1 - confidence``. It is
        at most ``clients`` times that of one client, however the clients depend on each other.

        Returns:
            The largest of clients that were drawn; ``None`` if those were not whole populations.
        """
        if self.drawn:
            if self.whole:
                return float(self.expected_scores[-1])
            return None
        tails = tail_sums(self.shares[1:])  # P[expected score > value]
        first = np.argmax(tails * clients <= 1 - confidence)
        return float(self.expected_scores[first])


def expected_score_law(
    events: Events, weights: ArrayLike
) -> ExpectedScoreLaw | None:
    """The law of Σ w_t over the rounds of one client.

    A law of more than 20,000 values is rounded up, by 0.02% at most. Weights less than a millionth
    below the largest count as the largest, so that rounds that add the same share a lattice point.
    Weights in the same proportions, to 12 digits, share a law.

    Args:
        events: how the client draws its rounds.
        weights: what taking part in each round adds, w_t ≥ 0, shape ``(T,)``.

    Returns:
        ``None`` if it would take minutes.

    Raises:
        ValueError: if the weights are fewer than the rounds, or one is out of range.
    """
    weights = np.asarray(weights, np.float64)
    rounds = int(events.rounds.max(initial=-1)) + 1
    in_range = np.all((weights >= 0) & np.isfinite(weights))
    if weights.ndim != 1 or len(weights) < rounds or not in_range:
        raise_invalid("weights", weights, f">= 0, one for each of {rounds}")
    largest = float(weights.max(initial=0.0)) or 1.0
    shape = np.round(weights / largest, 12)
    shape[shape > 1 - _AS_LARGE] = 1.0
    law = _law_of_shape(events, shape.tobytes())
    if law is None:
        return None
    return dataclasses.replace(
        law, expected_scores=largest * law.expected_scores
    )


@functools.lru_cache(maxsize=16)
def _law_of_shape(events: Events, shape: bytes) -> ExpectedScoreLaw | None:
    weights = np.frombuffer(shape)
    if np.all(events.chances == 1) and events.keep == 1 and events.rest == 1:
        scores = _scores_of_rows(events, weights)
        if events.most is not None:
            scores = np.where(events.events < events.most, scores, 0.0)
        sums = np.bincount(events.types, scores, len(events.shares))
        return ExpectedScoreLaw.of(sums, events.shares)
    values = []
    shares = []
    for share, events_of_type in events.of_types():
        law_of_type = _of_type(share, events_of_type, weights)
        if law_of_type is None:
            return None
        values.append(law_of_type[0])
        shares.append(law_of_type[1])
    law = ExpectedScoreLaw.of(np.concatenate(values), np.concatenate(shares))
    if len(law.expected_scores) < _MANY:
        return law
    return ExpectedScoreLaw.of(
        rounded_up(law.expected_scores, _COARSE), law.shares
    )


def _scores_of_rows(events: Events, weights: Floats) -> Floats:
    """What each row of the events adds to the expected score."""
    scores = weights[events.rounds]
    if events.counts is None:
        return scores
    return scores * events.counts


def drawn_law(
    schedule: Schedule,
    expected_scores: Callable[[Booleans], Floats],
    clients: int,
    *,
    confidence: float,
    seed: int,
) -> ExpectedScoreLaw | None:
    """The law of an expected score that is no sum over a client's rounds, of drawn populations.

    Args:
        schedule: the participation schedule.
        expected_scores: from who is in which round, ``(T, m)``, those of m clients.
        clients: how many clients there are.
        confidence: as in `clients_law`.
        seed: of the draws.

    Returns:
        ``None`` if it would take too much memory.
    """
    populations = _populations(confidence)
    rng = generator(seed, 0)
    if populations * clients * schedule.rounds > _MOST_CELLS:
        return None
    scores = [
        expected_scores(presence(schedule, clients, rng))
        for _ in range(populations)
    ]
    law = ExpectedScoreLaw.of(np.concatenate(scores))
    return dataclasses.replace(law, drawn=populations * clients)


def _populations(confidence: float) -> int:
    """So many that the largest value of all is above this quantile of the largest of one."""
    return math.ceil(math.log(1 - confidence) / math.log(confidence) - 1e-9)


def clients_law(
    schedule: Schedule,
    weights: Floats,
    clients: int,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> ExpectedScoreLaw | None:
    """The law of Σ w_t over a client's rounds: computed, or else of all clients, or of 10,000.

    Args:
        schedule: the participation schedule.
        weights: what taking part in each round adds, w_t ≥ 0, shape ``(T,)``.
        clients: how many clients there are.
        confidence: so many populations are drawn (59 for 95%) that the largest expected score of
            all of them is above this quantile of one population's largest, with this probability.
        seed: of the draws, the same for all weights.

    Returns:
        ``None`` if it would take minutes.
    """
    events = schedule.law(clients).events
    law = None if events is None else expected_score_law(events, weights)
    if law is not None:
        return law
    populations = _populations(confidence)
    return _law_of_clients(
        schedule, weights.tobytes(), clients, populations, seed
    )


@functools.lru_cache(maxsize=16)
def _law_of_clients(
    schedule: Schedule,
    weights: bytes,
    clients: int,
    populations: int,
    seed: int,
) -> ExpectedScoreLaw | None:
    """Of clients that are drawn: all of each population, or 10,000 of them."""
    rng = generator(seed, 0)
    for count in (clients, min(clients, _FEW)):
        rows = (
            count * (1 + schedule.participations())
            + _ROWS_A_ROUND * schedule.rounds
        )
        if populations * rows > _MOST_ROWS:
            continue
        sums = np.zeros((populations, count))
        for population in sums:
            cohorts = schedule.cohorts(count, rng)
            for weight, cohort in zip(
                np.frombuffer(weights), cohorts, strict=True
            ):
                population[cohort] += weight
        law = ExpectedScoreLaw.of(sums.ravel())
        is_whole = count == clients
        return dataclasses.replace(
            law, drawn=populations * count, whole=is_whole
        )
    return None


def _of_type(
    share: float, events: Events, weights: Floats
) -> tuple[Floats, Floats] | None:
    """Expected scores of a type of clients, and their probabilities times the type's share."""
    scores = _scores_of_rows(events, weights)
    expected = float(events.chances.sum())
    if expected == 0 or not np.any(scores > 0):
        return np.zeros(1), np.array([share])
    cap = events.most
    if cap is not None and cap > expected:
        # By Chernoff's bound, does any client take part so often?
        log_tail = cap - expected - cap * math.log(cap / expected)
        if log_tail < math.log(_FORGOTTEN):
            cap = None
    step = _step(scores, events.chances)
    places = np.ceil(scores / step * (1 - 1e-12)).astype(np.int64)
    counted = cap if events.exactly is None else events.exactly
    rows = 1 if counted is None else counted + 1
    work = rows * events.rest * len(places) * (expected + 20) * places.mean()
    if work > _MOST_WORK:
        return None
    mass, lost = _walk(events, places, rows)
    participations = len(np.unique(events.events))
    if cap is not None:
        participations = min(participations, cap)
    largest = np.sort(scores)[::-1][:participations].sum()  # no client has more
    values = step * np.arange(float(len(mass)))
    values = np.append(np.minimum(values, largest), largest)
    return values, np.append(mass, lost) * share


def _step(scores: Floats, chances: Floats) -> float:
    """Distance of the lattice's points; exact where all rounds add the same."""
    largest = float(scores.max())
    if scores[scores > 0].min() >= largest * (1 - 1e-12):
        return largest
    # Most rounds add the same, but for momentum.
    mean = float(scores @ chances / chances.sum())
    return largest / math.ceil(largest / (mean / _CELLS))


def _walk(events: Events, places: Integers, rows: int) -> tuple[Floats, float]:
    """Probability of each lattice point after all events, and what was cut off above.

    Before its last rounds, in which momentum has not yet added up, a run needs only the points that
    are multiples of the largest step.

    Args:
        events: of one type.
        places: what each row adds, in steps of the lattice.
        rows: numbers of participations that are told apart, from 0; 1 if none are.
    """
    scale = int(places.max())
    # Of those who do not rest: by participations so far, by lattice point.
    free = np.zeros((rows, 1))
    free[0, 0] = 1.0
    resting: collections.deque[Floats] = collections.deque()
    lost = 0.0
    capped = int(rows > 1)  # nobody leaves the last row of several
    # An event without rows is one in which nothing happens.
    ends = np.searchsorted(
        events.events, np.arange(events.events[-1] + 2)
    ).tolist()
    for number, (start, end) in enumerate(itertools.pairwise(ends)):
        steps = places[start:end]
        if scale > 1 and np.any(steps % scale):
            free = _between(free, scale)
            resting = collections.deque(
                _between(moved, scale) for moved in resting
            )
            scale = 1
        moved = np.zeros((rows, 1))
        if len(steps):
            kernel = np.bincount(steps // scale, events.chances[start:end])
            able = free[: rows - capped]
            chances = np.full((rows - capped, 1), kernel.sum())
            if events.exactly is not None:
                # Of those who take part in so many of the events that are left.
                remaining = events.exactly - np.arange(
                    rows - capped, dtype=np.float64
                )
                chances = np.minimum(remaining / (events.among - number), 1.0)[
                    :, None
                ]
            leaving = able * chances
            gone = _convolved(leaving, kernel / kernel.sum() * events.keep)
            if events.keep < 1:
                gone[:, : able.shape[1]] += (1 - events.keep) * leaving
            moved = np.pad(gone, ((capped, 0), (0, 0)))
            absent = 1 - chances
            able *= np.where(absent > 1e-12, absent, 0.0)  # else by rounding
        resting.append(moved)
        if len(resting) >= events.rest:
            free = _sum(free, resting.popleft())
        if number % _EVENTS_BETWEEN_CUTS == 0:
            free, cut = _cut(free)
            lost += cut
    for moved in resting:
        free = _sum(free, moved)
    return _between(free, scale).sum(axis=0), lost


def _between(mass: Floats, scale: int) -> Floats:
    """The same law on a lattice that has ``scale`` times as many points."""
    finer = np.zeros((len(mass), (mass.shape[1] - 1) * scale + 1))
    finer[:, ::scale] = mass
    return finer


def _convolved(mass: Floats, kernel: Floats) -> Floats:
    """Each row of ``mass`` convolved with a kernel that has few entries, as an event few rounds."""
    sums = np.zeros((len(mass), mass.shape[1] + len(kernel) - 1))
    for place in np.flatnonzero(kernel).tolist():
        sums[:, place : place + mass.shape[1]] += kernel[place] * mass
    return sums


def _sum(first: Floats, second: Floats) -> Floats:
    """The sum of two laws, in the memory of the longer one."""
    if first.shape[1] > second.shape[1]:
        first, second = second, first
    second[:, : first.shape[1]] += first
    return second


def _cut(mass: Floats) -> tuple[Floats, float]:
    """Without the lattice points whose tail is too small to matter, and that tail."""
    if mass.shape[1] < 2 * _CELLS:
        return mass, 0.0
    tails = np.append(0.0, np.cumsum(mass.sum(axis=0)[::-1]))
    dropped = int(np.searchsorted(tails[1:], _FORGOTTEN, side="right"))
    return mass[:, : mass.shape[1] - dropped], float(tails[dropped])
