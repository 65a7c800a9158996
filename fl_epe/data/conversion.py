"""Converts a published data set, in bounded memory, into files that training maps into memory.

`convert` writes a folder. `open_data` opens such a folder, or converts a source and opens the
result. The time and memory of a conversion are in ``docs/notes/data-sets.md``. The folder has
``train.bin`` and ``held_out.bin``, the bytes of arrays of whole numbers, and ``index.npz``: the
clients' names in ascending order, the first example and the number of examples of each client, and
a description of the data set.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fl_epe.archive import one_line, read_archive, write_archive
from fl_epe.checks import Booleans, NamedArrays, checked_type, raise_invalid
from fl_epe.data.encoders import CLIENT, Encoder, encoder_of
from fl_epe.data.examples import DataKind, is_hub_id
from fl_epe.data.readers import LIBRARY_ERRORS
from fl_epe.data.sources import Part, find_parts
from fl_epe.files import PART, inside, lock_of
from fl_epe.seeding import generator

Progress = Callable[[str, int, int | None], None]
"""A function of the step, the number of rows so far and the total, or ``None`` if it is unknown."""

MAX_HELD_OUT = 20_000  # examples
_HELD_OUT_SHARE = 0.1
_SEED = 0  # of the choice of held-out examples and of their order
_BUCKETS = 256
_MAX_BUFFER = 64 << 20  # bytes of examples in memory
_INDEX = "index.npz"
_SCHEMA = 1


class ClientStore:
    """A data set that `fl_epe.data.convert` wrote. Opening it reads the index, but no examples.

    Attributes:
        about: the kind, the source, the numbers of examples, of held-out examples, of clients,
            and of clients that are left out because they have no examples, and the examples'
            width and dtype. A kind of data may add values, see `Encoder`.
        names: the clients' names in the source, in ascending order.
    """

    def __init__(self, path: Path) -> None:
        """Open the folder ``path``.

        Raises:
            ValueError: if the folder is not such a data set or is incomplete; the message names
                the file.
            FileNotFoundError: if a file is missing.
        """
        description = "the index of a converted data set"
        file = inside(path, path / _INDEX)
        texts, index = read_archive(
            file, description, schema=_SCHEMA, texts=("about",)
        )
        self.about = texts[0]
        self.names = index["client"]
        self._start = index["start"]
        self._count = index["count"]
        self._train = self._mapped(
            inside(path, path / "train.bin"), self.about["examples"]
        )
        self._held_out = self._mapped(
            inside(path, path / "held_out.bin"), self.about["held_out"]
        )

    def _mapped(self, path: Path, num_examples: int) -> np.ndarray:
        """A read-only map of a file with this number of examples."""
        shape = (num_examples, self.about["width"])
        dtype = np.dtype(self.about["dtype"])
        expected_size = shape[0] * shape[1] * dtype.itemsize
        size = path.stat().st_size
        if size != expected_size:
            raise ValueError(
                f"Expected {path} to have {expected_size} bytes, found {size}."
            )
        if not size:  # an empty file cannot be mapped
            return np.empty(shape, dtype)
        return np.asarray(np.memmap(path, dtype, "r", shape=shape))

    def __len__(self) -> int:
        return len(self._count)

    def sizes(self, clients: np.ndarray, max_examples: int = 0) -> np.ndarray:
        """The number of examples of each client, at most ``max_examples`` (0: no limit)."""
        sizes = self._count[clients]
        if max_examples:
            sizes = np.minimum(sizes, max_examples)
        return np.asarray(sizes)

    def client(self, client: int) -> np.ndarray:
        """The examples of a client, shape (examples, width): a read-only map of the file."""
        return self._train[self._start[client] :][: self._count[client]]

    def shuffled(self, client: int, max_examples: int, seed: int) -> np.ndarray:
        """A client's examples in a random order from ``seed``, at most ``max_examples`` (0: all).

        Each local epoch uses the same examples. The paper's code instead shuffles, repeats the
        examples for the local epochs, and then truncates.
        """
        examples = self.client(client)
        order = generator(seed, client).permutation(len(examples))
        if max_examples:
            order = order[:max_examples]
        return examples[order]

    def held_out(self, count: int) -> np.ndarray:
        """The first ``count`` held-out examples, or all if there are fewer; in random order."""
        return self._held_out[:count]


class Grouper:
    """Groups examples by client, in bounded memory.

    This is an external bucket sort. Examples are held in memory until they take more than 64 MiB.
    Then they are appended to 256 files; all examples of a client go to the same file. At the end,
    one file after another is sorted. The examples of a client keep their order.

    Args:
        folder: the folder of the bucket files, which are removed as they are read.
        encoder: the encoder of the examples, which defines their size.
    """

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        self._row = np.dtype(
            [("client", "<i4"), ("example", encoder.dtype, (encoder.width,))]
        )
        self._folder = folder
        self._buffer: list[np.ndarray] = []

    def add(self, clients: NDArray[np.int32], examples: np.ndarray) -> None:
        """Add examples of shape (rows, width), and the index of each example's client."""
        rows = np.empty(len(clients), self._row)
        rows["client"] = clients
        rows["example"] = examples
        self._buffer.append(rows)
        if sum(block.nbytes for block in self._buffer) > _MAX_BUFFER:
            self._write_buffer()

    def _write_buffer(self) -> None:
        """Append the examples in memory to the files of their clients."""
        # The empty array is for an empty buffer, which `concatenate` refuses.
        rows = np.concatenate([np.empty(0, self._row), *self._buffer])
        self._buffer = []
        buckets = rows["client"] % _BUCKETS
        for bucket in np.unique(buckets):
            with (self._folder / f"bucket-{bucket:03}").open("ab") as file:
                rows[buckets == bucket].tofile(file)

    def groups(self) -> Iterator[tuple[NDArray[np.int32], np.ndarray]]:
        """All examples, in blocks of several clients.

        No examples may be added afterwards.

        Yields:
            The index of each example's client, and the examples. Those of a client are
            consecutive.
        """
        self._write_buffer()
        for path in sorted(self._folder.glob("bucket-*")):
            rows = np.fromfile(path, self._row)
            path.unlink()
            rows = rows[np.argsort(rows["client"], kind="stable")]
            yield rows["client"], rows["example"]


