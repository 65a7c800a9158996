"""Settings of the limit of a large model, and a synthetic log."""

from typing import Any

import numpy as np

from fl_epe import epsilon_two_gaussians
from fl_epe.limit.simulated_record import RealUpdates, limit_weights
from fl_epe.schedules import Schedule, Trace, presence
from fl_epe.seeding import generator

DELTA = 1e-5
T = 12
REAL = RealUpdates(np.linspace(0.1, 0.3, T), 2.0)
SERVERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"learning_rates": 0.3, "momentum": 0.9, "clip_norms": np.linspace(1, 2, T)},
    "decay": {"momentum": 0.5, "learning_rates": 0.8 ** np.arange(T)},
    "real": {"momentum": 0.9, "real": REAL},
}


def epsilon_of_shift(shift: float) -> float:
    return float(epsilon_two_gaussians(0, 1, shift, 1, DELTA))


def expected_scores(
    schedule: Schedule,
    noise_multiplier: float,
    *,
    num_canaries: int,
    seed: int = 0,
    **settings: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Expected scores of the canaries of `limit_record`, for "final" and "all"."""
    population = settings.pop("population", None) or num_canaries
    rng = generator(seed, 0)
    seen = presence(schedule, population, rng, num_canaries)
    final, every_round = limit_weights(schedule.rounds, noise_multiplier, **settings)
    return final @ seen, np.sqrt(every_round @ seen)


def synthetic_log(seed: int = 0, rounds: int = T, clients: int = 40) -> Trace:
    """A log in which some take part far more often than others."""
    rng = np.random.default_rng(seed)
    there = rng.random((rounds, clients)) < rng.beta(0.5, 1.5, clients)
    there[0, 0] = there[-1, 0] = True
    when, who = np.nonzero(there)
    return Trace(when, who)
