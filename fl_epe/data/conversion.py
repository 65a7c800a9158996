"""Converts a published data set into the form that training reads, once and in bounded memory.

`convert` writes a folder, and `open_data` opens one and converts its source first if needed.
The time and memory that this takes are in ``docs/notes/data-sets.md``. The folder has
``train.bin`` and ``held_out.bin``, arrays of whole numbers as they are in memory, and
``index.npz``: the clients' names in ascending order, the first example and the number of
examples of each client, and a description of the data set.
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
from fl_epe.checks import Booleans, checked_type, raise_invalid
from fl_epe.data.encoders import CLIENT, Encoder, encoder_of
from fl_epe.data.examples import DataKind, is_hub_id
from fl_epe.data.sources import BROKEN, HELD_OUT, TRAIN, Part, find_parts
from fl_epe.files import PART, inside, lock_of
from fl_epe.seeding import generator

Progress = Callable[[str, int, int | None], None]
"""A function of the step, the number of rows so far and, if it is known, that of all rows."""

MOST_HELD_OUT = 20_000
_HELD_OUT_SHARE = 0.1
_SEED = 0
_BUCKETS = 256
# The number of bytes of examples that wait before they are written.
_MEMORY = 64 << 20
_INDEX = "index.npz"
_SCHEMA = 1


class ClientStore:
    """A data set that `fl_epe.data.convert` wrote. Opening it reads the index, no examples.

    Attributes:
        about: the kind, the source, and the numbers of examples, of clients, and of clients
            that are omitted because they have no examples.
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
        self._train = self._mapped(inside(path, path / "train.bin"), "examples")
        self._held_out = self._mapped(
            inside(path, path / "held_out.bin"), "held_out"
        )

    def _mapped(self, path: Path, count: str) -> np.ndarray:
        shape = (self.about[count], self.about["width"])
        dtype = np.dtype(self.about["dtype"])
        wanted = shape[0] * shape[1] * dtype.itemsize
        size = path.stat().st_size
        if size != wanted:
            raise ValueError(
                f"Expected {path} to have {wanted} bytes, found {size}."
            )
        if not size:  # an empty file cannot be mapped
            return np.empty(shape, dtype)
        return np.asarray(np.memmap(path, dtype, "r", shape=shape))

    def __len__(self) -> int:
        return len(self._count)

    def sizes(self, clients: np.ndarray, most: int = 0) -> np.ndarray:
        """The number of examples of each of ``clients``, at most ``most``; 0 for no limit."""
        sizes = self._count[clients]
        return np.asarray(np.minimum(sizes, most) if most else sizes)

    def client(self, client: int) -> np.ndarray:
        """The examples of a client, shape (examples, width): a read-only map of the file."""
        return self._train[self._start[client] :][: self._count[client]]

    def shuffled(self, client: int, most: int, seed: int) -> np.ndarray:
        """The first ``most`` examples of a client in a random order from ``seed``; 0 for all.

        Each local epoch has the same ``most`` examples. The reference implementation shuffles,
        repeats for the local epochs and then truncates.
        """
        examples = self.client(client)
        order = generator(seed, client).permutation(len(examples))
        if most:
            return examples[order[:most]]
        return examples[order]

    def held_out(self, most: int) -> np.ndarray:
        """The first ``most`` held-out examples, which are in random order."""
        return self._held_out[:most]