class ReservoirSample:
    """A uniform sample of at most ``size`` of the added examples, in random order.

    Attributes:
        examples: the sample, shape (at most size, width).
    """

    def __init__(
        self, size: int, encoder: Encoder, random: np.random.Generator
    ) -> None:
        self._size = size
        self._random = random
        self._keys = np.empty(0)
        self.examples = np.empty((0, encoder.width), encoder.dtype)

    def add(self, examples: np.ndarray) -> None:
        """Add examples of shape (rows, width)."""
        # Each example gets a random key; the sample is the examples with the smallest keys.
        keys = np.concatenate([self._keys, self._random.random(len(examples))])
        order = np.argsort(keys)[: self._size]
        self._keys = keys[order]
        self.examples = np.concatenate([self.examples, examples])[order]


def convert(
    kind: str,
    source: str,
    target: str | os.PathLike[str],
    *,
    vocabulary: str | os.PathLike[str] | None = None,
    on_progress: Progress | None = None,
) -> ClientStore:
    """Read ``source`` once and write its examples, grouped by client, to the folder ``target``.

    The held-out examples are those of the split "test", or else of a split such as "heldout" or
    "validation". Without such a split, a tenth of each client's examples, drawn at random, is
    removed from the training data and held out. Of the held-out examples, at most 20,000 are
    written, drawn at random; the others are dropped. The result depends only on the source.
    ``target`` only exists when it is complete.

    Args:
        kind: "emnist" or "stackoverflow".
        source: a hub id or a path, see `fl_epe.data.sources.find_parts`.
        target: a folder that does not exist yet.
        vocabulary: for StackOverflow, TFF's ``stackoverflow.word_count`` (default: that file in
            the folder of the source's files).
        on_progress: a function that is called after each batch of rows, see `Progress`.

    Raises:
        FileExistsError: if the target exists.
        ValueError: for an unknown kind, or a source that is broken or has other data; the message
            names the file and the place in it.
        FileNotFoundError: if the source or the vocabulary does not exist.
        OSError: if another process creates the target in the meantime.
        ConnectionError: if the hub cannot be reached.
    """
    target = Path(target)
    checked: DataKind = checked_type("kind", kind, DataKind)
    report = on_progress or (lambda step, rows, total: None)
    with (
        _new_folder(target) as folder,
        tempfile.TemporaryDirectory(dir=folder) as name,
    ):
        scratch = Path(name)
        train_parts, held_out_parts = find_parts(source, scratch)
        encoder = encoder_of(checked, source, vocabulary)
        grouper = Grouper(scratch, encoder)
        sample = ReservoirSample(MAX_HELD_OUT, encoder, generator(_SEED, 0))
        for _, examples in _read(
            "reading held-out rows", held_out_parts, encoder, report
        ):
            sample.add(examples)
        names, num_empty = _group(train_parts, encoder, grouper, report)
        if not names:
            raise_invalid("source", source, "to have rows, found none")
        has_held_out_split = bool(held_out_parts)
        index = _write_examples(
            folder / "train.bin",
            names,
            grouper,
            report,
            held_out=None if has_held_out_split else sample,
        )
        sample.examples.tofile(folder / "held_out.bin")
        about = {
            "kind": encoder.kind,
            "source": source if is_hub_id(source) else Path(source).name,
            "clients": len(names),
            "clients_without_examples": num_empty,
            "examples": int(index["count"].sum()),
            "held_out": len(sample.examples),
            "width": encoder.width,
            "dtype": encoder.dtype,
            **encoder.facts,
        }
        write_archive(
            folder / _INDEX,
            index,
            {"about": about},
            schema=_SCHEMA,
            private=False,
        )
    return ClientStore(target)


