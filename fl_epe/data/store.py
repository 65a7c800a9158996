"""The data set on disk: examples grouped by client, mapped into memory, and an index of clients.

A folder with ``train.arrow`` and ``held_out.arrow`` (Arrow streams with one column ``example``,
lists of a fixed number of integers, which `datasets.Dataset.from_file` reads too),
``clients.arrow`` (the columns ``client``, ``start`` and ``count``, ascending by client) and
``about.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fl_epe.archive import one_line
from fl_epe.seeding import generator

ABOUT = "about.json"
FORMAT = 1
BATCH_BYTES = 8 << 20


class ClientStore:
    """Reads what `fl_epe.data.convert` wrote. Opening it reads the index, no examples.

    Attributes:
        about: what ``about.json`` says: kind, numbers of clients and examples, where from.
    """

    def __init__(self, path: Path) -> None:
        """Open the folder ``path``.

        Raises:
            ValueError: if it is no such data set or not a whole one, naming the file.
        """
        self.about = _about(path)
        try:
            clients = _open(path / "clients.arrow")
            self._names = clients["client"]
            self._start = clients["start"].to_numpy()
            self._count = clients["count"].to_numpy()
            self._train = _open(path / "train.arrow")
            self._held_out = _open(path / "held_out.arrow")
        except (OSError, pa.ArrowException, KeyError) as error:
            raise ValueError(
                f"Expected {path} to be a whole data set: {one_line(error)}."
            ) from error
        integers = self._start.dtype.kind == self._count.dtype.kind == "i"
        if not integers or np.any(self._start < 0) or np.any(self._count < 0):
            raise ValueError(f"Expected {path / 'clients.arrow'} to hold places and counts >= 0.")
        if self._train.num_rows != self._count.sum():
            raise ValueError(
                f"Expected {path / 'train.arrow'} to have {self._count.sum()} examples, "
                f"found {self._train.num_rows}."
            )
        if np.any(self._start + self._count > self._train.num_rows):
            raise ValueError(f"Expected {path / 'clients.arrow'} to name places in train.arrow.")

    def __len__(self) -> int:
        """How many clients there are."""
        return len(self._count)

    @property
    def kind(self) -> str:
        """Which data set it is: "emnist", "stackoverflow" or "shakespeare"."""
        return str(self.about["kind"])

    @property
    def sizes(self) -> np.ndarray:
        """How many examples each client has, int64 of shape (clients,)."""
        return self._count  # type: ignore[no-any-return]

    def sizes_of(self, clients: np.ndarray, most: int = 0) -> np.ndarray:
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
        return _rows(self._train, int(self._start[client]), int(self._count[client]))

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
        return _rows(self._held_out, 0, min(most, self._held_out.num_rows))


def is_store(path: Path) -> bool:
    """Whether ``path`` is a folder that `fl_epe.data.convert` wrote."""
    return (path / ABOUT).is_file()


def write_about(path: Path, about: dict[str, Any]) -> None:
    """Write ``about.json``; the format's number is added."""
    text = json.dumps({"format": FORMAT, **about}, ensure_ascii=False, indent=1)
    (path / ABOUT).write_text(text, encoding="utf-8")


class ExampleWriter:
    """Writes examples of one width to an Arrow stream, in batches of about 8 MiB.

    Attributes:
        rows: how many were written.
    """

    def __init__(self, path: Path, width: int, dtype: str) -> None:
        kind = pa.list_(pa.from_numpy_dtype(np.dtype(dtype)), width)
        self._schema = pa.schema([pa.field("example", kind)])
        self._width = width
        self._batch = max(1, BATCH_BYTES // (width * np.dtype(dtype).itemsize))
        self._waiting = np.empty((0, width), dtype)
        self._writer = pa.ipc.new_stream(str(path), self._schema)
        self.rows = 0

    def write(self, examples: np.ndarray) -> None:
        """Append examples of shape (rows, width)."""
        self.rows += len(examples)
        examples = np.concatenate([self._waiting, examples])
        whole = len(examples) - len(examples) % self._batch
        for start in range(0, whole, self._batch):
            self._write(examples[start : start + self._batch])
        self._waiting = examples[whole:].copy()

    def close(self) -> None:
        """Finish the file."""
        self._write(self._waiting)
        self._writer.close()

    def _write(self, examples: np.ndarray) -> None:
        lists = pa.FixedSizeListArray.from_arrays(pa.array(examples.ravel()), self._width)
        self._writer.write_batch(pa.record_batch([lists], schema=self._schema))


def write_clients(path: Path, names: list[str], start: np.ndarray, count: np.ndarray) -> None:
    """Write the index, ascending by name."""
    order = np.argsort(np.array(names, object), kind="stable")
    table = pa.table(
        {
            "client": pa.array(names, pa.string()).take(pa.array(order)),
            "start": pa.array(start[order], pa.int64()),
            "count": pa.array(count[order], pa.int64()),
        }
    )
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def _about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        found = about["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"Expected {path / ABOUT} to be that of a converted data set: {one_line(error)}."
        ) from error
    if found != FORMAT:
        raise ValueError(f"Expected format={found!r} of {path} == {FORMAT}: convert it again.")
    return dict(about)


def _open(path: Path) -> pa.Table:
    return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()


def _rows(table: pa.Table, start: int, count: int) -> np.ndarray:
    lists = table["example"].slice(start, count)
    parts = [chunk.flatten().to_numpy() for chunk in lists.chunks]
    flat = parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.uint8)])
    return flat.reshape(count, lists.type.list_size)