class Grouper:
    """Sorts examples by client, in bounded memory.

    This is an external bucket sort. Examples wait in memory until they take more than 64 MiB.
    They are then appended to 256 files, where a client has always the same file. At the end,
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
        self._waiting: list[np.ndarray] = []

    def add(self, clients: NDArray[np.int32], examples: np.ndarray) -> None:
        """Add examples of shape (rows, width), and the number of each example's client."""
        rows = np.empty(len(clients), self._row)
        rows["client"] = clients
        rows["example"] = examples
        self._waiting.append(rows)
        if sum(waiting.nbytes for waiting in self._waiting) > _MEMORY:
            self._spill()

    def _spill(self) -> None:
        rows = np.concatenate([np.empty(0, self._row), *self._waiting])
        self._waiting = []
        buckets = rows["client"] % _BUCKETS
        order = np.argsort(buckets, kind="stable")
        present, first = np.unique(buckets[order], return_index=True)
        parts = np.split(rows[order], first[1:])
        for bucket, part in zip(present, parts, strict=False):
            with (self._folder / f"bucket-{bucket:03}").open("ab") as file:
                part.tofile(file)

    def groups(self) -> Iterator[tuple[NDArray[np.int32], np.ndarray]]:
        """All examples in blocks of several clients: each row's client, and the examples.

        The examples of a client are contiguous. No more examples may be added afterwards.
        """
        self._spill()
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
        """Add examples of shape (rows, width); the sample has those with the smallest keys."""
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

    At most 20,000 examples are held out, at random. They are examples of the split "test", or
    else of "heldout", "validation" and such; without such a split, they are a tenth of each
    client's examples. The result depends on the source alone. ``target`` only exists once it is
    complete.

    Args:
        kind: "emnist" or "stackoverflow".
        source: a hub id or a path, see `fl_epe.data.sources.find_parts`.
        target: a folder that does not exist yet.
        vocabulary: for StackOverflow, TFF's ``stackoverflow.word_count`` or its .tar.bz2
            (default: that file in the folder of the source's files).
        on_progress: a function that is called after each batch of rows.

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
        parts = find_parts(source, scratch)
        encoder = encoder_of(checked, source, vocabulary)
        _write(
            folder, source, parts, encoder, Grouper(scratch, encoder), report
        )
    return ClientStore(target)


@functools.lru_cache(maxsize=8)
def open_data(kind: str, data_dir: str) -> ClientStore:
    """The data set in ``data_dir``, converted first if needed; a process opens it only once.

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
            # The folder exists if another process has converted the source in the meantime.
            with contextlib.suppress(FileExistsError):
                convert(kind, data_dir, path)
    store = ClientStore(path)
    if store.about["kind"] != kind:
        raise_invalid(
            "data_dir", data_dir, f"to hold {kind}, holds {store.about['kind']}"
        )
    return store


def _read(
    step: str, parts: list[Part], encoder: Encoder, report: Progress
) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """The clients and the encoded examples of each batch of rows."""
    counts = [part.rows for part in parts if part.rows is not None]
    total = sum(counts) if len(counts) == len(parts) else None
    rows_read = 0
    for part in parts:
        for place, rows in part.read(encoder.columns):
            if not rows.num_rows:  # a client without examples
                yield rows[CLIENT], np.empty((0, encoder.width), encoder.dtype)
                continue
            try:
                examples = encoder.encode(rows)
            except (ValueError, *BROKEN) as error:
                raise ValueError(f"In {place}: {one_line(error)}") from error
            yield rows[CLIENT], examples
            rows_read += rows.num_rows
            report(step, rows_read, total)


def _write(
    folder: Path,
    source: str,
    parts: dict[str, list[Part]],
    encoder: Encoder,
    grouper: Grouper,
    report: Progress,
) -> None:
    sample = ReservoirSample(MOST_HELD_OUT, encoder, generator(_SEED, 0))
    held_out_rows = _read(
        "reading held-out rows", parts[HELD_OUT], encoder, report
    )
    for _, examples in held_out_rows:
        sample.add(examples)
    numbers: dict[str, int] = {}  # in the order in which clients appear
    without_examples = 0
    for clients, examples in _read(
        "reading rows", parts[TRAIN], encoder, report
    ):
        encoded = clients.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if not names:
            without_examples += 1
            continue
        codes = [numbers.setdefault(name, len(numbers)) for name in names]
        grouper.add(
            np.array(codes, np.int32)[encoded.indices.to_numpy()], examples
        )
    if not numbers:
        raise_invalid("source", source, "to have rows, found none")
    names = list(numbers)
    written = 0
    start = np.zeros(len(names), np.int64)
    count = np.zeros(len(names), np.int64)
    with (folder / "train.bin").open("wb") as file:
        for clients, examples in grouper.groups():
            if parts[HELD_OUT]:
                held_out = np.zeros(len(clients), bool)
            else:
                held_out = _tenth_of_each_client(clients, names)
            sample.add(examples[held_out])
            examples = examples[~held_out]
            present, first, sizes = np.unique(
                clients[~held_out], return_index=True, return_counts=True
            )
            start[present] = written + first
            count[present] = sizes
            examples.tofile(file)
            written += len(examples)
            report("writing examples", written, None)
    sample.examples.tofile(folder / "held_out.bin")
    about = {
        "kind": encoder.kind,
        "source": source if is_hub_id(source) else Path(source).name,
        "clients": len(names),
        "clients_without_examples": without_examples,
        "examples": written,
        "held_out": len(sample.examples),
        "width": encoder.width,
        "dtype": encoder.dtype,
        **encoder.facts,
    }
    order = np.argsort(np.array(names, object), kind="stable")
    arrays = {
        "client": np.array(names)[order],
        "start": start[order],
        "count": count[order],
    }
    texts = {"about": about}
    write_archive(folder / _INDEX, arrays, texts, schema=_SCHEMA, private=False)


def _tenth_of_each_client(
    clients: NDArray[np.int32], names: list[str]
) -> Booleans:
    """Marks a random tenth of the rows of each client, given rows grouped by client."""
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
def _new_folder(goal: Path) -> Iterator[Path]:
    """A new folder that is renamed to ``goal`` at the end; an error removes it.

    Processes with the same goal wait for each other. The folder of a killed process is removed.
    """
    goal.parent.mkdir(parents=True, exist_ok=True)
    part = goal.with_name(f"{goal.name}{PART}")
    lock = lock_of(Path(f"{part}.lock"))
    with lock:
        if goal.exists():
            raise FileExistsError(
                f"Expected target={str(goal)!r} not to exist."
            )
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        try:
            yield part
            part.rename(goal)
        finally:
            shutil.rmtree(part, ignore_errors=True)
            Path(lock.lock_file).unlink(missing_ok=True)
