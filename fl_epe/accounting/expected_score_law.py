"""The law of one client's expected score under a schedule, and the largest of many clients.

An expected score is the sum Σ w_t over a client's rounds for an adversary who sees the final
model, and √Σ w_t for an adversary who sees every round's model. Where a schedule states the law
of one client's rounds (`fl_epe.schedules.Events`), the law of the sum is computed by
convolution on a lattice. Weights are rounded up to the lattice, by 0.05% of a mean
participation on average, so that expected scores are never too small. Derivation:
docs/notes/unknown-rounds.md.

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

from fl_epe.accounting.mixtures import raised_to_largest, rounded_up
from fl_epe.checks import Booleans, Floats, Integers, raise_invalid, tail_sums
from fl_epe.schedules import Events, Schedule, presence
from fl_epe.seeding import generator

_CELLS = 1000  # steps of the lattice in the weight of a mean participation
# A smaller tail is cut off, and counts as the largest possible expected score.
_NEGLIGIBLE_TAIL = 1e-30
_EVENTS_BETWEEN_CUTS = 8  # events after which negligible tails are cut
_MAX_VALUES = 20_000  # a law of more expected scores is rounded
_ROUNDING = 2e-4  # largest relative error of that rounding
_MAX_WORK = 4e9  # cells times rows, which take half a minute
_MAX_DRAWN_PARTICIPATIONS = 1e8  # which take half a minute
# An empty round takes as long as this number of participations.
_PARTICIPATIONS_PER_ROUND = 150
_MAX_DRAWN_CELLS = 4_000_000  # rounds times drawn clients of `drawn_law`
_MIN_CHANCE = 1e-12  # smaller chances of absence are rounding errors
# A factor before rounding up, for quotients that would be whole numbers without rounding errors.
_ALMOST_ONE = 1 - 1e-12


@dataclasses.dataclass(frozen=True, eq=False)
class ExpectedScoreLaw:
    """Expected scores of clients and their probabilities, either computed or drawn.

    Attributes:
        expected_scores: distinct and ascending, ``(values,)``.
        shares: the probability of each expected score, ``(values,)``; their sum is 1.
        populations: number of populations that were drawn; 0 if the law is computed.
    """

    expected_scores: Floats
    shares: Floats
    populations: int = 0

    @classmethod
    def of(
        cls, expected_scores: np.ndarray, shares: Floats | None = None
    ) -> ExpectedScoreLaw:
        """The law of values in any order, which may be repeated.

        Args:
            expected_scores: the values, ``(n,)``.
            shares: numbers in proportion to their probabilities, ``(n,)``; by default all values
                are equally likely.
        """
        weights = np.ones(len(expected_scores)) if shares is None else shares
        values, places = np.unique(expected_scores, return_inverse=True)
        summed = np.bincount(places, weights / weights.sum())
        is_possible = summed > 0
        possible = np.asarray(summed[is_possible], np.float64)
        return cls(values[is_possible], possible)

    def root(self) -> ExpectedScoreLaw:
        """The law of the expected score's square root."""
        return dataclasses.replace(
            self, expected_scores=np.sqrt(self.expected_scores)
        )

    def largest(self, clients: int, confidence: float = 0.95) -> float:
        """An expected score that none of ``clients`` clients exceeds.

        Guarantee: the probability that any client exceeds it is at most ``1 - confidence``.
        That probability is at most ``clients`` times the one for a single client, however the
        clients depend on each other. If populations were drawn, it is the largest expected
        score of all their clients, see `clients_law`.
        """
        if self.populations:
            return float(self.expected_scores[-1])
        tails = tail_sums(self.shares[1:])  # P[expected score > value]
        first = np.argmax(tails * clients <= 1 - confidence)
        return float(self.expected_scores[first])


def expected_score_law(
    events: Events, weights: ArrayLike
) -> ExpectedScoreLaw | None:
    """The law of Σ w_t over the rounds of one client.

    A law of more than 20,000 values is rounded up, by 0.02% at most. Weights less than a millionth
    below the largest count as the largest, so that rounds with the same weight share a lattice
    point. Weights in the same proportions, to 12 digits, share a cached law.

    Args:
        events: how the client draws its rounds.
        weights: the contribution w_t ≥ 0 of each round, shape ``(T,)``.

    Returns:
        The law, or ``None`` if it would take minutes to compute.

    Raises:
        ValueError: if there are fewer weights than rounds, or a weight is out of range.
    """
    weights = np.asarray(weights, np.float64)
    rounds = int(events.rounds.max(initial=-1)) + 1
    is_in_range = np.all((weights >= 0) & np.isfinite(weights))
    if weights.ndim != 1 or len(weights) < rounds or not is_in_range:
        raise_invalid("weights", weights, f">= 0, one for each of {rounds}")
    largest = float(weights.max(initial=0.0))
    scale = largest if largest > 0 else 1.0
    shape = raised_to_largest(np.round(weights / scale, 12), 1.0)
    law = _law_of_shape(events, shape.tobytes())
    if law is None:
        return None
    return dataclasses.replace(law, expected_scores=scale * law.expected_scores)