@functools.lru_cache(maxsize=8)
def open_data(kind: str, data_dir: str) -> ClientStore:
    """The data set in ``data_dir``, which is converted first if needed.

    The last 8 results are cached in the process.

    Args:
        kind: the kind of data, as for `convert`.
        data_dir: a folder that `convert` wrote, or a source, whose conversion is cached in the
            folder ``FL_EPE_CACHE`` (by default ``~/.cache/fl_epe``) until the size or time of one
            of the source's files changes.

    Raises:
        ValueError: for data of another kind, and as `convert`.
    """
    path = Path(data_dir).expanduser()
    if not (path / _INDEX).is_file():
        # It is a source. The name of its folder in the cache has a hash of its files' stats; the
        # id of a hub's data set has no files.
        files = sorted([path, *path.rglob("*")]) if path.exists() else []
        stats = [
            (str(file), file.stat().st_size, file.stat().st_mtime_ns)
            for file in files
        ]
        fingerprint = hashlib.sha256(
            repr((data_dir, stats)).encode()
        ).hexdigest()[:16]
        default_cache = Path.home() / ".cache" / "fl_epe"
        cache = os.environ.get("FL_EPE_CACHE") or default_cache
        path = Path(cache, f"{kind}-{fingerprint}")
        if not (path / _INDEX).is_file():
            # Another process may have converted the source in the meantime.
            with contextlib.suppress(FileExistsError):
                convert(kind, data_dir, path)
    store = ClientStore(path)
    if store.about["kind"] != kind:
        raise_invalid(
            "data_dir",
            data_dir,
            f"to hold {kind}, but it holds {store.about['kind']}",
        )
    return store


