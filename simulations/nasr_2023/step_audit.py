"""Every step of two runs is an observation, for each kind of canary gradient (Nasr et al. 2023).

    python simulations/nasr_2023/step_audit.py    # a minute on one core; --quick: seconds

Sections 5.3 to 5.5, figures 5 and 15 of the paper.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.accounting import poisson_epsilon
from fl_epe.auditing import Scores
from fl_epe.conformance import games
from fl_epe.seeding import generator
from simulations.nasr_2023 import step_bounds
from simulations.nasr_2023.sampled_gaussian import poisson_epsilon_below
from simulations.nasr_2023.subsampled_bounds import (
    composed_lower_bound,
    noise_multiplier_limit,
    subsampled_lower_bound,
)
from simulations.shared.audit_script import Result, Settings, Table, run
from simulations.shared.noisy_sum import NoisySum

_NOISE = 1.0
_RATES = (1.0, 0.25)  # of the canary; 1/4 is that of the paper's figure 5
_OTHERS = 16
_CANARIES = 5
_RUN_RATE, _RUN_STEPS, _QUICK_STEPS = (
    0.25,
    100,
    4,
)  # of the run that the steps are composed to


def audit(settings: Settings) -> Result:
    """Two runs for each canary; a valid bound that is surely above the theorem fails."""
    steps = settings.count(2500, 200)
    dim = 50 if settings.quick else 1000
    run_steps = _QUICK_STEPS if settings.quick else _RUN_STEPS
    run_epsilon = poisson_epsilon(_NOISE, _RUN_RATE, run_steps, settings.delta)
    rows: list[tuple[Any, ...]] = []
    passed = True
    for rate in _RATES:
        truth = poisson_epsilon_below(_NOISE, rate, 1, settings.delta)
        for name, canary in _canaries(dim, settings.seed).items():
            scores = _play(canary, dim, rate, steps, settings.seed)
            row = _bounds(scores, rate, run_steps, settings)
            rows.append((name, rate, truth, *row))
            sure = step_bounds.sure(
                settings.confidence, 2 * len(_RATES) * _CANARIES
            )
            limit = noise_multiplier_limit(
                scores, sampling_rate=rate, confidence=sure
            )
            passed = passed and limit >= _NOISE
    columns = (
        "canary",
        "q_c",
        "ε of a step",
        *step_bounds.METHODS.values(),
        "f-DP at q_c (CP)",
        f"run of {run_steps} steps, q = {_RUN_RATE}",
    )
    full = [row[-1] for row in rows if row[1] == 1.0]
    summary = (
        f"From {steps:,} steps of two runs, and composed to {run_steps} steps at q = {_RUN_RATE}, "
        f"a canary in each step proves ε ≥ {min(full):.2f} to {max(full):.2f}; the accountant "
        f"says {run_epsilon:.2f}."
    )
    notes = [
        "'f-DP (CP)' reads the error rates as those of a Gaussian step: it is exact at q_c = 1, "
        "and for q_c < 1 it has another curve. 'f-DP at q_c' uses the step's own curve.",
        step_bounds.NOT_VALID,
        f"Noise multiplier {_NOISE:g}; {_OTHERS} other gradients of the clip norm in each step, in "
        f"random directions of {dim:,} dimensions. The paper trains networks on images. "
        "Adjacency: add-or-remove.",
    ]
    table = Table(
        f"Lower bounds on ε, {steps:,} steps in each world", columns, rows
    )
    return Result(summary, [table], notes, passed)


def _canaries(dim: int, seed: int) -> dict[str, games.ByStep]:
    def coordinate(step: int) -> NDArray[Any]:
        return np.asarray(
            np.eye(1, dim, int(generator(seed, step).integers(dim)))[0]
        )

    def direction(step: int) -> NDArray[Any]:
        vector = generator(seed, step).standard_normal(dim)
        return np.asarray(vector * (1.0 / np.linalg.norm(vector)))

    return {
        "Dirac, coordinate 0": np.eye(1, dim)[0],
        "Dirac, redrawn in each step": coordinate,
        "constant": np.full(dim, 1 / np.sqrt(dim)),
        "random": direction(0),
        "random, redrawn in each step": direction,
    }


def _play(
    canary: games.ByStep, dim: int, rate: float, steps: int, seed: int
) -> Scores:
    def others(step: int) -> NDArray[Any]:
        gradients = generator(seed, 7, step).standard_normal((_OTHERS, dim))
        return np.asarray(
            gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
        )

    return games.play_game(
        NoisySum(1.0, _NOISE),
        "add-or-remove",
        canary,
        observations=steps,
        two_runs=True,
        sampling_rate=rate,
        others=others,
        seed=seed,
    )


def _bounds(
    scores: Scores, rate: float, run_steps: int, settings: Settings
) -> tuple[float, ...]:
    """By each method; by the step's own curve; and by that one of the run."""
    delta, confidence = settings.delta, settings.confidence
    step = subsampled_lower_bound(
        scores, delta, sampling_rate=rate, steps=1, confidence=confidence
    )
    run = composed_lower_bound(
        scores,
        delta,
        sampling_rate=_RUN_RATE,
        steps=run_steps,
        canary_rate=rate,
        confidence=confidence,
    )
    return (*step_bounds.bounds(scores, delta, confidence).values(), step, run)


if __name__ == "__main__":
    run(audit, __doc__)
