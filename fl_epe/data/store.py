"""The data set on disk: examples grouped by client, mapped into memory, and an index of clients.

A folder with ``train.bin`` and ``held_out.bin``, arrays of whole numbers as they are in memory, and
``index.npz``: the clients' names ascending, where their examples begin and how many there are, and
what else is known of the data set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fl_epe.archive import read_archive, write_archive
from fl_epe.seeding import generator

_INDEX = "index.npz"
_SCHEMA = 1


class ClientStore:
    """Reads what `fl_epe.data.convert` wrote. Opening it reads the index, no examples.

    Attributes:
        about: kind, numbers of clients and examples, where from.
    """

    def __init__(self, path: Path) -> None:
        """Open the folder ``path``.

        Raises:
            ValueError: if it is no such data set or not a whole one, naming the file.
            FileNotFoundError: if a file is missing.
        """
        what = "the index of a converted data set"
        texts, index = read_archive(path / _INDEX, what, schema=_SCHEMA, texts=["about"])
        self.about = texts[0]
        self._names, self._start, self._count = index["client"], index["start"], index["count"]
        self._train = self._mapped(path / "train.bin", "examples")
        self._held_out = self._mapped(path / "held_out.bin", "held_out")

    def _mapped(self, path: Path, count: str) -> np.ndarray:
        shape, dtype = (self.about[count], self.about["width"]), np.dtype(self.about["dtype"])
        wanted, size = shape[0] * shape[1] * dtype.itemsize, path.stat().st_size
        if size != wanted:
            raise ValueError(f"Expected {path} to have {wanted} bytes, found {size}.")
        return (
            np.asarray(np.memmap(path, dtype, "r", shape=shape)) if size else np.empty(shape, dtype)
        )

    def __len__(self) -> int:
        """How many clients there are."""
        return len(self._count)

    def sizes(self, clients: np.ndarray, most: int = 0) -> np.ndarray:
        """How many examples each of these ``clients`` has, at ``most`` so many; 0 for no limit."""
        sizes = self._count[clients]
        return np.asarray(np.minimum(sizes, most) if most else sizes)

    def name(self, client: int) -> str:
        """The name of a client in the source."""
        return str(self._names[client])

    def client(self, client: int) -> np.ndarray:
        """The examples of a client, shape (examples, width), mapped from the file: not writable.

        Raises:
            IndexError: for a ``client`` that does not exist.
        """
        if not 0 <= client < len(self):
            raise IndexError(f"Expected 0 <= client={client} < {len(self)}.")
        return self._train[self._start[client] :][: self._count[client]]

    def shuffled(self, client: int, most: int, seed: int) -> np.ndarray:
        """The examples of a client in an order that ``seed`` decides, the first ``most`` of them.

        With ``most=0`` all. The reference shuffles, repeats for the local epochs and then takes;
        here each epoch has the same ``most`` examples.
        """
        examples = self.client(client)
        order = generator(seed, client).permutation(len(examples))
        return examples[order[:most]] if most else examples[order]

    def held_out(self, most: int) -> np.ndarray:
        """The first ``most`` held-out examples, which are in random order."""
        return self._held_out[:most]


def is_store(path: Path) -> bool:
    """Whether ``path`` is a folder that `fl_epe.data.convert` wrote."""
    return (path / _INDEX).is_file()


def write_index(
    path: Path, names: list[str], start: np.ndarray, count: np.ndarray, about: dict[str, Any]
) -> None:
    """Write the index, ascending by name."""
    order = np.argsort(np.array(names, object), kind="stable")
    arrays = {"client": np.array(names)[order], "start": start[order], "count": count[order]}
    write_archive(path / _INDEX, arrays, {"about": about}, schema=_SCHEMA, private=False)
