"""Canaries by rotation: all scores of a vector at once, from two fast transforms.

With H the Walsh–Hadamard matrix of size D, a power of two, and two diagonals of random signs s and
t, the rows of ``H·diag(s)·H·diag(t)``, cut to the first d entries and scaled to length 1, are
canaries. As the product of two rows of H is another row, row r has the entries
``t_j · g[j xor r]`` with ``g = H·s``: one canary is a shuffled copy of one vector, with new signs.
Why they are as good as independent directions, and where they are not: docs/notes/rotation.md.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from fl_epe.canaries.walsh_hadamard import transform
from fl_epe.seeding import generator

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

LEAST_SIZE = 1 << 16
"""Smallest D: its sums of signs are normal to 1e-3 of a tail beyond 4.5 deviations."""

_BLOCK = 1 << 15  # entries of a canary that are made at once, so that they stay in the cache
_STREAM = 1 << 61  # apart from the numbers of independent canaries
_ROUNDS = 4  # of the shuffle of rows; after three some differences come in bunches


@functools.lru_cache(maxsize=2)
def rotation(dim: int, seed: int, family: int) -> Rotation:
    """The family with this number; the last two that were used are kept."""
    return Rotation(dim, seed, family)


class Rotation:
    """A family of D canaries of dimension ``dim``, in 4·D bytes.

    Args:
        dim: d.
        seed: of the signs.
        family: a number; families of one seed are independent.
    """

    def __init__(self, dim: int, seed: int, family: int) -> None:
        self.dim = dim
        self.size = size_for(dim)
        rng = generator(seed, _STREAM, family)
        self._first, self._second = (_signs(rng, self.size) for _ in range(2))
        self._keys = [(int(a) | 1, int(b)) for a, b in rng.integers(self.size, size=(_ROUNDS, 2))]
        base = transform(self._first.astype(np.float32))  # whole numbers, so exact everywhere
        narrow = np.abs(base).max() < 1 << 15
        self._base = base.astype(np.int16 if narrow else np.int32)
        blocks = base.reshape(-1, min(_BLOCK, self.size))
        self._squares = np.array([np.sum(np.square(b, dtype=np.float64)) for b in blocks])

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
        sums = np.square(self._base, dtype=np.float64)
        for bit in range(self.size.bit_length()):  # `sums` are those of 2^bit entries
            if self.dim >> bit & 1:
                start = self.dim >> (bit + 1) << (bit + 1)  # a block of the row, and of the base
                squares += sums[(start ^ rows) >> bit]
            sums = sums.reshape(-1, 2).sum(axis=1) if len(sums) > 1 else sums
        return np.asarray(np.sqrt(squares))

    def fill(self, row: int, out: NDArray[np.float32]) -> None:
        """Write the canary of this row, of length 1, into ``out``, shape ``(dim,)``."""
        size = min(_BLOCK, self.size)
        order, blocks = np.arange(size) ^ (row & (size - 1)), self._base.reshape(-1, size)
        whole, rest = divmod(self.dim, size)
        which = np.arange(whole + 1) ^ (row // size)
        square = float(self._squares[which[:whole]].sum())  # of whole numbers: exact
        if rest:
            cut = blocks[which[whole]].take(order[:rest])
            square += float(np.sum(np.square(cut, dtype=np.float64)))
        scale = np.float32(1 / math.sqrt(square))
        for number, start in enumerate(range(0, self.dim, size)):
            part = out[start : start + size]
            shuffled = blocks[which[number]].take(order[: len(part)])
            np.multiply(shuffled, self._second[start : start + len(part)], out=part)
            part *= scale

    def products(
        self, x: NDArray[np.floating], rows: Rows, *, threads: int | None = None
    ) -> Floats:
        """Inner products of rows before they are scaled with ``x``, shape ``(len(rows),)``.

        Args:
            x: shape ``(dim,)``.
            rows: which.
            threads: see `transform`.
        """
        largest = max(float(np.max(x)), -float(np.min(x)))
        if largest == 0:
            return np.zeros(len(rows))
        y = np.zeros(self.size, np.float32)
        np.multiply(x, 1 / largest, out=y[: self.dim], casting="same_kind")
        y[: self.dim] *= self._second[: self.dim]
        transform(y, threads=threads)
        y *= self._first
        return transform(y, threads=threads)[rows] * np.float64(largest)

    def combine(self, weights: Floats, rows: Rows) -> NDArray[np.float32]:
        """The sum of rows before they are scaled, with these weights, shape ``(dim,)``."""
        largest = float(np.max(np.abs(weights), initial=0.0))
        if largest == 0:
            return np.zeros(self.dim, np.float32)
        y = np.zeros(self.size, np.float32)
        y[rows] = weights / largest
        transform(y)
        y *= self._first
        out = transform(y)[: self.dim]
        out *= self._second[: self.dim]
        out *= np.float32(largest)
        return out


def size_for(dim: int) -> int:
    """D for canaries of dimension ``dim``: the next power of two, at least `LEAST_SIZE`."""
    return max(LEAST_SIZE, 1 << (dim - 1).bit_length())


def _signs(rng: np.random.Generator, count: int) -> NDArray[np.int8]:
    bits = np.unpackbits(np.frombuffer(rng.bytes(count // 8), np.uint8))
    return np.asarray(1 - 2 * bits.astype(np.int8))
