"""Independent canaries, each from normal draws of its own, as in the paper."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from fl_epe.canaries.blas_threads import one_blas_thread
from fl_epe.seeding import generator

_COLUMNS = 1 << 15  # coordinates made and used at once, so that they stay in the cache
_FEW = 8  # whole canaries in memory at once; more only cost memory
_BLOCK = 64  # canaries that one thread works on at once, for more than one vector

Numbers = NDArray[np.int64]


class Sphere:
    """Uniform directions of dimension ``dim``; number i is made from ``(seed, i)``."""

    def __init__(self, dim: int, seed: int) -> None:
        self.dim, self.seed = dim, seed

    def fill(self, i: int, out: NDArray[np.float32]) -> None:
        """Write canary ``i`` into ``out``, shape ``(dim,)``."""
        rng, square = generator(self.seed, int(i)), 0.0
        for start in range(0, self.dim, _COLUMNS):
            square += _draw(rng, out[start : start + _COLUMNS])
        out /= np.float32(math.sqrt(square))

    def combine(self, weights: NDArray[np.floating], chosen: Numbers) -> NDArray[np.float32]:
        """Sums of the canaries ``chosen``, with only a few of them in memory, ``(m, dim)``."""
        out = np.zeros((len(weights), self.dim), np.float32)
        shares = np.asarray(weights, np.float32)
        few = np.empty((min(_FEW, len(chosen)), self.dim), np.float32)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for first in range(0, len(chosen), _FEW):
                block = chosen[first : first + _FEW]
                list(pool.map(self.fill, block.tolist(), few))
                out += shares[:, first : first + _FEW] @ few[: len(block)]
        return out

    def dot(
        self, vectors: NDArray[np.floating], chosen: Numbers, threads: int | None
    ) -> NDArray[np.float64]:
        """Inner products, with only a block of canaries in memory, ``(m, len(chosen))``."""
        rows = vectors if vectors.dtype == np.float32 else vectors.astype(np.float64)
        out = np.empty((len(chosen), len(rows)))
        size = _BLOCK if len(rows) > 1 else 1

        def work(first: int) -> None:
            block = chosen[first : first + size]
            out[first : first + len(block)] = self._block_dot(block, rows)

        with one_blas_thread(), ThreadPoolExecutor(threads or os.cpu_count()) as pool:
            list(pool.map(work, range(0, len(chosen), size)))
        return np.ascontiguousarray(out.T)

    def _block_dot(self, block: Numbers, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Products with a few canaries, in float32 within `_COLUMNS` coordinates, else float64."""
        generators = [generator(self.seed, int(i)) for i in block]
        squares = np.zeros(len(block))
        total = np.zeros((len(block), len(rows)))
        for start in range(0, self.dim, _COLUMNS):
            stop = min(start + _COLUMNS, self.dim)
            columns = np.empty((len(block), stop - start), np.float32)
            for j, (rng, part) in enumerate(zip(generators, columns, strict=True)):
                squares[j] += _draw(rng, part)
            total += columns @ rows[:, start:stop].T
        return total / np.sqrt(squares)[:, None]


def _draw(rng: np.random.Generator, out: NDArray[np.float32]) -> float:
    """Fill ``out`` with normal draws; returns the sum of their squares."""
    rng.standard_normal(out=out, dtype=np.float32)
    return float(np.sum(np.square(out, dtype=np.float64)))