@functools.lru_cache(maxsize=16)
def _law_of_shape(events: Events, shape: bytes) -> ExpectedScoreLaw | None:
    """The law of Σ w_t.

    Args:
        events: how the client draws its rounds.
        shape: the weights divided by the largest one, in bytes, which the cache can compare.
    """
    weights = np.frombuffer(shape)
    # If all events are certain, as in a trace, all clients of a type have the same rounds.
    is_certain = np.all(events.chances == 1) and events.keep == 1
    if is_certain and events.rest == 1:
        scores = _scores_of_rows(events, weights)
        if events.most is not None:
            scores = np.where(events.events < events.most, scores, 0.0)
        sums = np.bincount(events.types, scores, len(events.shares))
        return ExpectedScoreLaw.of(sums, events.shares)
    values = []
    shares = []
    for share, events_of_type in events.of_types():
        law_of_type = _type_law(share, events_of_type, weights)
        if law_of_type is None:
            return None
        values.append(law_of_type[0])
        shares.append(law_of_type[1])
    law = ExpectedScoreLaw.of(np.concatenate(values), np.concatenate(shares))
    if len(law.expected_scores) < _MAX_VALUES:
        return law
    rounded = rounded_up(law.expected_scores, _ROUNDING)
    return ExpectedScoreLaw.of(rounded, law.shares)


def _scores_of_rows(events: Events, weights: Floats) -> Floats:
    """The contribution of each row of the events to the expected score."""
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
    """The law of an expected score that is no sum over a client's rounds, by simulation.

    Args:
        schedule: the participation schedule.
        expected_scores: function of the presence of m clients in each round, ``(T, m)``, that
            returns their expected scores, ``(m,)``.
        clients: the number of clients.
        confidence: see `clients_law`.
        seed: the seed of the draws.

    Returns:
        The law, or ``None`` if it would take too much time or memory.
    """
    populations = _populations(confidence)
    rng = generator(seed, 0)
    if populations * clients * schedule.rounds > _MAX_DRAWN_CELLS:
        return None
    scores = [
        expected_scores(presence(schedule, clients, rng))
        for _ in range(populations)
    ]
    law = ExpectedScoreLaw.of(np.concatenate(scores))
    return dataclasses.replace(law, populations=populations)


def _populations(confidence: float) -> int:
    """How many populations to draw, see ``confidence`` of `clients_law`."""
    populations = math.log(1 - confidence) / math.log(confidence)
    return math.ceil(populations * _ALMOST_ONE)


