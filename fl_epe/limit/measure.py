"""A cell of a comparison in the limit: ε by the law of its schedule.

Nothing is drawn where a schedule has a law in closed form. Where it has none, populations are
drawn, the same ones for every noise multiplier.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.accounting import (
    ExpectedScoreLaw,
    UpperBound,
    clients_law,
    delta_two_gaussians,
    known_expected_score_delta,
    known_expected_score_epsilon,
    poisson_epsilon,
    unknown_expected_score_epsilon,
    unknown_rounds_epsilon,
    upper_bounds,
)
from fl_epe.auditing import NotMeasured
from fl_epe.checks import rename_arguments
from fl_epe.limit.expected_scores import limit_weights
from fl_epe.limit.like import load_run, rounds_like, server_like
from fl_epe.limit.plan import CLIENTS, ROUNDS, Cell, ComparisonPlan
from fl_epe.limit.rows import Epsilon, Row, epsilon_at, is_above, quantiles, zero_out
from fl_epe.schedules import Capped, Schedule, make_schedule, trace_of

Floats = NDArray[np.float64]

_load_run = functools.lru_cache(maxsize=1)(load_run)
_schedule = functools.lru_cache(maxsize=64)(make_schedule)
_MOMENTUM = 0.9


def measure(plan: ComparisonPlan, cell: Cell) -> Row:
    """ε by the schedule's law, of a client drawn at random and of the worst case of all."""
    like = None if plan.like is None else _load_run(plan.like)
    rounds = rounds_like(like, plan.rounds, ROUNDS)
    schedule = _schedule(cell.schedule, rounds, cell.participations)
    clients = plan.clients or (like and like.design.num_clients) or CLIENTS
    if (trace := trace_of(schedule)) is not None:
        clients = trace.population
    with rename_arguments(learning_rate="server_learning_rate", momentum="server_momentum"):
        setting = server_like(
            like, _MOMENTUM, learning_rate=plan.server_learning_rate, momentum=plan.server_momentum
        )
    setting["decay"] = setting.get("decay", 1.0) * plan.decay ** np.arange(rounds)
    delta = clients**-1.1 if plan.delta is None else plan.delta
    final, every_round = limit_weights(rounds, cell.noise_multiplier, **setting)
    bounds = upper_bounds(schedule, cell.noise_multiplier, delta, clients)
    known, unknown = (zero_out(bounds, rounds_known=k) for k in (True, False))
    how = {"confidence": plan.confidence, "replicates": plan.replicates, "seed": plan.seed}
    counts = client_sums(schedule, clients, np.ones(rounds), **how)
    laws = []
    for weights in (final, every_round):
        scale = float(weights.max())  # so that all noise multipliers share one law
        laws.append(
            client_sums(schedule, clients, np.round(weights / scale, 12), **how).scaled(scale)
        )
    strict = unknown_epsilon(schedule, every_round, 1.0, delta)
    return Row(
        *cell.place,
        replicates=1,
        delta=delta,
        clients=clients,
        mean_participations=counts.mean,
        most_participations=round(
            counts.largest(clients, plan.confidence) or counts.expected_scores[-1]
        ),
        final=_epsilon(plan, laws[0], clients, delta, known, unaware=True),
        every_round=_epsilon(plan, laws[1].root(), clients, delta, known),
        unknown_rounds=None
        if strict is None
        else Epsilon(strict, strict, strict, unknown, is_above(strict, unknown)),
        analytical_unknown_rounds=None if unknown is None else unknown.epsilon,
        log=None if trace is None else (trace.rounds, trace.rounds_with_clients),
    )


def client_sums(schedule: Schedule, clients: int, weights: Floats, **how: Any) -> ExpectedScoreLaw:
    """The law of the sum of ``weights`` over a client's rounds; see `clients_law`."""
    return _client_sums(schedule, clients, weights.tobytes(), **how)


@functools.lru_cache(maxsize=16)
def _client_sums(schedule: Schedule, clients: int, weights: bytes, **how: Any) -> ExpectedScoreLaw:
    """Weights are bytes, which can be a key."""
    found = clients_law(schedule, np.frombuffer(weights), clients, **how)
    if found is None:
        raise NotMeasured(
            "the schedule has no law in closed form, and to draw clients would take minutes"
        )
    return found


def _epsilon(
    plan: ComparisonPlan,
    law: ExpectedScoreLaw,
    clients: int,
    delta: float,
    bound: UpperBound | None,
    *,
    unaware: bool = False,
) -> Epsilon:
    usual, strict = quantiles(plan)
    scores, shares = law.expected_scores, law.shares
    epsilon = known_expected_score_epsilon(scores, delta, weights=shares)
    error = _error_of(law, epsilon) if law.drawn else 0.0
    largest = law.largest(clients, plan.confidence)
    return Epsilon(
        epsilon,
        max(epsilon - usual * error, 0.0),
        epsilon + usual * error,
        bound,
        is_above(epsilon - strict * error, bound),
        simulated=law.drawn > 0,
        worst_case=None if largest is None else epsilon_at(largest, delta),
        unaware=unknown_expected_score_epsilon(scores, delta, weights=shares) if unaware else None,
        mean=epsilon_at(law.mean, delta),
    )


def _error_of(law: ExpectedScoreLaw, epsilon: float) -> float:
    """Standard error of ε of a client drawn at random, by that of the mean of their δ."""
    each = np.asarray(delta_two_gaussians(0.0, 1.0, law.expected_scores, 1.0, epsilon))
    variance = max(float(law.shares @ each**2) - float(law.shares @ each) ** 2, 0.0)
    step = 1e-4 * epsilon
    if step == 0 or variance == 0:
        return 0.0
    low, high = (
        known_expected_score_delta(law.expected_scores, epsilon + s, weights=law.shares)
        for s in (-step, step)
    )
    return float(np.sqrt(variance / law.drawn) * 2 * step / (low - high))


def unknown_epsilon(schedule: Schedule, energy: Floats, scale: float, delta: float) -> float | None:
    """ε of a client whose rounds the adversary does not know; ``None`` without a closed form.

    Args:
        schedule: the participation schedule.
        energy: squared expected score of each round that was, ``(rounds,)``.
        scale: κ of all expected scores.
        delta: δ.
    """
    while isinstance(schedule, Capped) and not schedule.refuses:
        schedule = schedule.schedule
    rounds, participations = len(energy), schedule.participations()
    signal = scale * np.sqrt(np.maximum(energy, 1e-18))  # 0 in a round without a release
    everybody = participations >= rounds * (1 - 1e-12)  # in every round
    coins = schedule.unknown_rounds == "coins" and not everybody
    epochs = schedule.unknown_rounds == "epochs" and participations == round(participations)
    if not (everybody or coins or epochs):
        return None
    if scale <= 0:
        return 0.0
    if coins:
        strength = float(np.sqrt(np.mean(signal**2)))
        return poisson_epsilon(1 / strength, participations / rounds, rounds, delta)
    return unknown_rounds_epsilon(np.array_split(signal, round(participations)), delta)
