"""Sanity checks of a claimed sensitivity, before any noise is looked at (Tramèr et al. 2022).

Most of the mistakes that they list are of one kind: the noise is right for the sensitivity that the
code believes in, and the sensitivity is wrong. That takes no statistics to find.

Examples:
    Gradients of 256 examples, each at most 1 long, were averaged, and then each clipped to 1:

    >>> sensitivity_is_possible(sensitivity=1 / 256, batch_size=256, norm=1.0)
    True
    >>> sensitivity_is_possible(sensitivity=1 / 256, batch_size=256, norm=256.0)  # measured
    False
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.auditing.games.canary import Canary, Vector
from fl_epe.auditing.games.game import Game
from fl_epe.auditing.games.mechanism import Mechanism, Updates
from fl_epe.seeding import generator

_ROUNDING = 1e-9
_STREAMS = 4  # of random numbers, each of which noise must cancel with
_NOISE_LEFT = 1e-6  # of what is released: rounding to float32


def sensitivity_is_possible(sensitivity: float, batch_size: float, norm: float) -> bool:
    """Whether a batch of ``batch_size`` examples can change what is released by ``norm``.

    If one example changes it by at most s, then B of them change it by at most B·s (triangle
    inequality), so that B·s ≥ L (Tramèr et al. 2022, section 4). False says that the claimed
    sensitivity is wrong; true proves nothing.

    Args:
        sensitivity: s, that is claimed for one example, add-or-remove or zero-out.
        batch_size: B.
        norm: L, how long what is released of a batch can be, noise aside. For the mean of a batch
            it is the bound on one example, which B examples that are alike reach; or it is
            measured (`measured_batch`).

    Raises:
        ValueError: if an argument is not above 0 or not finite.
    """
    given = {"sensitivity": sensitivity, "batch_size": batch_size, "norm": norm}
    for name, value in given.items():
        if not 0 < value < math.inf:
            raise ValueError(f"Expected {name}={value} > 0, finite.")
    return batch_size * sensitivity >= norm * (1 - _ROUNDING)


def measured_sensitivity(
    mechanism: Mechanism,
    game: Game,
    canaries: Iterable[Canary],
    *,
    others: ArrayLike = (),
    seed: int = 0,
) -> float:
    """The largest change of what one step releases, noise aside, between neighbouring inputs.

    Both inputs meet the same random numbers, so that noise which does not depend on the updates
    cancels. If it does not, as where a mechanism draws from a generator of its own, samples the
    updates, or draws a number for each of them, nothing is measured, which is an error. What is
    measured is at most the sensitivity: a larger value than claimed proves the claim wrong, a
    smaller one proves nothing. Long canaries, and some along each tensor, find the most.

    Args:
        mechanism: reset before each step.
        game: what differs between the two inputs.
        canaries: of which each is tried, by its update in step 0.
        others: updates of the other records, shape (n, d).
        seed: of the random numbers.

    Raises:
        ValueError: if there is no canary, none changes what is released, or noise does not cancel.
    """
    rows = list(np.array(others, np.float64))

    def updates(own: list[Vector], dim: int) -> Updates:
        return np.array([*rows, *own], np.float64).reshape(-1, dim)

    found = []
    for canary in canaries:
        vector, dim = canary.vector(0), canary.dim
        present, absent = game.present(vector), game.absent(vector)
        found.append(_change(mechanism, updates(present, dim), updates(absent, dim), seed))
    if not found:
        raise ValueError("Expected canaries=[] to hold at least one canary.")
    if not (largest := max(found)):
        raise ValueError("Expected canaries of which one changes what is released, got none.")
    return largest


def measured_batch(
    mechanism: Mechanism, canary: Canary, batch_size: int, *, seed: int = 0
) -> float:
    """How far a whole batch of updates that are alike moves what one step releases, noise aside.

    Args:
        mechanism: reset before each step.
        canary: whose update in step 0 all of the batch have; a long one.
        batch_size: number of updates in the batch, at least 1.
        seed: of the random numbers, the same with the batch and without it.

    Returns:
        The norm, for `sensitivity_is_possible`.

    Raises:
        ValueError: if noise does not cancel.
    """
    batch = np.tile(canary.vector(0), (batch_size, 1))
    return _change(mechanism, batch, batch[:0], seed)


def _change(mechanism: Mechanism, one: Updates, other: Updates, seed: int) -> float:
    """Norm of the change of what is released, which must not depend on the random numbers."""

    def released(updates: Updates, stream: int) -> Updates:
        mechanism.reset()
        return np.asarray(mechanism.release(updates, generator(seed, stream)), np.float64)

    sides = [(released(one, i), released(other, i)) for i in range(_STREAMS)]
    changes = np.array([present - absent for present, absent in sides])
    strayed = float(np.abs(changes - changes[0]).max())
    if strayed > _NOISE_LEFT * float(np.abs(sides).max()):
        raise ValueError(
            "Expected a mechanism whose noise cancels if rng draws the same numbers again, got "
            f"changes that differ by {strayed:.3g}. Let it draw all noise from rng, as many "
            "numbers whatever the updates are, and leave out sampling."
        )
    return float(np.linalg.norm(changes[0]))
