"""How much wider scores over several rounds are, because the rounds' means agree.

A canary that takes part in some rounds has the score ``Σ a_t s_t / √(Σ a_t²)``. Without the canary
its variance is 1 if the means of these rounds are orthogonal. If they have the cosines ``C_tu``, as
the updates of real clients do, it is ``1 + Σ_{t≠u} a_t a_u C_tu / Σ a_t²``. Means are not kept, but
a sketch of each is: each coordinate gets a sign by chance, and about a thousand groups of
coordinates are added up. Inner products of sketches are on average those of the means, and how much
the groups differ shows with what error.
Derivation and measurements: docs/notes/watching.md.

Examples:
    >>> correlation = RoundCorrelation(dim=3, count=2)
    >>> for mean in ([1.0, 0.0, 0.0], [0.6, 0.8, 0.0]):  # a cosine of 0.6
    ...     correlation.add(correlation.sketch(np.array(mean)), [0, 1])
    >>> correlation.width(4.0)  # two canaries in two rounds of weight 1; exact in so few dimensions
    Width(value=1.264..., low=1.264..., high=1.264...)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl_epe.mechanism import norm

Floats = NDArray[np.float64]

SKETCH_PARTS = 1021
"""Numbers in a sketch; a prime, so that no part has the same place of every layer's rows."""

_ERRORS = 3.0  # standard errors within which the width is
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Width:
    """Standard deviation of the scores of canaries without the canary, at least 1.

    Attributes:
        value: 1 unless it is certainly more.
        low: not more than it, within three standard errors of the sketches.
        high: not less than it.
    """

    value: float = 1.0
    low: float = 1.0
    high: float = 1.0


EXACT = Width()
"""Of scores that are N(0, 1) without what they are to show."""


class RoundCorrelation:
    """Sketches of rounds, summed over the rounds of each canary.

    Args:
        dim: dimension of the means.
        count: number of canaries; memory is used for those that take part.
    """

    def __init__(self, dim: int, count: int) -> None:
        self._dim = dim
        self._parts = min(dim, SKETCH_PARTS)
        self._signs: NDArray[np.int8] | None = None
        self._sums = np.zeros((count, self._parts))
        self._squares, self._alone = np.zeros(self._parts), np.zeros(self._parts)

    def nothing(self) -> Floats:
        """The sketch of a round without a mean."""
        return np.zeros(self._parts)

    def sketch(self, mean: NDArray[np.floating]) -> Floats:
        """Shape ``(parts,)``; of all means alike. The mean itself if it has so few numbers."""
        if self._dim <= SKETCH_PARTS:
            return np.asarray(mean, np.float64)
        if self._signs is None:
            draw = np.random.default_rng(_SEED).integers(0, 2, self._dim, np.int8)
            self._signs = 2 * draw - 1
        signed = mean * self._signs
        whole = self._dim // self._parts * self._parts
        found = signed[:whole].reshape(-1, self._parts).sum(axis=0, dtype=np.float64)
        found[: self._dim - whole] += signed[whole:]
        return np.asarray(found)

    def add_round(
        self, mean: NDArray[np.floating] | None, signal: float, present: Sequence[int]
    ) -> NDArray[np.float32]:
        """Note a round by its mean, if it has one; returns the sketch that `add` takes."""
        found = self.nothing()
        if mean is not None and (length := norm(mean)) > 0:
            found = self.sketch(mean) * (signal / length)
        kept = np.asarray(found, np.float32)
        self.add(kept, present)
        return kept

    def add(self, sketch: NDArray[np.floating], present: Sequence[int]) -> None:
        """Note a round: ``a_t`` times the sketch of its mean of length 1, and who took part."""
        chosen, sketch = list(present), np.asarray(sketch, np.float64)
        before = self._sums[chosen]
        after = before + sketch
        self._squares += np.sum(after**2 - before**2, axis=0)
        self._alone += len(chosen) * sketch**2
        self._sums[chosen] = after

    def width(self, energy: float) -> Width:
        """The width, where ``Σ a_t²`` over all participations is ``energy``.

        Canaries with different rounds have different widths; this is for the sum of all scores.
        """
        found = (self._squares - self._alone) / energy
        excess, error = float(found.sum()), 0.0
        if self._dim > SKETCH_PARTS:
            error = _ERRORS * float(found.std(ddof=1)) * math.sqrt(self._parts)
        low, value, high = (
            math.sqrt(max(1 + more, 1.0)) for more in (excess - error, excess, excess + error)
        )
        return Width(value if low > 1 else 1.0, low, high)
