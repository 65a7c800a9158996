"""A made-up record of a large run, for tests of what must not grow with it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from records import make_record

from fl_epe import AuditRecord


def large_record(canaries: int = 100_000, rounds: int = 12) -> AuditRecord:
    """Each canary takes part once; noise alone hides it, at z = 0.5."""
    rng = np.random.default_rng(1)
    dim, unobserved, z, cohort = 1_000_000, 1000, 0.5, canaries / 2
    presence = np.zeros((rounds, canaries), bool)
    presence[rng.integers(0, rounds, canaries), np.arange(canaries)] = True

    def noise(*shape: int) -> NDArray[np.float64]:
        return np.asarray(rng.standard_normal(shape) / np.sqrt(dim))

    shift = 1 / z / np.sqrt(dim)
    norms = np.full(rounds, z * np.sqrt(dim) / cohort)
    return make_record(
        dim=dim,
        cohort_size=cohort,
        canary_participations=1,
        server={"name": "sgd", "learning_rate": 1.0, "momentum": 0.0},
        observed=noise(rounds, canaries) + shift * presence,
        unobserved=noise(rounds, unobserved),
        presence=presence,
        clip_norms=np.ones(rounds),
        mean_norms=norms,
        delta_norms=norms,
        observed_final=noise(canaries) + shift / np.sqrt(rounds),
        unobserved_final=noise(unobserved),
        observed_displacement=noise(canaries) + shift / np.sqrt(rounds),
        unobserved_displacement=noise(unobserved),
        displacement_norm=float(norms[0] * np.sqrt(rounds)),
        absent=np.zeros(rounds, np.int64),
    )
