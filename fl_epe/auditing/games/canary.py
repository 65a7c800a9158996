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

from fl_epe.seeding import generator

Vector = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Canary:
    """The canary's update in each step.

    Attributes:
        name: in words.
        dim: number of entries d.
        vector: from the number of the step, counted from 0 through the whole game, to the update,
            float64 of shape (d,); zero in a step in which it does not take part, see `once`.
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
        raise ValueError(f"Expected canary.shape={kept.shape} to be (d,), finite.")
    if not np.any(kept):
        raise ValueError("Expected canary of norm=0.0 > 0, with some entry that is not 0.")
    return Canary(name, kept.size, lambda _: kept.copy())


def dirac(dim: int, norm: float = 1.0, index: int = 0) -> Canary:
    """All of the norm on coordinate ``index``.

    Raises:
        ValueError: if ``dim`` < 1, ``norm`` is not above 0, or there is no such coordinate.
    """
    _check(dim, norm)
    if not 0 <= index < dim:
        raise ValueError(f"Expected index={index} in [0, dim={dim}).")
    vector = np.zeros(dim)
    vector[index] = norm
    return fixed(vector, f"Dirac, coordinate {index}")


def random_coordinate(dim: int, norm: float = 1.0, *, seed: int) -> Canary:
    """All of the norm on one coordinate, drawn anew in each step.

    Raises:
        ValueError: if ``dim`` < 1, ``norm`` is not above 0, or ``seed`` is negative.
    """
    _check(dim, norm)
    if seed < 0:
        raise ValueError(f"Expected seed={seed} >= 0.")

    def drawn(step: int) -> Vector:
        vector = np.zeros(dim)
        vector[generator(seed, step).integers(dim)] = norm
        return vector

    return Canary("Dirac, redrawn in each step", dim, drawn)


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
        raise ValueError(f"Expected seed={seed} >= 0.")

    def drawn(step: int) -> Vector:
        vector = generator(seed, step).standard_normal(dim)
        return np.asarray(vector * (norm / np.linalg.norm(vector)))

    if redrawn:
        return Canary("random, redrawn in each step", dim, drawn)
    return fixed(drawn(0), "random")


def once(canary: Canary, steps: int, at: int = 0) -> Canary:
    """``canary`` in step ``at`` of every ``steps`` steps alone, and zero in the others.

    Raises:
        ValueError: if ``at`` is not one of the ``steps`` steps.
    """
    if not 0 <= at < steps:
        raise ValueError(f"Expected at={at} in [0, steps={steps}).")

    def vector(step: int) -> Vector:
        return canary.vector(step) * (step % steps == at)

    return Canary(f"{canary.name}, in step {at} of {steps}", canary.dim, vector)


def _check(dim: int, norm: float) -> None:
    if dim < 1:
        raise ValueError(f"Expected dim={dim} >= 1.")
    if not 0 < norm < math.inf:
        raise ValueError(f"Expected norm={norm} > 0, finite.")
