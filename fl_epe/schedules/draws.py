"""Random draws that several schedules share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fl_epe.schedules.contract import Cohort


def even_sizes(total: int, rounds: int) -> Iterator[int]:
    """Cohort sizes that add up to ``total``, spread evenly.

    The sizes of any ``b`` consecutive rounds add up to ``b * total / rounds``, rounded down or up.
    So sizes differ by at most one.
    """
    for t in range(rounds):
        yield (t + 1) * total // rounds - t * total // rounds


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


@dataclasses.dataclass(frozen=True)
class Groups:
    """Clients by group.

    Attributes:
        clients: client numbers, group after group.
        sizes: number of clients in each group.
    """

    clients: Cohort
    sizes: NDArray[np.int64]

    @classmethod
    def split(cls, rng: np.random.Generator, sizes: NDArray[np.int64]) -> Groups:
        """Everybody in a random group, ``sizes[g]`` of them in group g."""
        return cls(rng.permutation(int(sizes.sum())), sizes)

    def starts(self) -> NDArray[np.int64]:
        """The place in ``clients`` at which each group begins."""
        return np.cumsum(self.sizes) - self.sizes