def clients_law(
    schedule: Schedule,
    weights: Floats,
    clients: int,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> ExpectedScoreLaw | None:
    """The law of Σ w_t over a client's rounds.

    It is computed if possible. Else several populations are drawn.

    Args:
        schedule: the participation schedule.
        weights: the contribution w_t ≥ 0 of each round, shape ``(T,)``.
        clients: the number of clients.
        confidence: p. The number of populations that are drawn is such that, with probability
            p, the largest expected score of all of them is above the p-quantile of one
            population's largest expected score; 59 populations for 95%.
        seed: the seed of the draws, the same for all weights.

    Returns:
        The law, or ``None`` if it would take minutes.
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
    """The law of Σ w_t over all clients of drawn populations, for weights as bytes."""
    participations = clients * (1 + schedule.participations())
    participations += _PARTICIPATIONS_PER_ROUND * schedule.rounds
    if populations * participations > _MAX_DRAWN_PARTICIPATIONS:
        return None
    rng = generator(seed, 0)
    sums = np.zeros((populations, clients))
    for population in sums:
        cohorts = schedule.cohorts(clients, rng)
        for weight, cohort in zip(np.frombuffer(weights), cohorts, strict=True):
            population[cohort] += weight
    law = ExpectedScoreLaw.of(sums.ravel())
    return dataclasses.replace(law, populations=populations)


def _type_law(
    share: float, events: Events, weights: Floats
) -> tuple[Floats, Floats] | None:
    """The expected scores of a type of clients, and their probabilities times the type's share."""
    scores = _scores_of_rows(events, weights)
    participations = float(events.chances.sum())
    if participations == 0 or not np.any(scores > 0):
        return np.zeros(1), np.array([share])
    cap = events.most
    if cap is not None and cap > participations:
        # The cap is ignored if a client reaches it with a negligible probability (Chernoff).
        log_tail = cap - participations - cap * math.log(cap / participations)
        if log_tail < math.log(_NEGLIGIBLE_TAIL):
            cap = None
    step = _step(scores, events.chances)
    places = np.ceil(scores / step * _ALMOST_ONE).astype(np.int64)
    largest_count = cap if events.exactly is None else events.exactly
    rows = 1 if largest_count is None else largest_count + 1
    # The lattice has cells up to a sum that few clients exceed: of 20 more participations than
    # expected.
    cells = (participations + 20) * places.mean()
    if rows * events.rest * len(places) * cells > _MAX_WORK:
        return None
    masses, lost = _lattice_law(events, places, rows)
    max_participations = len(np.unique(events.events))
    if cap is not None:
        max_participations = min(max_participations, cap)
    # No client has a larger expected score; the tail that was cut off counts as it.
    largest = np.sort(scores)[::-1][:max_participations].sum()
    values = step * np.arange(float(len(masses)))
    values = np.append(np.minimum(values, largest), largest)
    return values, np.append(masses, lost) * share


def _step(scores: Floats, chances: Floats) -> float:
    """The distance of the lattice's points: the weight itself if all positive weights are equal."""
    largest = float(scores.max())
    if scores[scores > 0].min() >= largest * _ALMOST_ONE:
        return largest
    # With momentum, the last rounds have less weight, and most others have about the mean weight.
    mean = float(scores @ chances / chances.sum())
    return largest / math.ceil(largest / (mean / _CELLS))


def _lattice_law(
    events: Events, places: Integers, rows: int
) -> tuple[Floats, float]:
    """The probability of each lattice point after all events, and of the tail that was cut off.

    In the last rounds of a run momentum has not yet added up, so weights are smaller. Before
    these rounds, a coarse lattice has only the multiples of the largest weight.

    Args:
        events: the events of one type of clients.
        places: the score of each row of the events, in steps of the lattice.
        rows: how many numbers of participations, from 0 on, are distinguished; 1 if they are
            not.
    """
    # Points of the fine lattice between two of the coarse one.
    scale = int(places.max())
    # Probabilities of clients who are not resting, by participations so far and by lattice point.
    free = np.zeros((rows, 1))
    free[0, 0] = 1.0
    resting: collections.deque[Floats] = collections.deque()
    lost = 0.0
    # If participations are distinguished, clients in the last row take no further part.
    eligible_rows = max(rows - 1, 1)
    # An event without rows has an empty range: nothing happens in it.
    ends = np.searchsorted(
        events.events, np.arange(events.events[-1] + 2)
    ).tolist()
    for event, (start, end) in enumerate(itertools.pairwise(ends)):
        moved = np.zeros((rows, 1))
        steps = places[start:end]
        if np.any(steps % scale):
            free = _refined(free, scale)
            resting = collections.deque(_refined(m, scale) for m in resting)
            scale = 1
        if start < end:
            kernel = np.bincount(steps // scale, events.chances[start:end])
            eligible = free[:eligible_rows]
            chances = np.full((eligible_rows, 1), kernel.sum())
            if events.exactly is not None:
                # All choices of the remaining events are equally likely.
                remaining = events.exactly - np.arange(float(eligible_rows))
                chances = np.minimum(remaining / (events.among - event), 1.0)
                chances = chances[:, None]
            # A participation that does not count adds nothing to the score.
            added_scores = kernel / kernel.sum() * events.keep
            added_scores[0] += 1 - events.keep
            participating = _convolved(eligible * chances, added_scores)
            moved = np.pad(participating, ((rows - eligible_rows, 0), (0, 0)))
            absence = 1 - chances
            eligible *= np.where(absence > _MIN_CHANCE, absence, 0.0)
        resting.append(moved)
        if len(resting) >= events.rest:
            free = _sum(free, resting.popleft())
        if event % _EVENTS_BETWEEN_CUTS == 0:
            free, cut = _without_tail(free)
            lost += cut
    for moved in resting:
        free = _sum(free, moved)
    return _refined(free, scale).sum(axis=0), lost


def _refined(masses: Floats, scale: int) -> Floats:
    """The same law on a lattice that has ``scale`` times as many points."""
    finer = np.zeros((len(masses), (masses.shape[1] - 1) * scale + 1))
    finer[:, ::scale] = masses
    return finer


def _convolved(masses: Floats, kernel: Floats) -> Floats:
    """Each row of ``masses`` convolved with a kernel that has few entries, one for each round."""
    sums = np.zeros((len(masses), masses.shape[1] + len(kernel) - 1))
    for place in np.flatnonzero(kernel).tolist():
        sums[:, place : place + masses.shape[1]] += kernel[place] * masses
    return sums


def _sum(first: Floats, second: Floats) -> Floats:
    """The sum of two arrays of probabilities, in the memory of the longer one."""
    if first.shape[1] > second.shape[1]:
        return _sum(second, first)
    second[:, : first.shape[1]] += first
    return second


def _without_tail(masses: Floats) -> tuple[Floats, float]:
    """``masses`` without the lattice points whose tail is negligible, and that tail."""
    if masses.shape[1] < 2 * _CELLS:
        return masses, 0.0
    tails = tail_sums(masses.sum(axis=0))
    stop = int(np.argmax(tails <= _NEGLIGIBLE_TAIL))
    return masses[:, :stop], float(tails[stop])
