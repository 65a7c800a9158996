"""Random draws that several schedules share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Cohort = NDArray[np.int64]
"""The ids of those who take part in one round."""


def even_sizes(total: int, rounds: int) -> NDArray[np.int64]:
    """Cohort sizes that add up to ``total``, spread evenly.

    The sizes of any ``b`` consecutive rounds add up to ``b * total / rounds``, rounded down or up.
    So sizes differ by at most one.
    """
    ends = [t * total // rounds for t in range(rounds + 1)]  # would overflow in NumPy
    return np.asarray(np.diff(np.array(ends)), np.int64)


def draw(rng: np.random.Generator, population: int, size: int) -> Cohort:
    """A uniform set of ``size`` distinct numbers in ``[0, population)``, in an arbitrary order."""
    return rng.choice(population, size, replace=False, shuffle=False)


def by_round(when: NDArray[np.integer], rounds: int) -> Iterator[Cohort]:
    """For each round t, the positions at which ``when`` is t, ascending.

    Takes time linear in ``len(when)``.
    """
    # NumPy sorts 16-bit keys by radix.
    keys = when.astype(np.uint16) if rounds <= 2**16 else when
    order = np.argsort(keys, kind="stable")
    start = 0
    for end in np.cumsum(np.bincount(when, minlength=rounds)):
        yield order[start:end]
        start = end
