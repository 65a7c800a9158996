"""What a mechanism is given in the canary's place: in the world with it, and in the one without.

The two worlds are two neighbouring data sets, so a game is an adjacency.

Examples:
    >>> import numpy as np
    >>> canary = np.array([0.0, 2.0])
    >>> SUBSTITUTE.absent(canary), ADD_OR_REMOVE.absent(canary)
    ([array([-0., -2.])], [])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Game:
    """One adjacency: the canary itself against what takes its place.

    Attributes:
        name: of the adjacency, as beside every ε.
        absent: from the canary, shape (d,), to the updates that replace it: none, or one of
            shape (d,).
    """

    name: str
    absent: Callable[[Vector], list[Vector]]


ADD_OR_REMOVE = Game("add-or-remove", lambda canary: [])
"""The canary's record is there, or it is not."""

ZERO_OUT = Game("zero-out", lambda canary: [0 * canary])
"""The canary's record is there, or one whose update is zero."""

SUBSTITUTE = Game("substitute", lambda canary: [-canary])
"""The canary's record is there, or the one that is farthest from it (Pradhan et al.)."""
