"""The high-dimensional limit: a schedule to a record, without training.

In high dimension canaries are orthogonal to each other and to everything else, so all that an
audit sees of a run are k × T numbers: each canary's share of each released mean, plus N(0, 1).
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.mechanism import ServerSGD
from fl_epe.participation import Schedule, presence
from fl_epe.record import AuditRecord
from fl_epe.seeding import generator

_DIM = 10**9  # any large number: scores are cosines times its root


def limit_record(
    schedule: Schedule,
    noise_multiplier: float,
    delta: float,
    *,
    canaries: int = 1000,
    unobserved: int = 1000,
    clip_norms: ArrayLike = 1.0,
    server: ServerSGD | None = None,
    seed: int = 0,
) -> AuditRecord:
    """The record of a run in which noise outweighs the clients' updates, as dimension grows.

    Args:
        schedule: who of the canaries takes part when.
        noise_multiplier: z > 0 of the clients' sum.
        delta: target δ.
        canaries: observed canaries k.
        unobserved: unobserved canaries u.
        clip_norms: the clip norm, or one for each round, shape ``(T,)``.
        server: learning rate and momentum; plain SGD by default.
        seed: of participation and scores.

    Raises:
        ValueError: without noise, or if an argument is out of range.
    """
    if not noise_multiplier > 0:
        raise ValueError(f"Expected noise_multiplier={noise_multiplier} > 0.")
    rounds, server = schedule.rounds, server or ServerSGD()
    norms = np.array(np.broadcast_to(np.asarray(clip_norms, np.float64), rounds))
    taking_part = presence(schedule, canaries, generator(seed, 0))
    rng = generator(seed, 1)
    observed = rng.standard_normal((rounds, canaries)) + taking_part / noise_multiplier
    others = rng.standard_normal((rounds, unobserved))
    # Each released mean is noise of this norm.
    cohort_size = schedule.cohort_size(canaries)
    lengths = noise_multiplier * norms * np.sqrt(_DIM) / cohort_size
    weighted = server.weights(rounds) * lengths
    moved = float(np.linalg.norm(weighted))
    final = weighted @ observed / moved, weighted @ others / moved
    root = np.sqrt(_DIM)
    return AuditRecord(
        dim=_DIM,
        delta=delta,
        cohort_size=cohort_size,
        noise_multiplier=noise_multiplier,
        sum_noise_multiplier=noise_multiplier,
        participation=schedule.kind,
        canary_repeats=schedule.participations(),
        server={"name": "sgd", **dataclasses.asdict(server)},
        observed=observed / root,
        unobserved=others / root,
        presence=taking_part,
        clip_norms=norms,
        mean_norms=lengths,
        delta_norms=_delta_norms(lengths, server),
        observed_final=final[0] / root,
        unobserved_final=final[1] / root,
        observed_displacement=final[0] / root,
        unobserved_displacement=final[1] / root,
        final_norm=moved,
        displacement_norm=moved,
        config={"task": "limit"},
        seeds={"limit": seed},
    )


def _delta_norms(lengths: NDArray[np.float64], server: ServerSGD) -> NDArray[np.float64]:
    """Norms of the model deltas: each a discounted sum of orthogonal means."""
    squares = np.empty(len(lengths))
    total = 0.0
    for t, length in enumerate(lengths):
        total = server.momentum**2 * total + length**2
        squares[t] = total
    return server.learning_rate * np.sqrt(squares)
