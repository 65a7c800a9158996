"""Groups examples by client in bounded memory, whatever order they come in.

An external bucket sort: examples wait in memory; when they take more than a limit they are appended
to one of 256 files, all of a client to the same; at the end one file after another is sorted. The
examples of a client keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

BUCKETS = 256
MEMORY = 64 << 20
"""Bytes of examples that wait before they are written, by default."""


class Grouper:
    """Takes examples of any clients in any order, gives them back client by client."""

    def __init__(self, folder: Path, width: int, dtype: str, memory: int = MEMORY) -> None:
        """Start with nothing.

        Args:
            folder: where the bucket files go; they are removed as they are read.
            width: integers of an example.
            dtype: NumPy name of their type.
            memory: bytes of examples that may wait. Sorting them takes about twice as much again.
        """
        self._row = np.dtype([("client", "<i4"), ("example", np.dtype(dtype), (width,))])
        self._folder = folder
        self._memory = memory
        self._waiting: list[np.ndarray] = []
        self._bytes = 0
        self._spilled = False

    def add(self, clients: NDArray[np.int32], examples: np.ndarray) -> None:
        """Take examples of shape (rows, width) and the number of the client of each."""
        rows = np.empty(len(clients), self._row)
        rows["client"] = clients
        rows["example"] = examples
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes > self._memory:
            self._spill()

    def groups(self) -> Iterator[tuple[NDArray[np.int32], np.ndarray]]:
        """All examples in blocks of some clients each: the client of each, and the examples.

        Those of a client are next to each other; the order does not depend on ``memory``. Nothing
        may be added any more.
        """
        if not self._spilled:
            yield from self._sorted(self._take())
            return
        self._spill()
        for bucket in range(BUCKETS):
            path = self._path(bucket)
            if path.exists():
                yield from self._sorted(np.fromfile(path, self._row))
                path.unlink()

    def _sorted(self, rows: np.ndarray) -> Iterator[tuple[NDArray[np.int32], np.ndarray]]:
        if len(rows):
            # Bucket by bucket also where there are no files: the order is the same with them.
            bucket, client = rows["client"] % BUCKETS, rows["client"]
            ordered = rows[np.lexsort((client, bucket))]
            yield ordered["client"], ordered["example"]

    def _spill(self) -> None:
        rows = self._take()
        self._spilled = True
        buckets = rows["client"] % BUCKETS
        rows = rows[np.argsort(buckets, kind="stable")]
        ends = np.cumsum(np.bincount(buckets, minlength=BUCKETS))
        for bucket, part in enumerate(np.split(rows, ends[:-1])):
            if len(part):
                with self._path(bucket).open("ab") as file:
                    part.tofile(file)

    def _take(self) -> np.ndarray:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        return np.concatenate(waiting) if waiting else np.empty(0, self._row)

    def _path(self, bucket: int) -> Path:
        return self._folder / f"bucket-{bucket:03}"


class Sample:
    """A uniform sample of at most ``size`` of the examples that it was shown, in random order."""

    def __init__(self, size: int, width: int, dtype: str, random: np.random.Generator) -> None:
        self._size = size
        self._random = random
        self._keys = np.empty(0)
        self._examples = np.empty((0, width), dtype)

    def add(self, examples: np.ndarray) -> None:
        """Show examples of shape (rows, width): those with the smallest random keys stay."""
        keys = self._random.random(len(examples))
        if len(self._keys) == self._size:
            chosen = keys < self._keys[-1] if self._size else np.zeros(len(keys), bool)
            keys, examples = keys[chosen], examples[chosen]
        if not len(keys):
            return
        all_keys = np.concatenate([self._keys, keys])
        order = np.argsort(all_keys)[: self._size]
        self._keys = all_keys[order]
        self._examples = np.concatenate([self._examples, examples])[order]

    def examples(self) -> np.ndarray:
        """The sample, shape (at most size, width)."""
        return self._examples
