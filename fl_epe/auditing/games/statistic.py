"""Statistics: one number from what was released, the larger the more it says "took part".

The adversary knows the canary's update in each step, but not in which steps it was sampled.

Examples:
    >>> import numpy as np
    >>> seen = Transcript(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.0, 2.0], [0.0, 2.0]]))
    >>> ALONG_CANARY.score(seen), LARGEST_ALONG_CANARY.score(seen), coordinate(0).score(seen)
    (6.0, 4.0, 4.0)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Matrix = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class Transcript:
    """What the adversary sees of one observation.

    Attributes:
        released: in each of s steps, shape (s, d).
        canaries: the canary's update in these steps, shape (s, d); zero where it takes no part.
    """

    released: Matrix
    canaries: Matrix


@dataclasses.dataclass(frozen=True)
class Statistic:
    """How an observation is scored.

    Attributes:
        name: in words, as reports print it.
        score: from the transcript to a number.
    """

    name: str
    score: Callable[[Transcript], float]


def _products(seen: Transcript) -> Matrix:
    pairs = zip(seen.released, seen.canaries, strict=True)
    return np.array([r @ (c / np.linalg.norm(c)) for r, c in pairs if c.any()])


ALONG_CANARY = Statistic("along the canary", lambda seen: float(_products(seen).sum()))
"""Inner product with the canary's direction, summed over steps: the likelihood ratio's statistic
where noise is Gaussian and the canary takes part in every step."""

LARGEST_ALONG_CANARY = Statistic(
    "largest along the canary", lambda seen: float(_products(seen).max())
)
"""The largest inner product with the canary's direction of any step (Andrew et al. 2024)."""


def coordinate(index: int) -> Statistic:
    """Coordinate ``index`` of the sum of what was released, for an adversary of the final model."""
    return Statistic(f"coordinate {index}", lambda seen: float(seen.released[:, index].sum()))


def along_direction(direction: ArrayLike, name: str = "along a direction") -> Statistic:
    """Inner product of the sum of what was released with a unit vector along ``direction``."""
    kept = np.array(direction, np.float64)
    unit = kept / np.linalg.norm(kept)
    return Statistic(name, lambda seen: float(seen.released.sum(axis=0) @ unit))


def log_likelihood_ratio(
    present: Callable[[Any], Any], absent: Callable[[Any], Any], *, of: Statistic = ALONG_CANARY
) -> Statistic:
    """The log of the ratio of two densities of another statistic: by Neyman and Pearson the best.

    Args:
        present: log density of ``of`` where the canary takes part, from a number to a number.
        absent: the same where it does not.
        of: the statistic whose densities they are.
    """

    def ratio(seen: Transcript) -> float:
        value = of.score(seen)
        return float(present(value) - absent(value))

    return Statistic(f"log-likelihood ratio, {of.name}", ratio)
