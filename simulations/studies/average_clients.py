"""ε of a client drawn at random, the mean and the worst-case one, in the limit, by schedule.

The studies of schedules compare these clients. A run's report, and so `fl-epe compare`, is of the
median client instead.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from fl_epe.accounting import (
    ExpectedScoreLaw,
    UpperBound,
    clients_law,
    epsilon_two_gaussians,
    hidden_rounds_epsilon,
    known_expected_score_epsilon,
    tightest,
    unknown_expected_score_epsilon,
    upper_bounds,
)
from fl_epe.auditing import Adversary, seen_by
from fl_epe.checks import Floats
from fl_epe.limit import expected_record
from fl_epe.schedules import Schedule, make_schedule, trace_of

CONFIDENCE = 0.95  # that no client exceeds the worst case


@dataclasses.dataclass(frozen=True)
class Epsilon:
    """ε for one adversary.

    Attributes:
        epsilon: of a client drawn at random.
        analytical: the tightest bound for the same client and adversary.
        worst_case: what none of all clients exceeds; ``None`` where that is not known.
        unaware: of a client drawn at random whose expected score the adversary does not know.
        mean: at the mean expected score.
    """

    epsilon: float
    analytical: UpperBound
    worst_case: float | None = None
    unaware: float | None = None
    mean: float | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """A schedule at one noise multiplier; without ``final`` it is impossible, as ``skipped`` says.

    Attributes:
        schedule: its specification.
        noise_multiplier: z.
        participations: expected ones that were asked for.
        delta: δ.
        mean_participations: of a client.
        most_participations: what none of the clients exceeds.
        final: for an adversary who sees the final model and knows the rounds.
        every_round: for one who sees every round's model and knows the rounds.
        unknown_rounds: for one who sees every round's and does not know them, where that is known.
        skipped: why it is impossible.
    """

    schedule: str
    noise_multiplier: float
    participations: float
    delta: float = math.nan
    mean_participations: float = math.nan
    most_participations: int = 0
    final: Epsilon | None = None
    every_round: Epsilon | None = None
    unknown_rounds: Epsilon | None = None
    skipped: str | None = None


def rows_of(
    specs: Sequence[str],
    noises: Sequence[float],
    participations: float,
    rounds: int,
    *,
    clients: int = 10_000,
    delta: float | None = None,
    momentum: float = 0.9,
) -> Iterator[Row]:
    """A row for each schedule and noise multiplier."""
    for spec in specs:
        for z in noises:
            place = spec, z, participations
            try:
                schedule = make_schedule(spec, rounds, participations)
                yield _row(place, schedule, clients, delta, momentum)
            except ValueError as error:
                yield Row(*place, skipped=str(error))


def weights_of(
    schedule: Schedule, z: float, delta: float, momentum: float
) -> list[Floats]:
    """Of each round, for the final model, and squared for every round's."""
    record = expected_record(schedule, z, delta, 100, momentum=momentum)
    return [
        seen_by(record, Adversary(sees)).expected_scores.by_round
        for sees in ("final", "all")
    ]


def _row(
    place: tuple[str, float, float],
    schedule: Schedule,
    clients: int,
    delta: float | None,
    momentum: float,
) -> Row:
    if (trace := trace_of(schedule)) is not None:
        clients = trace.population
    delta, z = clients**-1.1 if delta is None else delta, place[1]
    weights = weights_of(schedule, z, delta, momentum)
    known_rounds, unknown = (
        tightest(
            upper_bounds(schedule.law(clients), z, delta), rounds_known=know
        )
        for know in (True, False)
    )
    counts = _law(schedule, np.ones(schedule.rounds), clients)
    largest = counts.largest(clients, CONFIDENCE)
    final, every = (
        _law(schedule, weights[0], clients),
        _law(schedule, weights[1], clients).root(),
    )
    hidden = _unknown_rounds(schedule, np.sqrt(weights[1]), clients, delta)
    return Row(
        *place,
        delta=delta,
        mean_participations=float(counts.expected_scores @ counts.shares),
        most_participations=round(largest),
        final=_epsilon(final, clients, delta, known_rounds),
        every_round=_epsilon(every, clients, delta, known_rounds),
        unknown_rounds=None if hidden is None else Epsilon(hidden, unknown),
    )


def _law(schedule: Schedule, weights: Floats, clients: int) -> ExpectedScoreLaw:
    law = clients_law(schedule, weights, clients, confidence=CONFIDENCE)
    assert law is not None
    return law


def _epsilon(
    law: ExpectedScoreLaw, clients: int, delta: float, bound: UpperBound
) -> Epsilon:
    scores, shares = law.expected_scores, law.shares
    largest = law.largest(clients, CONFIDENCE)
    return Epsilon(
        known_expected_score_epsilon(scores, delta, weights=shares),
        bound,
        float(epsilon_two_gaussians(0, 1, largest, 1, delta)),
        unknown_expected_score_epsilon(scores, delta, weights=shares),
        float(
            epsilon_two_gaussians(
                0, 1, float(law.expected_scores @ law.shares), 1, delta
            )
        ),
    )


def _unknown_rounds(
    schedule: Schedule, signal: Floats, clients: int, delta: float
) -> float | None:
    events = schedule.law(clients).events
    if events is None or not events.independent:
        return None
    return hidden_rounds_epsilon(events, signal, delta)
