"""How the directions of canaries are generated: by rotation, or from independent normal draws.

Rotation: with H the Walsh–Hadamard matrix of size D, a power of two, and two diagonals of random
signs s and t, the rows of ``H·diag(s)·H·diag(t)``, cut to the first d entries and scaled to length
1, are canaries, and two fast transforms score all of them at once. As the product of two rows of H
is another row, row r has the entries ``t_j · g[j xor r]`` with ``g = H·s``: one canary is a
shuffled copy of one vector, with new signs. Where they are as good as independent directions, and
where not: docs/notes/rotation.md. Independent directions are those of the paper.

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
)  # entries of a base in memory; a larger one is recomputed
_FIRST_BIT = 6  # sums of fewer than 2^6 squares are recomputed for each row
_STREAM = 1 << 61  # apart from the numbers of independent canaries
_ROUNDS = (
    4  # of the shuffle of rows; after three some differences come in bunches
)
_COLUMNS = (
    1 << 12
)  # of a transform's last product that one thread works on at once
_SHORT = 1 << 18  # up to here, 2 ms, starting threads costs more than they save
_FEW = 8  # independent canaries in memory at once; more only cost memory
_TOGETHER = (
    64  # of them that one thread works on at once, for more than one vector
)


@functools.cache
def _controller() -> Any:
    """A controller of the loaded libraries' threads; kept, as to search for them is slow."""
    try:
        from threadpoolctl import ThreadpoolController
    except (
        ImportError
    ):  # a machine with NumPy, SciPy and torch only, as in benchmarks/gpu.py
        return None
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """In this context a product uses one thread: more would compete with ours, 10 times slower."""
    controller = _controller()
    if controller is None:
        return contextlib.nullcontext()
    return cast(
        AbstractContextManager[Any], controller.limit(limits=1, user_api="blas")
    )


def transform(x: Floats32, *, threads: int | None = None) -> Floats32:
    """The Walsh–Hadamard transform of ``x``, in place, by three products with small matrices.

    ``y_i = Σ_j (−1)^popcount(i & j) · x_j``: its own inverse up to the factor D. It is exact for
    whole numbers below 2^24, and right to about 1e-6 of the spread for others.

    Args:
        x: float32, contiguous, shape ``(2^b,)``.
        threads: how many threads share the work; the result does not depend on it. By default one
            for a short vector, and one for each core for a long one.
    """
    bits = len(x).bit_length() - 1
    outer_bits = bits // 3  # three factors of about the same size
    middle_bits = (bits - outer_bits) // 2
    outer = 1 << outer_bits
    middle = 1 << middle_bits
    inner = len(x) // (outer * middle)
    matrices = x.reshape(outer, middle, inner)
    columns = x.reshape(outer, middle * inner)

    def transform_within(i: int) -> None:
        product = matrices[i] @ hadamard(inner)
        np.matmul(hadamard(middle), product, out=matrices[i])

    def transform_across(first: int) -> None:
        part = columns[:, first : first + _COLUMNS]
        part[...] = hadamard(outer) @ part

    if threads is None:
        threads = 1 if len(x) <= _SHORT else os.cpu_count() or 1
    with one_blas_thread():
        _run(transform_within, range(outer), threads)
        _run(transform_across, range(0, middle * inner, _COLUMNS), threads)
    return x


