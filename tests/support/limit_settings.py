"""Settings of the limit of a large model, and a synthetic log."""

from typing import Any

import numpy as np

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing import Adversary, seen_by
from fl_epe.limit import limit_record
from fl_epe.limit.simulated_record import RealUpdates
from fl_epe.schedules import Schedule, Trace

DELTA = 1e-5
T = 12
REAL = RealUpdates(np.linspace(0.1, 0.3, T), 2.0)
SERVERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {
        "learning_rates": 0.3,
        "momentum": 0.9,
        "clip_norms": np.linspace(1, 2, T),
    },
    "decay": {"momentum": 0.5, "learning_rates": 0.8 ** np.arange(T)},
    "real": {"momentum": 0.9, "real": REAL},
}


def epsilon_of_shift(shift: float) -> float:
    return float(epsilon_two_gaussians(0, 1, shift, 1, DELTA))


def limit_weights(
    schedule: Schedule, noise_multiplier: float, **settings: Any
) -> tuple[np.ndarray, np.ndarray]:
    """What a round adds to an expected score of the final model, and to the square of every's."""
    record = limit_record(
        schedule, noise_multiplier, DELTA, unobserved=0, **settings
    )
    final, every = (
        seen_by(record, Adversary(sees)).expected_scores.by_round
        for sees in ("final", "all")
    )
    return final, every


def synthetic_log(seed: int = 0, rounds: int = T, clients: int = 40) -> Trace:
    """A log in which some take part far more often than others."""
    rng = np.random.default_rng(seed)
    there = rng.random((rounds, clients)) < rng.beta(0.5, 1.5, clients)
    there[0, 0] = there[-1, 0] = True
    when, who = np.nonzero(there)
    return Trace(when, who)
