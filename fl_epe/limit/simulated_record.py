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

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.auditing import (
    AuditRecord,
    CanaryCosines,
    Design,
    Mechanism,
    Norms,
    Provenance,
    ServerStep,
)
from fl_epe.checks import ArgumentError, raise_invalid
from fl_epe.limit.expected_scores import RealUpdates, Signal
from fl_epe.mechanism import ServerSGD
from fl_epe.schedules import Schedule, Trace, presence
from fl_epe.seeding import generator

Floats = NDArray[np.float64]

_DIM = 10**9  # any large number: scores are cosines times its root
_PARTICIPATION, _SCORES = 0, 1  # random streams


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
        schedule: the participation schedule. Of a `Trace`, canaries are average-case clients.
        noise_multiplier: z ≥ 0 of the clients' sum; > 0 unless there are ``real`` updates.
        delta: target δ.
        num_canaries: observed canaries k.
        unobserved: unobserved canaries u.
        population: clients of the schedule, canaries among them; the canaries alone by default.
        clip_norms: the clip norm, or one for each round, shape ``(T,)``.
        server: learning rate and momentum; plain SGD by default.
        decay: factor of the server's learning rate in each round, shape ``(T,)``.
        real: the real clients' updates; by default the noise outweighs them.
        seed: of participation and scores.

    Raises:
        ValueError: if there is neither noise nor real updates, or if an argument is out of range.
    """
    rounds, server = schedule.rounds, server or ServerSGD()
    size = schedule.cohort_size(num_canaries if population is None else population)
    signal = Signal.of(rounds, noise_multiplier, clip_norms, server, decay, real, size)
    mechanism = _mechanism(schedule, noise_multiplier, size, server, signal)
    here = _presence(schedule, num_canaries, population, seed)
    return _record(signal, mechanism, here, unobserved, delta, seed)


def _presence(
    schedule: Schedule, num_canaries: int, population: int | None, seed: int
) -> NDArray[np.bool_]:
    """Schedules treat all clients alike, so the first of them can be the canaries."""
    clients = num_canaries if population is None else population
    if isinstance(schedule, Trace):
        if population not in (None, schedule.population):
            raise_invalid("population", population, f"to be {schedule.population}, as in the trace")
        clients = num_canaries
    if clients < num_canaries:
        raise ArgumentError(
            "Expected {population} >= {num_canaries}.",
            population=population,
            num_canaries=num_canaries,
        )
    return presence(schedule, clients, generator(seed, _PARTICIPATION), num_canaries)


def _mechanism(
    schedule: Schedule, z: float, cohort_size: float, server: ServerSGD, signal: Signal
) -> Mechanism:
    return Mechanism(
        cohort_size=cohort_size,
        noise_multiplier=z,
        sum_noise_multiplier=z,
        participation=schedule.kind,
        canary_participations=schedule.participations(),
        server=ServerStep("sgd", signal.rates, server.momentum),
        clip_norms=signal.norms,
    )


def _record(
    signal: Signal,
    mechanism: Mechanism,
    presence: NDArray[np.bool_],
    unobserved: int,
    delta: float,
    seed: int,
) -> AuditRecord:
    rng = generator(seed, _SCORES)
    observed = _cosines(signal, presence.shape[1], rng, presence)
    lengths = signal.residual * signal.unit * np.sqrt(_DIM)
    deltas = signal.rates * _discounted(lengths, mechanism.server.momentum)
    moved = signal.moved * np.sqrt(_DIM)
    return AuditRecord(
        dim=_DIM,
        delta=delta,
        observed=observed,
        unobserved=_cosines(signal, unobserved, rng),
        presence=presence,
        norms=Norms(lengths, deltas, final=moved, displacement=moved),
        mechanism=mechanism,
        design=Design(task="limit"),
        provenance=Provenance(seeds={"limit": seed}),
    )


def _cosines(
    signal: Signal, count: int, rng: np.random.Generator, presence: NDArray[np.bool_] | None = None
) -> CanaryCosines:
    """Drawn for ``count`` canaries; the model starts at zero, so that θ_T is the displacement."""
    rounds = rng.standard_normal((len(signal.residual), count))
    # A part of the final noise is that of the rounds; the rest comes from real updates. That rest
    # is a sum of differences: 1 less the rounds' share would leave a root of the rounding error.
    weights = signal.residual * signal.steps / signal.moved
    rest = (
        float(signal.steps**2 @ (signal.final_residual**2 - signal.residual**2)) / signal.moved**2
    )
    final = weights @ rounds / np.sqrt(1 - min(rest, 0.0))
    final += np.sqrt(max(rest, 0.0)) * rng.standard_normal(count)
    if presence is not None:
        final += signal.steps / signal.moved @ presence
        for row, here, residual in zip(rounds, presence, signal.residual, strict=True):
            row[here] += 1 / residual
    rounds /= np.sqrt(_DIM)
    final /= np.sqrt(_DIM)
    return CanaryCosines(means=rounds, final=final, displacement=final)


def _discounted(lengths: Floats, momentum: float) -> Floats:
    """Norms of the server's velocity: each a discounted sum of orthogonal means."""
    squares = np.empty(len(lengths))
    total = 0.0
    for t, length in enumerate(lengths):
        total = momentum**2 * total + length**2
        squares[t] = total
    return np.sqrt(squares)
