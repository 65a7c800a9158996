"""Random draws that several schedules share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fl_epe.schedules.contract import Cohort


def even_sizes(total: int, rounds: int) -> Iterator[int]:
    """Cohort sizes that add up to ``total``, spread evenly.

    Any ``b`` in a row add up to the floor or the ceiling of ``b * total / rounds``: all are equal
    where ``rounds`` divides ``total``, and never differ by more than one.
    """
    for t in range(rounds):
        yield (t + 1) * total // rounds - t * total // rounds


def draw(rng: np.random.Generator, population: int, size: int) -> Cohort:
    """A uniform set of ``size`` distinct numbers in ``[0, population)``, in no random order."""
    return rng.choice(population, size, replace=False, shuffle=False)


def by_round(when: NDArray[np.integer], rounds: int) -> Iterator[Cohort]:
    """The positions in ``when`` that hold 0, 1, … ``rounds - 1``; each set is ascending.

    One bucket sort: linear in ``len(when)``.
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
    """Clients by group: those of group g are ``clients[starts[g] : starts[g] + sizes[g]]``."""

    clients: Cohort
    sizes: NDArray[np.int64]

    @classmethod
    def split(cls, rng: np.random.Generator, sizes: NDArray[np.int64]) -> Groups:
        """Everybody in a random group, ``sizes[g]`` of them in group g."""
        return cls(rng.permutation(int(sizes.sum())), sizes)

    def starts(self) -> NDArray[np.int64]:
        """Where each group begins."""
        return np.cumsum(self.sizes) - self.sizes
