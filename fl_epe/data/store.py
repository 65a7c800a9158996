"""The data set on disk: examples grouped by client, mapped into memory, and an index of clients.

A folder with ``train.bin`` and ``held_out.bin``, arrays of whole numbers as they are in memory, and
``index.npz``: the clients' names ascending, where their examples begin and how many there are, and
what else is known of the data set.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.archive import read_archive, write_archive
from fl_epe.data.encoders import Encoder
from fl_epe.seeding import generator

_BUCKETS = 256
_INDEX = "index.npz"
_SCHEMA = 1


class ClientStore:
    """Reads what `fl_epe.data.convert` wrote. Opening it reads the index, no examples.

    Attributes:
        about: kind, numbers of clients and examples, where from.
        names: the clients' names in the source, ascending.
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
        self.names, self._start, self._count = index["client"], index["start"], index["count"]
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
        return len(self._count)

    def sizes(self, clients: np.ndarray, most: int = 0) -> np.ndarray:
        """How many examples each of these ``clients`` has, at ``most`` so many; 0 for no limit."""
        sizes = self._count[clients]
        return np.asarray(np.minimum(sizes, most) if most else sizes)

    def client(self, client: int) -> np.ndarray:
        """The examples of a client, shape (examples, width), mapped from the file: not writable."""
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


class Grouper:
    """Takes examples of any clients in any order, gives them back client by client.

    An external bucket sort: examples are appended to one of 256 files, all of a client to the same;
    at the end one file after another is sorted. The examples of a client keep their order.

    Args:
        folder: where the bucket files go; they are removed as they are read.
        encoder: says how large an example is.
    """

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        example = ("example", np.dtype(encoder.dtype), (encoder.width,))
        self._row = np.dtype([("client", "<i4"), example])
        self._folder = folder

    def add(self, clients: NDArray[np.int32], examples: np.ndarray) -> None:
        """Take examples of shape (rows, width) and the number of the client of each."""
        rows = np.empty(len(clients), self._row)
        rows["client"], rows["example"] = clients, examples
        buckets = clients % _BUCKETS
        for bucket in np.unique(buckets):
            with (self._folder / f"bucket-{bucket:03}").open("ab") as file:
                rows[buckets == bucket].tofile(file)

    def groups(self) -> Iterator[tuple[NDArray[np.int32], np.ndarray]]:
        """All examples in blocks of some clients each: the client of each, and the examples.

        Those of a client are next to each other. Nothing may be added any more.
        """
        for path in sorted(self._folder.glob("bucket-*")):
            rows = np.fromfile(path, self._row)
            path.unlink()
            rows = rows[np.argsort(rows["client"], kind="stable")]
            yield rows["client"], rows["example"]


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
