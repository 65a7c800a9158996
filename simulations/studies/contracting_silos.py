"""Quadratic losses, of which the linear limit is no upper bound: exact ε of a silo's uploads.

    python simulations/studies/contracting_silos.py

A step of DP-SGD on a quadratic loss multiplies the distance to the minimum by ρ, and adds the
record's gradient, if its coin draws it, and noise. The global model is known when a round starts,
so an upload of s steps is Gaussian noise of deviation z·√(Σ_j ρ^(2j)) about Σ_j ρ^j·coin_j, j from
0 to s − 1: steps of a release have unequal weights, and rounds are independent. ε of all uploads is
then exact by `hidden_rounds_epsilon`.

The linear limit has ρ = 1. It is exact there, and for ρ < 1 it may be above or below. Theory, the
accountant's ε of every step, does not depend on ρ.
"""

from collections.abc import Iterator

import numpy as np

from fl_epe.accounting import hidden_rounds_epsilon, tightest, upper_bounds
from fl_epe.schedules import Events, ParticipationLaw

STEPS, ROUNDS, RATE, DELTA = 20, 30, 0.02, 1e-5
NOISE = (0.4, 0.6, 1.0)
CONTRACTIONS = (1.0, 0.9, 0.7, 0.4, 0.1)


def uploads_epsilon(contraction: float, noise: float) -> float:
    """ε of a record from all uploads, if each step contracts by this factor; 1 is linear."""
    weights = contraction ** np.arange(STEPS, dtype=np.float64)
    deviation = noise * np.linalg.norm(weights)
    events = Events.steps([weights] * ROUNDS, [RATE] * ROUNDS)
    return hidden_rounds_epsilon(events, np.full(ROUNDS, 1 / deviation), DELTA)


def every_step_epsilon(noise: float) -> float:
    """The accountant's ε, an upper bound at any contraction."""
    law = ParticipationLaw.of_records(
        [np.ones(STEPS)] * ROUNDS, [RATE] * ROUNDS
    )
    return tightest(upper_bounds(law, noise, DELTA), rounds_known=False).epsilon


def lines() -> Iterator[str]:
    """One line for each noise multiplier and contraction."""
    yield "  z    ρ   exact  linear limit  every step"
    for noise in NOISE:
        linear = uploads_epsilon(1.0, noise)
        theory = every_step_epsilon(noise)
        for contraction in CONTRACTIONS:
            exact = uploads_epsilon(contraction, noise)
            yield f"{noise:3}  {contraction:3}  {exact:6.2f}  {linear:12.2f}  {theory:10.2f}"


def main() -> None:
    """Print the table."""
    for line in lines():
        print(line, flush=True)


if __name__ == "__main__":
    main()
