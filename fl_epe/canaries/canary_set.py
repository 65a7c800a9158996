"""Canaries: random unit vectors that any process can regenerate from a seed and a number.

Examples:
    >>> canaries = CanarySet(dim=1000, count=3, seed=1)
    >>> canaries.dot(canaries.vector(1)).round(1)
    array([0., 1., 0.])
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fl_epe.seeding import generator

_COLUMNS = 1 << 15  # coordinates made and used at once, so that they stay in the cache
_FEW = 8  # whole canaries in memory at once; more only cost memory
_BLOCK = 64  # canaries that one thread works on at once, for more than one vector


class CanarySet:
    """``count`` independent uniform directions on the unit sphere of R^``dim``.

    Canary ``i`` depends on ``(seed, i)`` and ``dim`` alone. So a set is not stored: every process
    that needs it makes the same bits again. A canary's cosine with any independent vector
    follows the law of Andrew et al. (2024), Theorem 3.1, with variance exactly ``1 / dim``.

    Args:
        dim: dimension of the model, at least 1.
        count: number of canaries, at least 1.
        seed: a non-negative integer; keep it secret until training has ended.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, dim: int, count: int, seed: int) -> None:
        for name, value, least in (("dim", dim, 1), ("count", count, 1), ("seed", seed, 0)):
            if value < least:
                raise ValueError(f"Expected {name}={value} >= {least}.")
        self.dim = int(dim)
        self.count = int(count)
        self.seed = int(seed)

    def __repr__(self) -> str:
        return f"CanarySet(dim={self.dim}, count={self.count}, seed=...)"

    def __len__(self) -> int:
        return self.count

    def vector(self, i: int) -> NDArray[np.float32]:
        """Canary ``i`` as a float32 array of shape ``(dim,)`` with unit norm.

        Raises:
            IndexError: if ``i`` is not in [0, count).
        """
        out = np.empty(self.dim, np.float32)
        self._fill(i, out)
        return out

    def _fill(self, i: int, out: NDArray[np.float32]) -> None:
        rng, square = self._generator(i), 0.0
        for start in range(0, self.dim, _COLUMNS):
            square += _draw(rng, out[start : start + _COLUMNS])
        out /= np.float32(math.sqrt(square))

    def vectors(self, numbers: Sequence[int]) -> NDArray[np.float32]:
        """The canaries with these numbers, shape ``(len(numbers), dim)``; uses all processors."""
        out = np.empty((len(numbers), self.dim), np.float32)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self._fill, numbers, out))
        return out

    def combine(
        self, weights: NDArray[np.floating], *, numbers: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """Weighted sums of canaries, with only a few canaries in memory.

        Args:
            weights: of each canary in each sum, shape ``(m, count)``, or ``len(numbers)`` columns.
            numbers: which canaries; all of them by default.

        Returns:
            float32 array of shape ``(m, dim)``.

        Raises:
            ValueError: if ``weights`` has another number of columns.
            IndexError: if a number is not in [0, count).
        """
        chosen = range(self.count) if numbers is None else list(numbers)
        if weights.ndim != 2 or weights.shape[1] != len(chosen):
            raise ValueError(f"Expected weights.shape={weights.shape} to be (m, {len(chosen)}).")
        out = np.zeros((len(weights), self.dim), np.float32)
        shares = np.asarray(weights, np.float32)
        for first in range(0, len(chosen), _FEW):
            block = slice(first, first + _FEW)
            out += shares[:, block] @ self.vectors(chosen[block])
        return out

    def dot(
        self,
        x: NDArray[np.floating],
        *,
        numbers: Sequence[int] | None = None,
        threads: int | None = None,
    ) -> NDArray[np.float64]:
        """Inner products of canaries with ``x``, with only a block of canaries in memory.

        Args:
            x: shape ``(dim,)`` or ``(m, dim)``.
            numbers: which canaries; all of them by default.
            threads: how many threads share the work; the result does not depend on it.

        Returns:
            float64 array of shape ``(count,)`` or ``(m, count)``, or of ``len(numbers)`` columns.

        Raises:
            ValueError: if the last axis of ``x`` is not ``dim`` long.
            IndexError: if a number is not in [0, count).
        """
        x = np.asarray(x)
        if x.ndim not in (1, 2) or x.shape[-1] != self.dim:
            raise ValueError(f"Expected x.shape={x.shape} to end with dim={self.dim}.")
        rows = np.atleast_2d(x if x.dtype == np.float32 else x.astype(np.float64))
        chosen = range(self.count) if numbers is None else list(numbers)
        out = np.empty((len(chosen), len(rows)))
        size = _BLOCK if len(rows) > 1 else 1

        def work(first: int) -> None:
            block = chosen[first : first + size]
            out[first : first + len(block)] = self._block_dot(block, rows)

        # One BLAS thread per product: more would compete with our threads and be ten times slower.
        with (
            threadpool_limits(1, user_api="blas"),
            ThreadPoolExecutor(threads or os.cpu_count()) as pool,
        ):
            list(pool.map(work, range(0, len(chosen), size)))
        return np.ascontiguousarray(out.T) if x.ndim == 2 else out[:, 0]

    def _block_dot(self, block: Sequence[int], rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Products with a few canaries, in float32 within `_COLUMNS` coordinates, else float64."""
        generators = [self._generator(i) for i in block]
        squares = np.zeros(len(block))
        total = np.zeros((len(block), len(rows)))
        for start in range(0, self.dim, _COLUMNS):
            stop = min(start + _COLUMNS, self.dim)
            columns = np.empty((len(block), stop - start), np.float32)
            for j, (rng, part) in enumerate(zip(generators, columns, strict=True)):
                squares[j] += _draw(rng, part)
            total += columns @ rows[:, start:stop].T
        return total / np.sqrt(squares)[:, None]

    def _generator(self, i: int) -> np.random.Generator:
        if not 0 <= i < self.count:
            raise IndexError(f"Expected i={i} in [0, count={self.count}).")
        return generator(self.seed, i)


def _draw(rng: np.random.Generator, out: NDArray[np.float32]) -> float:
    """Fill ``out`` with normal draws; returns the sum of their squares."""
    rng.standard_normal(out=out, dtype=np.float32)
    return float(np.sum(np.square(out, dtype=np.float64)))
