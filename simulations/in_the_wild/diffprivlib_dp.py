"""diffprivlib 0.6.6: its mechanisms for a number, which seem sound.

    pip install --no-deps --target build/wild/diffprivlib diffprivlib==0.6.6
    PYTHONPATH=build/wild/diffprivlib python simulations/in_the_wild/diffprivlib_dp.py --seeds 20

Each mechanism releases 0 or its sensitivity; the claim is the ε that it was made with.

Expected with `--quick`; each passes in 20 of 20 seeds::

                                                  claimed   proved by       severity
    Gaussian, ε = 1                                     1    0.252 weighted none found
    GaussianAnalytic, ε = 3                             3        1 weighted none found
    GaussianDiscrete, ε = 3                             3    0.953 weighted none found
    Laplace, ε = 1                                      1    0.362 weighted none found
    LaplaceBoundedDomain, ε = 1                         1     0.48 weighted none found
    Geometric, ε = 1                                    1    0.643 weighted none found
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from fl_epe.checks import Floats
from simulations.in_the_wild import wild


def leads() -> list[wild.Lead]:
    """Every mechanism that adds noise to a number."""
    wild.skip_init("diffprivlib")
    from diffprivlib import mechanisms

    def lead(
        name: str, delta: float, epsilon: float = 1.0, **options: Any
    ) -> wild.Lead:
        budget = {"epsilon": epsilon} | (
            {"delta": delta} if name != "Geometric" else {}
        )
        mechanism = getattr(mechanisms, name)(
            **budget, sensitivity=1, **options
        )
        number = int if name in ("GaussianDiscrete", "Geometric") else float

        def release(updates: Floats) -> Floats:
            return np.array([float(mechanism.randomise(number(updates.sum())))])

        game = wild.played(release, np.array([1.0]))
        return wild.Lead(f"{name}, ε = {epsilon:g}", epsilon, game, delta=delta)

    return [
        lead("Gaussian", wild.DELTA),
        lead("GaussianAnalytic", wild.DELTA, 3.0),
        lead("GaussianDiscrete", wild.DELTA, 3.0),
        lead("Laplace", 0.0),
        lead("LaplaceBoundedDomain", 0.0, lower=-5, upper=6),
        lead("Geometric", 0.0),
    ]


if __name__ == "__main__":
    sys.exit(wild.main("diffprivlib", leads, observations=1000))
