"""Statistics: one number from what was released, the larger the more it says "took part".

The adversary knows the canary's update in each step, but not in which steps it was sampled.

Examples:
    >>> import numpy as np
    >>> seen = Transcript(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.0, 2.0], [0.0, 2.0]]))
    >>> ALONG_CANARY.score(seen)
    6.0
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

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


def _along(seen: Transcript) -> float:
    pairs = zip(seen.released, seen.canaries, strict=True)
    return float(np.array([r @ (c / np.linalg.norm(c)) for r, c in pairs if c.any()]).sum())


ALONG_CANARY = Statistic("along the canary", _along)
"""Inner product with the canary's direction, summed over steps: the likelihood ratio's statistic
where noise is Gaussian and the canary takes part in every step."""