def _read(
    step: str, parts: list[Part], encoder: Encoder, report: Progress
) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """The clients and the encoded examples of each batch of rows.

    As in the readers, a batch without rows stands for one client without examples.
    """
    counts = [part.rows for part in parts if part.rows is not None]
    total = sum(counts) if len(counts) == len(parts) else None
    rows_read = 0
    for part in parts:
        for place, rows in part.read(encoder.columns):
            if not rows.num_rows:
                yield rows[CLIENT], np.empty((0, encoder.width), encoder.dtype)
                continue
            try:
                examples = encoder.encode(rows)
            except (ValueError, *LIBRARY_ERRORS) as error:
                raise ValueError(f"In {place}: {one_line(error)}") from error
            yield rows[CLIENT], examples
            rows_read += rows.num_rows
            report(step, rows_read, total)


def _group(
    parts: list[Part], encoder: Encoder, grouper: Grouper, report: Progress
) -> tuple[list[str], int]:
    """Add all rows to the grouper.

    Returns:
        The clients' names in the order in which they appear, and how many clients have no
        examples. The grouper has the indices of the names.
    """
    index_of: dict[str, int] = {}
    num_empty = 0
    for clients, examples in _read("reading rows", parts, encoder, report):
        encoded = clients.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if not names:
            # The batch stands for one client without examples.
            num_empty += 1
            continue
        indices = np.array(
            [index_of.setdefault(name, len(index_of)) for name in names],
            np.int32,
        )
        grouper.add(indices[encoded.indices.to_numpy()], examples)
    return list(index_of), num_empty


def _write_examples(
    path: Path,
    names: list[str],
    grouper: Grouper,
    report: Progress,
    *,
    held_out: ReservoirSample | None,
) -> NamedArrays:
    """Write the grouped examples to a file.

    Args:
        path: the file.
        names: the clients' names, whose indices are the clients of the grouper.
        grouper: the examples.
        report: a function that is called after each block of examples.
        held_out: if it is not ``None``, a tenth of each client's examples is added to it, and is
            not written to the file.

    Returns:
        The arrays of the index: the names in ascending order, and the first example and the
        number of examples of each client.
    """
    written = 0
    start = np.zeros(len(names), np.int64)
    count = np.zeros(len(names), np.int64)
    with path.open("wb") as file:
        for clients, examples in grouper.groups():
            if held_out is not None:
                chosen = _tenth_of_each_client(clients, names)
                held_out.add(examples[chosen])
                clients = clients[~chosen]
                examples = examples[~chosen]
            present, first, sizes = np.unique(
                clients, return_index=True, return_counts=True
            )
            start[present] = written + first
            count[present] = sizes
            examples.tofile(file)
            written += len(examples)
            report("writing examples", written, None)
    order = np.argsort(np.array(names, object), kind="stable")
    return {
        "client": np.array(names)[order],
        "start": start[order],
        "count": count[order],
    }


def _tenth_of_each_client(
    clients: NDArray[np.int32], names: list[str]
) -> Booleans:
    """A random tenth of each client's rows, as a mask; the rows of a client are consecutive."""
    chosen = np.zeros(len(clients), bool)
    present, first, sizes = np.unique(
        clients, return_index=True, return_counts=True
    )
    for client, begin, size in zip(present, first, sizes, strict=True):
        random = generator(_SEED, 1, zlib.crc32(names[client].encode()))
        rows = begin + random.permutation(size)
        chosen[rows[: int(size * _HELD_OUT_SHARE)]] = True
    return chosen


@contextlib.contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to ``target`` at the end; an error removes it.

    Processes with the same target wait for each other. The temporary folder of a killed process is
    removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}{PART}")
    lock = lock_of(Path(f"{part}.lock"))
    with lock:
        if target.exists():
            raise FileExistsError(
                f"Expected target={str(target)!r} not to exist."
            )
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        try:
            yield part
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
            Path(lock.lock_file).unlink(missing_ok=True)
