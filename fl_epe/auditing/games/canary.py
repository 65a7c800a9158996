"""Canaries for games: the vector that takes part, the same in each step or drawn anew.

The directions of Nasr et al. (2023), section 5: one coordinate (Dirac), all coordinates alike
(constant), or random. Each has the norm that it is given, which should be the clip norm: a shorter
canary uses less than the mechanism allows, a longer one is clipped.

Examples:
    >>> dirac(dim=3, norm=2.0, index=1).vector(0)
    array([0., 2., 0.])
    >>> drawn = random_direction(dim=3, seed=1, redrawn=True)
    >>> bool((drawn.vector(0) == drawn.vector(1)).any())
    False
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.checks import raise_invalid
from fl_epe.seeding import generator

Vector = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Canary:
    """The canary's update in each step.

    Attributes:
        name: in words.
        dim: number of entries d.
        vector: from the number of the step, counted from 0 through the whole game, to the update,
            float64 of shape (d,); zero in a step in which it does not take part.
    """

    name: str
    dim: int
    vector: Callable[[int], Vector]


def fixed(vector: ArrayLike, name: str = "fixed") -> Canary:
    """The same ``vector``, shape (d,), in each step.

    Raises:
        ValueError: if it has another shape, is zero, or is not finite.
    """
    kept = np.array(vector, np.float64)
    if kept.ndim != 1 or not np.all(np.isfinite(kept)):
        raise_invalid("canary.shape", kept.shape, "to be (d,), finite")
    if not np.any(kept):
        raise_invalid("norm", 0.0, "> 0, with some entry of the canary that is not 0")
    return Canary(name, kept.size, lambda _: kept.copy())


def dirac(dim: int, norm: float = 1.0, index: int = 0) -> Canary:
    """All of the norm on coordinate ``index``.

    Raises:
        ValueError: if ``dim`` < 1, ``norm`` is not above 0, or there is no such coordinate.
    """
    _check(dim, norm)
    if not 0 <= index < dim:
        raise_invalid("index", index, f"in [0, dim={dim})")
    vector = np.zeros(dim)
    vector[index] = norm
    return fixed(vector, f"Dirac, coordinate {index}")


def constant(dim: int, norm: float = 1.0) -> Canary:
    """The same value on each of ``dim`` coordinates.

    Raises:
        ValueError: if ``dim`` < 1 or ``norm`` is not above 0.
    """
    _check(dim, norm)
    return fixed(np.full(dim, norm / math.sqrt(dim)), "constant")


def random_direction(dim: int, norm: float = 1.0, *, seed: int, redrawn: bool = False) -> Canary:
    """A uniformly random direction, the same in each step or ``redrawn`` for every one.

    Raises:
        ValueError: if ``dim`` < 1, ``norm`` is not above 0, or ``seed`` is negative.
    """
    _check(dim, norm)
    if seed < 0:
        raise_invalid("seed", seed, ">= 0")

    def drawn(step: int) -> Vector:
        vector = generator(seed, step).standard_normal(dim)
        return np.asarray(vector * (norm / np.linalg.norm(vector)))

    if redrawn:
        return Canary("random, redrawn in each step", dim, drawn)
    return fixed(drawn(0), "random")


def _check(dim: int, norm: float) -> None:
    if dim < 1:
        raise_invalid("dim", dim, ">= 1")
    if not 0 < norm < math.inf:
        raise_invalid("norm", norm, "> 0, finite")
