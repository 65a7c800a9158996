"""How the directions of canaries are made: by rotation, or from normal draws of their own.

Rotation: with H the Walsh–Hadamard matrix of size D, a power of two, and two diagonals of random
signs s and t, the rows of ``H·diag(s)·H·diag(t)``, cut to the first d entries and scaled to length
1, are canaries, and two fast transforms score all of them at once. As the product of two rows of H
is another row, row r has the entries ``t_j · g[j xor r]`` with ``g = H·s``: one canary is a
shuffled copy of one vector, with new signs. Why they are as good as independent directions, and
where they are not: docs/notes/rotation.md. Independent directions are those of the paper.

Examples:
    >>> transform(np.array([1, 0, 0, 2], np.float32))
    array([ 3., -1., -1.,  3.], dtype=float32)
"""

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from fl_epe.checks import Floats, Floats32, Integers, Reals
from fl_epe.mechanism import BLOCK, blocks, norm
from fl_epe.seeding import generator

Rows = Integers

LEAST_SIZE = 1 << 16
"""Smallest D: its sums of signs are normal to 1e-3 of a tail beyond 4.5 deviations."""

_LARGEST_KEPT = (
    1 << 22
)  # entries of a base; with more it is made again, not to take memory
_FIRST_BIT = 6  # sums of fewer than 2^6 squares are made again for each row
_STREAM = 1 << 61  # apart from the numbers of independent canaries
_ROUNDS = 4  # of the shuffle of rows; after three some differences come in bunches
_COLUMNS = 1 << 12  # of a transform's last product that one thread works on at once
_SHORT = 1 << 18  # up to here, 2 ms, starting threads costs more than they save
_FEW = 8  # whole independent canaries in memory at once; more only cost memory
_TOGETHER = 64  # of them that one thread works on at once, for more than one vector


@functools.cache
def _controller() -> Any:
    """Of the libraries that are loaded when it is first asked for; looking for them is slow."""
    try:
        from threadpoolctl import ThreadpoolController
    except (
        ImportError
    ):  # a machine with NumPy, SciPy and torch alone, as in benchmarks/gpu.py
        return None
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """While this lasts a product uses one thread: more would compete with ours, 10 times slower."""
    controller = _controller()
    limited = controller and controller.limit(limits=1, user_api="blas")
    return cast(AbstractContextManager[Any], limited or contextlib.nullcontext())


def transform(x: Floats32, *, threads: int | None = None) -> Floats32:
    """The Walsh–Hadamard transform of ``x``, in place, by three products with small matrices.

    ``y_i = Σ_j (−1)^popcount(i & j) · x_j``: its own inverse up to the factor D. It is exact for
    whole numbers below 2^24, and right to about 1e-6 of the spread for others.

    Args:
        x: float32, contiguous, shape ``(2^b,)``.
        threads: how many threads share the work; the result does not depend on it. By default one
            for a short vector, and one for each core for a long one.
    """
    bits = len(x).bit_length() - 1  # three factors, about alike
    outer, middle = 1 << bits // 3, 1 << (bits - bits // 3) // 2
    inner = len(x) // (outer * middle)
    blocks, columns = x.reshape(outer, middle, inner), x.reshape(outer, middle * inner)
    left, right = hadamard(middle), hadamard(inner)

    def within(i: int) -> None:
        np.matmul(left, blocks[i] @ right, out=blocks[i])

    def across(first: int) -> None:
        part = columns[:, first : first + _COLUMNS]
        part[...] = hadamard(outer) @ part

    count = threads or (1 if len(x) <= _SHORT else os.cpu_count() or 1)
    with one_blas_thread():
        _share(within, range(outer), count)
        _share(across, range(0, middle * inner, _COLUMNS), count)
    return x


def _share(work: Callable[[int], None], items: Iterable[int], threads: int) -> None:
    if threads == 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, items))


@functools.cache
def hadamard(size: int) -> Floats32:
    """The matrix of the transform of length ``size``, in Sylvester's order."""
    return np.asarray(scipy.linalg.hadamard(size, np.float32))


