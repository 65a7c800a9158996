"""fl_epe itself, as a control: the clipped sum, noise and adaptive clip norm of its `DPFedAvg`.

    python simulations/in_the_wild/own_dp_fedavg.py --seeds 20

The claim is ε of one participation by the Gaussian mechanism. The adaptive clip norm is played
together with the sum.

Expected, with 300 observations; each passes in 20 of 20 seeds::

                                                  claimed   proved by       severity
    fixed clip norm                                  4.38      1.7 weighted none found
    adaptive clip norm                               4.38     1.32 weighted none found
"""

from __future__ import annotations

import sys

import numpy as np

from fl_epe.accounting import gaussian_epsilon
from fl_epe.checks import Floats
from fl_epe.mechanism import AdaptiveClip, ClippedSum, gaussian_noise
from simulations.in_the_wild import wild

DIM, OTHERS, COUNT_NOISE = 8, 9, 1.2


def leads() -> list[wild.Lead]:
    """A fixed clip norm, and an adaptive one with little noise on its count."""
    rng = np.random.default_rng()

    def summed(updates: Floats, noise: float) -> tuple[Floats, int]:
        total = ClippedSum(DIM, 1.0)
        below = [bool(total.add(update)) for update in updates]
        return total.total() + gaussian_noise(rng, DIM, noise), sum(below)

    def fixed(updates: Floats) -> Floats:
        return summed(updates, 1.0)[0]

    def adaptive(updates: Floats) -> Floats:
        clip = AdaptiveClip(1.0, 0.5, 1.0, COUNT_NOISE, OTHERS + 1)
        noisy, below = summed(updates[:, :DIM], clip.sum_noise_multiplier(1.0))
        moved = clip.update(1.0, below, len(updates), rng)
        return np.append(noisy, -np.log(moved) * (OTHERS + 1))

    canary, claim = 0.999 * np.eye(DIM)[0], gaussian_epsilon(1.0, wild.DELTA)
    other_updates = 10 * np.eye(DIM)[[1, 2, 3] * 3]
    wide = np.hstack([other_updates, np.zeros((OTHERS, 1))])
    weights = np.append(
        (1 - (2 * COUNT_NOISE) ** -2) * np.eye(DIM)[0], COUNT_NOISE**-2 / 2
    )
    game = wild.played(
        adaptive, np.append(canary, 0.0), others=wide, weights=weights
    )
    return [
        wild.Lead(
            "fixed clip norm",
            claim,
            wild.played(fixed, 5 * canary, others=other_updates),
        ),
        wild.Lead("adaptive clip norm", claim, game),
    ]


if __name__ == "__main__":
    sys.exit(wild.main("fl-epe", leads))
