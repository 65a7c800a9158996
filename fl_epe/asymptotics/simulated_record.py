"""The high-dimensional limit: a schedule to a record, without training.

In high dimension canaries are orthogonal to each other and to everything else, so all that an
audit sees of a run are k × T numbers: each canary's share of each released mean, plus N(0, 1).

A canary that takes part in round t adds ``C_t/n`` to a mean whose length is that of the noise and
of the real updates together. Per coordinate and in units of ``C_t/n``, the noise has variance z²
and the real updates add ``r_t``, so the canary's expected score is ``a_t = 1/√(z² + r_t)``. In the
final model it adds up over its rounds to ``Σ w_t C_t / √((z² + r)·Σ_t w_t² C_t²)``, with ``w_t``
the rounds' weights and ``r`` what the real updates add there. Where the noise dominates, r = 0;
`RealUpdates.of` measures r in a run, so that the limit predicts that run.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.asymptotics.expected_scores import (
    PARTICIPATION,
    RealUpdates,
    Signal,
    canary_cohorts,
    limit_footprints,
    limit_weights,
)
from fl_epe.auditing import AuditRecord
from fl_epe.mechanism import ServerSGD
from fl_epe.schedules import Schedule, Trace, TraceSample
from fl_epe.seeding import generator

__all__ = ["RealUpdates", "limit_footprints", "limit_record", "limit_weights"]

Floats = NDArray[np.float64]

_DIM = 10**9  # any large number: scores are cosines times its root
_SCORES = 1  # random stream


def limit_record(
    schedule: Schedule,
    noise_multiplier: float,
    delta: float,
    *,
    num_canaries: int = 1000,
    unobserved: int = 1000,
    population: int | None = None,
    clip_norms: ArrayLike = 1.0,
    server: ServerSGD | None = None,
    decay: ArrayLike = 1.0,
    real: RealUpdates | None = None,
    seed: int = 0,
) -> AuditRecord:
    """The record of a run as dimension grows.

    Args:
        schedule: who takes part when. Of a `Trace`, canaries are random clients.
        noise_multiplier: z ≥ 0 of the clients' sum; > 0 unless ``real`` updates hide canaries.
        delta: target δ.
        num_canaries: observed canaries k.
        unobserved: unobserved canaries u.
        population: number of clients that the schedule is for, canaries among them; the canaries
            alone by default. Up to 10⁷ and more: only cohorts are held.
        clip_norms: the clip norm, or one for each round, shape ``(T,)``.
        server: learning rate and momentum; plain SGD by default.
        decay: factor of the server's learning rate in each round, shape ``(T,)``.
        real: the real clients' updates; by default the noise outweighs them.
        seed: of participation and scores.

    Raises:
        ValueError: if nothing hides the canaries, or if an argument is out of range.
    """
    rounds, server = schedule.rounds, server or ServerSGD()
    cohort_size = schedule.cohort_size(num_canaries if population is None else population)
    signal = Signal.of(rounds, noise_multiplier, clip_norms, server, decay, real, cohort_size)
    taking_part = np.zeros((rounds, num_canaries), bool)
    rng = generator(seed, PARTICIPATION)
    for row, cohort in zip(
        taking_part, canary_cohorts(schedule, num_canaries, population, rng), strict=True
    ):
        row[cohort] = True
    rng = generator(seed, _SCORES)
    observed, observed_final = _scores(signal, num_canaries, rng, taking_part)
    others, others_final = _scores(signal, unobserved, rng)
    lengths = signal.hidden * signal.unit * np.sqrt(_DIM)
    moved = signal.moved * np.sqrt(_DIM)
    return AuditRecord(
        dim=_DIM,
        delta=delta,
        cohort_size=cohort_size,
        noise_multiplier=noise_multiplier,
        sum_noise_multiplier=noise_multiplier,
        participation=TraceSample.kind if isinstance(schedule, Trace) else schedule.kind,
        canary_participations=schedule.participations(),
        server=_server(server, signal.rates),
        observed=observed,
        unobserved=others,
        presence=taking_part,
        clip_norms=signal.norms,
        mean_norms=lengths,
        delta_norms=signal.rates * _discounted(lengths, server.momentum),
        observed_final=observed_final,
        unobserved_final=others_final,
        observed_displacement=observed_final,
        unobserved_displacement=others_final,
        final_norm=moved,
        displacement_norm=moved,
        config={"task": "limit"},
        seeds={"limit": seed},
    )


def _scores(
    signal: Signal, count: int, rng: np.random.Generator, presence: NDArray[np.bool_] | None = None
) -> tuple[Floats, Floats]:
    """Cosines with each round's mean, ``(T, count)``, and with θ_T − θ_0, ``(count,)``."""
    rounds = rng.standard_normal((len(signal.hidden), count))
    # A part of the final noise is that of the rounds; the rest comes from real updates.
    weights = signal.hidden * signal.steps / signal.moved
    share = float(np.linalg.norm(weights))
    weights /= max(share, 1.0)
    final = weights @ rounds
    final += np.sqrt(max(1 - share**2, 0.0)) * rng.standard_normal(count)
    if presence is not None:
        final += signal.steps / signal.moved @ presence
        for row, here, hidden in zip(rounds, presence, signal.hidden, strict=True):
            row[here] += 1 / hidden
    rounds /= np.sqrt(_DIM)
    return rounds, final / np.sqrt(_DIM)


def _server(server: ServerSGD, rates: Floats) -> dict[str, object]:
    constants = {"name": "sgd", **dataclasses.asdict(server)}
    if np.all(rates == server.learning_rate):
        return constants
    return {**constants, "learning_rates": rates.tolist()}


def _discounted(lengths: Floats, momentum: float) -> Floats:
    """Norms of the server's velocity: each a discounted sum of orthogonal means."""
    squares = np.empty(len(lengths))
    total = 0.0
    for t, length in enumerate(lengths):
        total = momentum**2 * total + length**2
        squares[t] = total
    return np.sqrt(squares)