class Rotation:
    """D canaries of dimension ``dim``, in D/4 bytes; small ones in 4·D more.

    Args:
        dim: d.
        seed: of the signs.
    """

    def __init__(self, dim: int, seed: int) -> None:
        self.dim, self.size = dim, size_for(dim)
        rng = generator(seed, _STREAM, 0)
        self._first, self._second = (
            np.frombuffer(rng.bytes(self.size // 8), np.uint8) for _ in range(2)
        )
        self._keys = [
            (int(a) | 1, int(b)) for a, b in rng.integers(self.size, size=(_ROUNDS, 2))
        ]
        self._kept = self._made_base() if self.size <= _LARGEST_KEPT else None

    def _made_base(self) -> Floats32:
        """``g``, of whole numbers, so exact everywhere; shape ``(D,)``."""
        return transform(change_signs(np.ones(self.size, np.float32), self._first))

    def rows(self, numbers: Rows) -> Rows:
        """Which row of the rotation each of these canaries is, in a secret random order."""
        x, shift = np.asarray(numbers, np.int64), self.size.bit_length() // 2
        for factor, summand in self._keys:  # each step is a permutation of 0 … D − 1
            x = (x * factor + summand) & (self.size - 1)
            x = x ^ (x >> shift)
        return x

    def lengths(self, rows: Rows) -> Floats:
        """Norm of each of these rows of whole numbers before it is scaled to 1; exact squares."""
        squares = np.zeros(len(rows))
        base = self._made_base() if self._kept is None else self._kept
        parts = (np.square(base[here], dtype=np.float64) for here in blocks(self.size))
        sums = np.concatenate(
            [part.reshape(-1, 1 << _FIRST_BIT).sum(axis=1) for part in parts]
        )
        for bit in range(self.size.bit_length()):
            if self.dim >> bit & 1:
                start = (
                    self.dim >> (bit + 1) << (bit + 1)
                )  # a block of the row, and of the base
                if bit >= _FIRST_BIT:  # `sums` are those of 2^bit entries
                    squares += sums[(start ^ rows) >> bit]
                else:
                    entries = ((start ^ rows) >> bit << bit)[:, None] + np.arange(
                        1 << bit
                    )
                    squares += np.square(base[entries], dtype=np.float64).sum(axis=1)
            if bit >= _FIRST_BIT:
                sums = sums[::2] + sums[1::2]
        return np.asarray(np.sqrt(squares))

    def vector(self, row: int) -> Floats32:
        """The canary of this row, of length 1, shape ``(dim,)``."""
        if self._kept is None:
            out = np.zeros(self.size, np.float32)
            out[row] = 1
            transform(change_signs(transform(out), self._first))
        else:
            out, within = (
                np.empty(self.dim, np.float32),
                np.arange(BLOCK) ^ (row % BLOCK),
            )
            for here in blocks(self.dim):
                first = (here.start ^ row) // BLOCK * BLOCK
                part = self._kept[first : first + BLOCK]
                out[here] = part[within[: here.stop - here.start]]
        out = change_signs(out[: self.dim], self._second)
        out *= np.float32(1 / norm(out))  # of whole numbers: exact
        return out

    def products(
        self,
        x: Reals,
        rows: Rows,
        *,
        less: Reals | None = None,
        threads: int | None = None,
    ) -> Floats:
        """Inner products of rows before they are scaled with ``x``, shape ``(len(rows),)``.

        Args:
            x: shape ``(dim,)``.
            rows: which.
            less: what is subtracted from ``x``, of the same shape.
            threads: see `transform`.
        """

        def part(here: slice) -> Reals:
            return x[here] if less is None else x[here] - less[here]

        largest = max(float(np.max(np.abs(part(here)))) for here in blocks(self.dim))
        if largest == 0:
            return np.zeros(len(rows))
        y = np.zeros(self.size, np.float32)
        for here in blocks(self.dim):
            np.multiply(part(here), 1 / largest, out=y[here], casting="same_kind")
        change_signs(y[: self.dim], self._second)
        transform(
            change_signs(transform(y, threads=threads), self._first), threads=threads
        )
        return y[rows] * np.float64(largest)

    def combine(self, weights: Floats, rows: Rows) -> Floats32:
        """The sum of rows before they are scaled, with these weights, shape ``(dim,)``."""
        largest = float(np.max(np.abs(weights), initial=0.0))
        if largest == 0:
            return np.zeros(self.dim, np.float32)
        y = np.zeros(self.size, np.float32)
        y[rows] = weights / largest
        transform(change_signs(transform(y), self._first))
        out = change_signs(y[: self.dim], self._second)
        out *= np.float32(largest)
        return out


@functools.lru_cache(maxsize=2)
def rotation(dim: int, seed: int) -> Rotation:
    """The rotation of a seed; the last two that were used are kept."""
    return Rotation(dim, seed)


def size_for(dim: int) -> int:
    """D for canaries of dimension ``dim``: the next power of two, at least `LEAST_SIZE`."""
    return max(LEAST_SIZE, 1 << (dim - 1).bit_length())


def change_signs(x: Floats32, bits: NDArray[np.uint8]) -> Floats32:
    """Change the sign of ``x[j]``, in place, where bit j of ``bits`` (`numpy.packbits`) is 1."""
    for here in blocks(len(x)):
        x[here] *= signs(bits, here)
    return x


def signs(bits: NDArray[np.uint8], here: slice) -> NDArray[np.int8]:
    """1 where a bit is 0 and −1 where it is 1, in a part of them that starts at a whole byte."""
    found = np.unpackbits(
        bits[here.start // 8 : -(-here.stop // 8)], count=here.stop - here.start
    )
    return 1 - 2 * found.view(np.int8)


class Sphere:
    """Uniform directions of dimension ``dim``; number i is made from ``(seed, i)``."""

    def __init__(self, dim: int, seed: int) -> None:
        self.dim, self.seed = dim, seed

    def fill(self, i: int, out: Floats32) -> None:
        """Write canary ``i`` into ``out``, shape ``(dim,)``."""
        rng, square = generator(self.seed, int(i)), 0.0
        for here in blocks(self.dim):
            square += _draw(rng, out[here])
        out /= np.float32(math.sqrt(square))

    def combine(self, weights: Reals, chosen: Rows) -> Floats32:
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

    def dot(self, vectors: Reals, chosen: Rows, threads: int | None) -> Floats:
        """Inner products, with only a block of canaries in memory, ``(m, len(chosen))``."""
        rows = vectors if vectors.dtype == np.float32 else vectors.astype(np.float64)
        out = np.empty((len(chosen), len(rows)))
        size = _TOGETHER if len(rows) > 1 else 1

        def work(first: int) -> None:
            block = chosen[first : first + size]
            out[first : first + len(block)] = self._block_dot(block, rows)

        with one_blas_thread(), ThreadPoolExecutor(threads or os.cpu_count()) as pool:
            list(pool.map(work, range(0, len(chosen), size)))
        return np.ascontiguousarray(out.T)

    def _block_dot(self, block: Rows, rows: Reals) -> Floats:
        """Products with a few canaries, in float32 within `BLOCK` coordinates, else float64."""
        generators = [generator(self.seed, int(i)) for i in block]
        squares = np.zeros(len(block))
        total = np.zeros((len(block), len(rows)))
        for here in blocks(self.dim):
            columns = np.empty((len(block), here.stop - here.start), np.float32)
            for j, (rng, part) in enumerate(zip(generators, columns, strict=True)):
                squares[j] += _draw(rng, part)
            total += columns @ rows[:, here].T
        return total / np.sqrt(squares)[:, None]


def _draw(rng: np.random.Generator, out: Floats32) -> float:
    """Fill ``out`` with normal draws; returns the sum of their squares."""
    rng.standard_normal(out=out, dtype=np.float32)
    return float(np.sum(np.square(out, dtype=np.float64)))
