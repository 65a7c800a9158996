"""Sanity checks of a claimed sensitivity, before any noise is looked at (Tramèr et al. 2022).

Most of the mistakes that they list are of one kind: the noise is right for the sensitivity that the
code believes in, and the sensitivity is wrong. That takes no statistics to find.

Examples:
    Gradients of 256 examples were averaged, and the average was clipped to 1. Its noise is for a
    sensitivity of 1/256:

    >>> from fl_epe.auditing import games
    >>> class ClipsTheMean(games.AuditedMechanism):
    ...     def release(self, updates, rng):
    ...         mean = updates.sum(axis=0, keepdims=True) / 256
    ...         return games.clipped(mean, 1.0)[0] + rng.normal(0, 1 / 256, mean.size)
    >>> games.measured_sensitivity(
    ...     ClipsTheMean(), games.ADD_OR_REMOVE, [games.dirac(dim=4, norm=1000.0)]
    ... )
    1.0
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.auditing.games.canary import Canary, Vector
from fl_epe.auditing.games.game import Game
from fl_epe.auditing.games.mechanism import AuditedMechanism, Updates
from fl_epe.checks import raise_invalid
from fl_epe.seeding import generator

_STREAMS = 4  # of random numbers, each of which noise must cancel with
_NOISE_LEFT = 1e-6  # of what is released: rounding to float32


def measured_sensitivity(
    mechanism: AuditedMechanism,
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
        absent = game.absent(vector)
        found.append(_change(mechanism, updates([vector], dim), updates(absent, dim), seed))
    if not found:
        raise_invalid("canaries", [], "to hold at least one canary")
    if not (largest := max(found)):
        raise ValueError("Expected canaries of which one changes what is released, got none.")
    return largest


def _change(mechanism: AuditedMechanism, one: Updates, other: Updates, seed: int) -> float:
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
