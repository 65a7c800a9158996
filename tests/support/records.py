"""Records made up from the high-dimensional limit, for tests of what reads records."""

from __future__ import annotations

from typing import Any

import numpy as np

from fl_epe import AuditRecord


def make_record(**changes: Any) -> AuditRecord:
    """Six rounds, 40 + 30 canaries, three participations each, noise multiplier 0.5."""
    rng = np.random.default_rng(0)
    dim, T, k, u, z = 10_000, 6, 40, 30, 0.5
    presence = np.tile(np.arange(T)[:, None] % 2 == np.arange(k)[None] % 2, 1)
    clip_norms = np.linspace(0.5, 1.0, T)
    n = 10.0
    values = {
        "dim": dim,
        "delta": 1e-3,
        "cohort_size": n,
        "noise_multiplier": z,
        "sum_noise_multiplier": z,
        "participation": "epochs",
        "canary_participations": 3,
        "server": {"name": "sgd", "learning_rate": 1.0, "momentum": 0.5},
        "observed": (rng.standard_normal((T, k)) + presence / z) / np.sqrt(dim),
        "unobserved": rng.standard_normal((T, u)) / np.sqrt(dim),
        "presence": presence,
        "clip_norms": clip_norms,
        "mean_norms": clip_norms * z * np.sqrt(dim) / n,
        "delta_norms": 1.2 * clip_norms * z * np.sqrt(dim) / n,
        "observed_final": (rng.standard_normal(k) + 1) / np.sqrt(dim),
        "unobserved_final": rng.standard_normal(u) / np.sqrt(dim),
        "observed_displacement": (rng.standard_normal(k) + 1.5) / np.sqrt(dim),
        "unobserved_displacement": rng.standard_normal(u) / np.sqrt(dim),
        "final_norm": 3.0,
        "displacement_norm": 2.0,
        "absent": np.zeros(T, np.int64),
        "seeds": {"canary": 2**127, "noise": None},
        "config": {"task": "made up"},
        "versions": {"fl-epe": "0"},
    }
    return AuditRecord.from_names({**values, **changes})


def record_of(canaries: int, rounds: int = 6, **changes: Any) -> AuditRecord:
    """`make_record` with its first canaries and rounds alone, all of them or none."""
    whole = make_record().by_name()
    cut: dict[str, Any] = {}
    for name in ("observed", "presence"):
        cut[name] = whole[name][:rounds, :canaries]
    for name in ("observed_final", "observed_displacement"):
        cut[name] = whole[name][:canaries]
    for name in ("unobserved", "clip_norms", "mean_norms", "delta_norms", "absent"):
        cut[name] = whole[name][:rounds]
    return make_record(**{**cut, **changes})
