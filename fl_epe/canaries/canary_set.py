"""Canaries: random unit vectors that any process can make again from a seed and a number.

Examples:
    >>> canaries = CanarySet(dim=1000, count=3, seed=1)
    >>> canaries.dot(canaries.vector(1)).round(1) + 0.0
    array([0., 1., 0.])
"""

import functools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.canaries.directions import Floats, Rotation, Rows, Sphere, rotation, size_for
from fl_epe.checks import raise_invalid

CanaryKind = Literal["rotation", "sphere"]
"""How the directions of a `CanarySet` are made."""

_LEAST_DIM = 64  # of a rotation
_FEW = 8  # rotated canaries are added up one by one


class CanarySet:
    """``count`` random directions on the unit sphere of R^``dim``.

    Canary ``i`` depends on ``(seed, i)``, ``dim`` and ``kind`` alone. So a set is not stored: every
    process that needs it makes the same bits again. A canary's cosine with any independent vector
    has mean 0 and variance ``1 / dim``, and its law is that of Andrew et al. (2024), Theorem 3.1.

    Args:
        dim: dimension of the model, at least 1.
        count: number of canaries, at least 1.
        seed: a non-negative integer; keep it secret until training has ended.
        kind: "rotation", rows of a random rotation, all scores of which cost two fast transforms;
            or "sphere", independent normal draws as in the paper, each of which is made anew. In
            fewer than 64 dimensions both are the latter, as sums of signs are too coarse there.
            See docs/notes/rotation.md.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, dim: int, count: int, seed: int, kind: CanaryKind = "rotation") -> None:
        for name, value, least in (("dim", dim, 1), ("count", count, 1), ("seed", seed, 0)):
            if value < least:
                raise_invalid(name, value, f">= {least}")
        if kind not in get_args(CanaryKind):
            raise_invalid("kind", kind, f"to be one of {list(get_args(CanaryKind))}")
        self.dim = int(dim)
        self.count = int(count)
        self.seed = int(seed)
        self.kind: CanaryKind = kind
        self._sphere = Sphere(dim, seed) if kind == "sphere" or dim < _LEAST_DIM else None

    def __repr__(self) -> str:
        return f"CanarySet(dim={self.dim}, count={self.count}, seed=..., kind={self.kind!r})"

    @property
    def fast(self) -> bool:
        """Whether the scores of a vector cost the same for any number of canaries."""
        return self._sphere is None

    def vector(self, i: int) -> NDArray[np.float32]:
        """Canary ``i`` as a float32 array of shape ``(dim,)`` with unit norm.

        Raises:
            IndexError: if ``i`` is not in [0, count).
        """
        out = np.empty(self.dim, np.float32)
        self._fill(i, out)
        return out

    def vectors(self, numbers: Sequence[int]) -> NDArray[np.float32]:
        """The canaries with these numbers, shape ``(len(numbers), dim)``; uses all processors.

        Raises:
            IndexError: if a number is not in [0, count).
        """
        out = np.empty((len(numbers), self.dim), np.float32)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self._fill, numbers, out))
        return out

    def combine(
        self, weights: NDArray[np.floating], *, numbers: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """Weighted sums of canaries, without making them all.

        Args:
            weights: of each canary in each sum, shape ``(m, count)``, or ``len(numbers)`` columns.
            numbers: which canaries; all of them by default.

        Returns:
            float32 array of shape ``(m, dim)``.

        Raises:
            ValueError: if ``weights`` has another number of columns.
            IndexError: if a number is not in [0, count).
        """
        chosen = self._chosen(numbers)
        if weights.ndim != 2 or weights.shape[1] != len(chosen):
            raise_invalid("weights.shape", weights.shape, f"to be (m, {len(chosen)})")
        if self._sphere is not None:
            return self._sphere.combine(weights, chosen)
        out = np.zeros((len(weights), self.dim), np.float32)
        if len(chosen) <= _FEW:
            for column, i in zip(weights.T, chosen.tolist(), strict=True):
                out += np.outer(column, self.vector(i)).astype(np.float32)
            return out
        for family, here, rows, lengths in self._families(chosen):
            for total, shares in zip(out, weights, strict=True):
                total += family.combine(shares[here] / lengths, rows)
        return out

    def dot(
        self, x: ArrayLike, *, numbers: Sequence[int] | None = None, threads: int | None = None
    ) -> NDArray[np.float64]:
        """Inner products of canaries with ``x``, without making them all.

        Args:
            x: shape ``(dim,)`` or ``(m, dim)``.
            numbers: which canaries; all of them by default.
            threads: how many threads share the work; the result does not depend on it.

        Returns:
            float64 array of shape ``(count,)`` or ``(m, count)``, or of ``len(numbers)`` columns.
            "rotation" is right to about 1e-5 of ``‖x‖ / √dim``.

        Raises:
            ValueError: if the last axis of ``x`` is not ``dim`` long.
            IndexError: if a number is not in [0, count).
        """
        x = np.asarray(x)
        if x.ndim not in (1, 2) or x.shape[-1] != self.dim:
            raise_invalid("x.shape", x.shape, f"to end with dim={self.dim}")
        chosen = self._chosen(numbers)
        vectors = x if x.ndim == 2 else x[None]
        if self._sphere is not None:
            out = self._sphere.dot(vectors, chosen, threads)
        else:
            out = np.empty((len(vectors), len(chosen)))
            for family, here, rows, lengths in self._families(chosen):
                for dots, vector in zip(out, vectors, strict=True):
                    dots[here] = family.products(vector, rows, threads=threads) / lengths
        return out if x.ndim == 2 else out[0]

    def _chosen(self, numbers: Sequence[int] | None) -> Rows:
        if numbers is None:
            return np.arange(self.count)
        chosen = np.asarray(numbers, np.int64)
        for i in chosen[(chosen < 0) | (chosen >= self.count)]:
            raise IndexError(f"Expected i={i} in [0, count={self.count}).")
        return chosen

    def _fill(self, i: int, out: NDArray[np.float32]) -> None:
        self._chosen([i])
        if self._sphere is not None:
            self._sphere.fill(i, out)
            return
        number, index = divmod(i, size_for(self.dim))
        family = rotation(self.dim, self.seed, number)
        family.fill(int(family.rows(np.array(index))), out)

    @functools.cached_property
    def _all_rows(self) -> tuple[Rows, Floats]:
        """Row of every canary in its family, and the row's length before it is scaled to 1."""
        size = size_for(self.dim)
        rows, lengths = np.empty(self.count, np.int64), np.empty(self.count)
        for number, first in enumerate(range(0, self.count, size)):
            family = rotation(self.dim, self.seed, number)
            here = slice(first, min(first + size, self.count))
            rows[here] = family.rows(np.arange(here.stop - first))
            lengths[here] = family.lengths(rows[here])
        return rows, lengths

    def _families(self, chosen: Rows) -> Iterator[tuple[Rotation, Rows, Rows, Floats]]:
        """Each rotation, where its canaries are in ``chosen``, their rows, and those' lengths."""
        families = chosen // size_for(self.dim)
        rows, lengths = self._all_rows
        for number in np.flatnonzero(np.bincount(families)):
            here = np.flatnonzero(families == number)
            family = rotation(self.dim, self.seed, int(number))
            yield family, here, rows[chosen[here]], lengths[chosen[here]]
