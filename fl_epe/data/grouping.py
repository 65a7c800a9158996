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

from fl_epe.data.encoders import Encoder

BUCKETS = 256
MEMORY = 64 << 20
"""Bytes of examples that wait before they are written, by default."""


class Grouper:
    """Takes examples of any clients in any order, gives them back client by client.

    Args:
        folder: where the bucket files go; they are removed as they are read.
        encoder: says how large an example is.
        memory: bytes of examples that may wait. Sorting them takes about twice as much again.
    """

    def __init__(self, folder: Path, encoder: Encoder, memory: int = MEMORY) -> None:
        example = ("example", np.dtype(encoder.dtype), (encoder.width,))
        self._row = np.dtype([("client", "<i4"), example])
        self._folder, self._memory = folder, memory
        self._waiting: list[np.ndarray] = []

    def add(self, clients: NDArray[np.int32], examples: np.ndarray) -> None:
        """Take examples of shape (rows, width) and the number of the client of each."""
        rows = np.empty(len(clients), self._row)
        rows["client"], rows["example"] = clients, examples
        self._waiting.append(rows)
        if sum(rows.nbytes for rows in self._waiting) > self._memory:
            self._spill()

    def groups(self) -> Iterator[tuple[NDArray[np.int32], np.ndarray]]:
        """All examples in blocks of some clients each: the client of each, and the examples.

        Those of a client are next to each other; the order does not depend on ``memory``. Nothing
        may be added any more.
        """
        self._spill()
        for path in sorted(self._folder.glob("bucket-*")):
            rows = np.fromfile(path, self._row)
            path.unlink()
            rows = rows[np.argsort(rows["client"], kind="stable")]
            yield rows["client"], rows["example"]

    def _spill(self) -> None:
        rows = np.concatenate([np.empty(0, self._row), *self._waiting])
        self._waiting = []
        buckets = rows["client"] % BUCKETS
        order = np.argsort(buckets, kind="stable")
        present, first = np.unique(buckets[order], return_index=True)
        for bucket, part in zip(present, np.split(rows[order], first[1:]), strict=False):
            with (self._folder / f"bucket-{bucket:03}").open("ab") as file:
                part.tofile(file)


class Sample:
    """A uniform sample of at most ``size`` of the examples that it was shown, in random order.

    Attributes:
        examples: the sample, shape (at most size, width).
    """

    def __init__(self, size: int, encoder: Encoder, random: np.random.Generator) -> None:
        self._size, self._random = size, random
        self._keys = np.empty(0)
        self.examples = np.empty((0, encoder.width), encoder.dtype)

    def add(self, examples: np.ndarray) -> None:
        """Show examples of shape (rows, width): those with the smallest random keys stay."""
        keys = np.concatenate([self._keys, self._random.random(len(examples))])
        order = np.argsort(keys)[: self._size]
        self._keys = keys[order]
        self.examples = np.concatenate([self.examples, examples])[order]
