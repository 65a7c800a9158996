"""A synthetic record of a large run, for tests of what must not grow with it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from records import make_record

from fl_epe import AuditRecord
from fl_epe.auditing import ServerStep


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
        server=ServerStep("sgd", np.ones(rounds)),
        **{
            "observed.means": noise(rounds, canaries) + shift * presence,
            "unobserved.means": noise(rounds, unobserved),
        },
        presence=presence,
        clip_norms=np.ones(rounds),
        **{
            "norms.means": norms,
            "norms.model_updates": norms,
            "observed.final": noise(canaries) + shift / np.sqrt(rounds),
            "unobserved.final": noise(unobserved),
            "observed.displacement": noise(canaries) + shift / np.sqrt(rounds),
            "unobserved.displacement": noise(unobserved),
            "norms.displacement": float(norms[0] * np.sqrt(rounds)),
        },
        absent=np.zeros(rounds, np.int64),
    )