def _run(
    work: Callable[[int], None], items: Iterable[int], threads: int
) -> None:
    if threads == 1:
        for item in items:
            work(item)
    else:
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
        self.dim = dim
        self.size = size_for(dim)
        rng = generator(seed, _STREAM, 0)
        self._first = np.frombuffer(rng.bytes(self.size // 8), np.uint8)
        self._second = np.frombuffer(rng.bytes(self.size // 8), np.uint8)
        keys = rng.integers(self.size, size=(_ROUNDS, 2))
        self._keys = [
            (int(factor) | 1, int(summand)) for factor, summand in keys
        ]
        self._base: Floats32 | None = None
        if self.size <= _LARGEST_KEPT:
            self._base = self._compute_base()

    def _compute_base(self) -> Floats32:
        """``g``, of whole numbers, so exact everywhere; shape ``(D,)``."""
        return transform(
            change_signs(np.ones(self.size, np.float32), self._first)
        )

    def _mix(self, x: Floats32, threads: int | None = None) -> Floats32:
        """``H·diag(s)·H·x``, in place."""
        transform(x, threads=threads)
        change_signs(x, self._first)
        return transform(x, threads=threads)

    def rows(self, numbers: Rows) -> Rows:
        """The row of the rotation of each canary number, in a secret random order."""
        rows = np.asarray(numbers, np.int64)
        shift = self.size.bit_length() // 2
        for (
            factor,
            summand,
        ) in self._keys:  # each step is a permutation of 0 … D − 1
            rows = (rows * factor + summand) & (self.size - 1)
            rows = rows ^ (rows >> shift)
        return rows

    def lengths(self, rows: Rows) -> Floats:
        """Norm of each of these rows of whole numbers before it is scaled to 1; exact squares.

        The first d entries are split into blocks of powers of two, by the bits of d. A block of a
        row is a shuffled block of the base, of the same size.
        """
        base = self._base
        if base is None:
            base = self._compute_base()
        sums = np.empty(self.size >> _FIRST_BIT)  # of 2^bit squares each
        for block in blocks(self.size):
            squares = np.square(base[block], dtype=np.float64)
            part = slice(block.start >> _FIRST_BIT, block.stop >> _FIRST_BIT)
            sums[part] = squares.reshape(-1, 1 << _FIRST_BIT).sum(axis=1)
        energies = np.zeros(len(rows))
        for bit in range(self.size.bit_length()):
            if self.dim >> bit & 1:
                start = self.dim >> (bit + 1) << (bit + 1)
                numbers = (start ^ rows) >> bit  # of the block in the base
                if bit >= _FIRST_BIT:
                    energies += sums[numbers]
                else:
                    entries = (numbers << bit)[:, None] + np.arange(1 << bit)
                    squares = np.square(base[entries], dtype=np.float64)
                    energies += squares.sum(axis=1)
            if bit >= _FIRST_BIT:
                sums = sums[::2] + sums[1::2]
        return np.asarray(np.sqrt(energies))

    def vector(self, row: int) -> Floats32:
        """The canary of this row, of length 1, shape ``(dim,)``."""
        if self._base is None:
            out = np.zeros(self.size, np.float32)
            out[row] = 1
            self._mix(out)
        else:
            out = np.empty(self.dim, np.float32)
            order = np.arange(BLOCK) ^ (row % BLOCK)
            for block in blocks(self.dim):
                first = (block.start ^ row) // BLOCK * BLOCK
                part = self._base[first : first + BLOCK]
                out[block] = part[order[: block.stop - block.start]]
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

        def part(block: slice) -> Reals:
            if less is None:
                return x[block]
            return x[block] - less[block]

        largest = max(
            float(np.max(np.abs(part(block)))) for block in blocks(self.dim)
        )
        if largest == 0:
            return np.zeros(len(rows))
        y = np.zeros(self.size, np.float32)
        for block in blocks(self.dim):
            np.multiply(
                part(block), 1 / largest, out=y[block], casting="same_kind"
            )
        change_signs(y[: self.dim], self._second)
        return self._mix(y, threads)[rows] * np.float64(largest)

    def combine(self, weights: Floats, rows: Rows) -> Floats32:
        """The sum of rows before they are scaled, with these weights, shape ``(dim,)``."""
        largest = float(np.max(np.abs(weights), initial=0.0))
        if largest == 0:
            return np.zeros(self.dim, np.float32)
        y = np.zeros(self.size, np.float32)
        y[rows] = weights / largest
        out = change_signs(self._mix(y)[: self.dim], self._second)
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
    for block in blocks(len(x)):
        x[block] *= signs(bits, block)
    return x


def signs(bits: NDArray[np.uint8], block: slice) -> NDArray[np.int8]:
    """1 where a bit is 0 and −1 where it is 1, in a block that starts at a whole byte."""
    whole_bytes = bits[block.start // 8 : math.ceil(block.stop / 8)]
    unpacked = np.unpackbits(whole_bytes, count=block.stop - block.start)
    return 1 - 2 * unpacked.view(np.int8)


class Sphere:
    """Uniform directions of dimension ``dim``; number i is drawn from ``(seed, i)``."""

    def __init__(self, dim: int, seed: int) -> None:
        self.dim = dim
        self.seed = seed

    def fill(self, i: int, out: Floats32) -> None:
        """Write canary ``i`` into ``out``, shape ``(dim,)``."""
        rng = generator(self.seed, int(i))
        square = 0.0
        for block in blocks(self.dim):
            square += _draw(rng, out[block])
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
        rows = vectors
        if rows.dtype != np.float32:
            rows = rows.astype(np.float64)
        out = np.empty((len(chosen), len(rows)))
        size = _TOGETHER if len(rows) > 1 else 1

        def score(first: int) -> None:
            canaries = chosen[first : first + size]
            out[first : first + len(canaries)] = self._dot_together(
                canaries, rows
            )

        with (
            one_blas_thread(),
            ThreadPoolExecutor(threads or os.cpu_count()) as pool,
        ):
            list(pool.map(score, range(0, len(chosen), size)))
        return np.ascontiguousarray(out.T)

    def _dot_together(self, canaries: Rows, rows: Reals) -> Floats:
        """Products with a few canaries, in float32 within `BLOCK` coordinates, else float64."""
        generators = [generator(self.seed, int(i)) for i in canaries]
        squares = np.zeros(len(canaries))
        total = np.zeros((len(canaries), len(rows)))
        for block in blocks(self.dim):
            columns = np.empty(
                (len(canaries), block.stop - block.start), np.float32
            )
            for i, rng in enumerate(generators):
                squares[i] += _draw(rng, columns[i])
            total += columns @ rows[:, block].T
        return total / np.sqrt(squares)[:, None]


def _draw(rng: np.random.Generator, out: Floats32) -> float:
    """Fill ``out`` with normal draws; returns the sum of their squares."""
    rng.standard_normal(out=out, dtype=np.float32)
    return float(np.sum(np.square(out, dtype=np.float64)))
