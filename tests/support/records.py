"""Records synthetic from the high-dimensional limit, for tests of what reads records."""

from __future__ import annotations

from typing import Any

import numpy as np

from fl_epe import AuditRecord
from fl_epe.auditing import (
    CanaryCosines,
    ClientLog,
    Design,
    Mechanism,
    Norms,
    Provenance,
    ServerStep,
)
from fl_epe.limit import limit_record
from fl_epe.schedules import ShuffledEpochs, make_schedule


def make_record(**changes: Any) -> AuditRecord:
    """Six rounds, 40 + 30 canaries, three participations each, noise multiplier 0.5."""
    rng = np.random.default_rng(0)
    dim, T, k, u, z = 10_000, 6, 40, 30, 0.5
    presence = np.tile(np.arange(T)[:, None] % 2 == np.arange(k)[None] % 2, 1)
    clip_norms = np.linspace(0.5, 1.0, T)
    n = 200.0
    root = np.sqrt(dim)
    observed = (rng.standard_normal((T, k)) + presence / z) / root
    unobserved = rng.standard_normal((T, u)) / root
    ends = [(rng.standard_normal(k) + 1) / root, rng.standard_normal(u) / root]
    moved = [
        (rng.standard_normal(k) + 1.5) / root,
        rng.standard_normal(u) / root,
    ]
    record = AuditRecord(
        dim=dim,
        delta=1e-3,
        observed=CanaryCosines(observed, ends[0], moved[0]),
        unobserved=CanaryCosines(unobserved, ends[1], moved[1]),
        presence=presence,
        norms=Norms(
            clip_norms * z * root / n, 1.2 * clip_norms * z * root / n, 3.0, 2.0
        ),
        mechanism=Mechanism(
            cohort_size=n,
            noise_multiplier=z,
            sum_noise_multiplier=z,
            participation=ShuffledEpochs(T, 3).law(k).in_record(),
            canary_participations=3,
            server=ServerStep("sgd", np.ones(T), 0.5),
            clip_norms=clip_norms,
        ),
        clients=ClientLog(absent=np.zeros(T, np.int64)),
        design=Design(task="synthetic"),
        provenance=Provenance(
            seeds={"canary": 2**127, "noise": None}, versions={"fl-epe": "0"}
        ),
    )
    return record.with_values(**changes)


def record_of(canaries: int, rounds: int = 6, **changes: Any) -> AuditRecord:
    """`make_record` with its first canaries and rounds alone, all of them or none."""
    whole = make_record().by_name()
    cut: dict[str, Any] = {}
    for name in ("observed.means", "presence"):
        cut[name] = whole[name][:rounds, :canaries]
    for name in ("observed.final", "observed.displacement"):
        cut[name] = whole[name][:canaries]
    for name in (
        "unobserved.means",
        "mechanism.clip_norms",
        "mechanism.server.learning_rates",
        "norms.means",
        "norms.model_updates",
        "clients.absent",
    ):
        cut[name] = whole[name][:rounds]
    return make_record(**{**cut, **changes})


def limit_with_clients(
    kind: str = "epochs",
    noise: float = 1.0,
    delta: float = 1e-5,
    *,
    often: float = 6,
    clients: int = 120,
    places: int = 13,
    seed: int = 1,
    **changes: Any,
) -> AuditRecord:
    """Thirty rounds in the limit, of real clients with canaries at some places beside them."""
    schedule = make_schedule(kind, 30, often)
    return limit_record(
        schedule,
        noise,
        delta,
        num_canaries=places,
        unobserved=100,
        beside=clients,
        seed=seed,
    ).with_values(**changes)
