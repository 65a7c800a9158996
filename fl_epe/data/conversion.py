"""Converts a published data set into the form that training reads, once and in bounded memory.

`convert` writes a folder, `open_data` opens one and converts its source first if need be. How fast
and with how much memory: see ``docs/notes/data-sets.md``.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import itertools
import lzma
import os
import shutil
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fl_epe.archive import one_line
from fl_epe.data import words
from fl_epe.data.characters import Characters
from fl_epe.data.encoding import Encoder, RawBatch
from fl_epe.data.grouping import MEMORY, Grouper, Sample
from fl_epe.data.images import Images
from fl_epe.data.places import KINDS, is_hub_id
from fl_epe.data.sources import HELD_OUT, TRAIN, Part, find_parts
from fl_epe.data.store import ClientStore, ExampleWriter, is_store, write_about, write_clients
from fl_epe.files import PART
from fl_epe.seeding import generator

if sys.platform != "win32":
    import fcntl

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how many rows are done, and how many there are if known."""

MOST_HELD_OUT = 20_000
_HELD_OUT_SHARE = 0.1
_SEED = 0


def convert(
    kind: str,
    source: str,
    target: str | os.PathLike[str],
    *,
    vocabulary: str | os.PathLike[str] | None = None,
    memory: int = MEMORY,
    on_progress: Progress | None = None,
) -> ClientStore:
    """Read ``source`` once and write its examples, grouped by client, to the folder ``target``.

    At most 20,000 examples are held out, at random: those of the split "test" (or else "heldout",
    "validation" and such), or else a tenth of each client's, see `_hold_out`. The result depends
    on the source alone. ``target`` appears when it is complete, whole or not at all.

    Args:
        kind: "emnist", "stackoverflow" or "shakespeare".
        source: a hub id or a path, see `fl_epe.data.sources.find_parts`.
        target: a folder that does not exist yet.
        vocabulary: TFF's ``stackoverflow.word_count`` (or its .tar.bz2), for StackOverflow. By
            default the one beside the source's files; if there is none, words are counted, which
            reads the source twice.
        memory: bytes of examples that wait in memory to be sorted; the peak is a few times that.
        on_progress: called after each batch of about 4,096 rows.

    Raises:
        ValueError: for an unknown kind, a target that exists, or a source that is broken or holds
            something else; the message names the file and the row or column.
        FileNotFoundError: if the source or the vocabulary does not exist.
        ConnectionError: if the hub cannot be reached.
    """
    goal = Path(target)
    _check(kind, goal, vocabulary)
    goal.parent.mkdir(parents=True, exist_ok=True)
    with _part_folder(goal) as part, tempfile.TemporaryDirectory(dir=part) as scratch:
        try:
            parts = find_parts(source, Path(scratch))
            job = _Conversion(part, Path(scratch), memory, on_progress)
            job.run(job.encoder(kind, source, vocabulary, parts[TRAIN]), source, parts)
        except _ODD as error:  # what the readers of so many formats did not expect
            reason = one_line(error)
            raise ValueError(f"Expected source={source!r} to be sound: {reason}.") from error
    return ClientStore(goal)


_ODD = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    SyntaxError,
    TypeError,
    UnicodeError,
    lzma.LZMAError,
    pa.ArrowException,
    struct.error,
    zlib.error,
)


def _check(kind: str, goal: Path, vocabulary: str | os.PathLike[str] | None) -> None:
    if kind not in KINDS:
        raise ValueError(f"Expected kind={kind!r} to be one of {', '.join(KINDS)}.")
    if vocabulary is not None and kind != "stackoverflow":
        raise ValueError(f"Expected vocabulary={str(vocabulary)!r} only for kind='stackoverflow'.")
    if goal.exists():
        raise ValueError(f"Expected target={str(goal)!r} not to exist.")


@functools.lru_cache(maxsize=8)
def open_data(kind: str, data_dir: str) -> ClientStore:
    """The data set in ``data_dir``, converted first if it has to be; opened once in a process.

    Args:
        kind: as for `convert`.
        data_dir: a folder that `convert` wrote, or a source; then the result is kept in the folder
            ``FL_EPE_CACHE`` (by default ``fl_epe`` in the user's cache folder) for the next time,
            until the size or time of one of the source's files changes.

    Raises:
        ValueError: for data of another kind, and as `convert`.
    """
    path = Path(data_dir).expanduser()
    if not is_store(path):
        path = _cache() / f"{kind}-{_fingerprint(data_dir)}"
        if not is_store(path):
            # Whoever finishes first wins; the results are the same.
            with contextlib.suppress(FileExistsError):
                convert(kind, data_dir, path)
    store = ClientStore(path)
    if store.kind != kind:
        raise ValueError(f"Expected data_dir={data_dir!r} to hold {kind}, holds {store.kind}.")
    return store


class _Conversion:
    """One call of `convert`."""

    def __init__(
        self, folder: Path, scratch: Path, memory: int, on_progress: Progress | None
    ) -> None:
        self._folder = folder
        self._scratch = scratch
        self._memory = memory
        self._on_progress = on_progress or (lambda doing, done, total: None)
        self._numbers: dict[str, int] = {}

    def encoder(
        self, kind: str, source: str, vocabulary: str | os.PathLike[str] | None, parts: list[Part]
    ) -> Encoder:
        """How the rows of this kind become examples."""
        if kind == Images.kind:
            return Images()
        if kind == Characters.kind:
            return Characters()
        path = _vocabulary_beside(source) if vocabulary is None else Path(vocabulary)
        if path is not None:
            return words.Words(words.read_vocabulary(path))
        batches = self._batches("counting words", parts, words.Words.columns)
        counted = words.count_words(batches)
        if not counted:
            raise ValueError(f"Expected source={source!r} to have words, found none.")
        return words.Words(counted)

    def run(self, encoder: Encoder, source: str, parts: dict[str, list[Part]]) -> None:
        """Write all files."""
        width, dtype = encoder.width, encoder.dtype
        sample = Sample(MOST_HELD_OUT, width, dtype, generator(_SEED, 0))
        for batch in self._batches("reading held-out rows", parts[HELD_OUT], encoder.columns):
            sample.add(encoder.encode(batch))
        grouper = Grouper(self._scratch, width, dtype, self._memory)
        for batch in self._batches("reading rows", parts[TRAIN], encoder.columns):
            grouper.add(self._number(batch), encoder.encode(batch))
        if not self._numbers:
            raise ValueError(f"Expected source={source!r} to have rows, found none.")
        train = ExampleWriter(self._folder / "train.arrow", width, dtype)
        self._write_train(encoder, grouper, train, None if parts[HELD_OUT] else sample)
        held_out = ExampleWriter(self._folder / "held_out.arrow", width, dtype)
        held_out.write(sample.examples())
        held_out.close()
        write_about(
            self._folder,
            {
                "kind": encoder.kind,
                "source": source if is_hub_id(source) else Path(source).name,
                "clients": len(self._numbers),
                "examples": train.rows,
                "held_out": held_out.rows,
                "width": width,
                "dtype": dtype,
                **encoder.facts(),
            },
        )

    def _write_train(
        self, encoder: Encoder, grouper: Grouper, writer: ExampleWriter, sample: Sample | None
    ) -> None:
        """Write the grouped examples and the index; with ``sample``, hold some of each out."""
        names = list(self._numbers)
        start = np.zeros(len(names), np.int64)
        count = np.zeros(len(names), np.int64)
        for clients, examples in grouper.groups():
            if sample is None:
                kept = np.ones(len(examples), bool)
            else:
                kept, held_out = _hold_out(clients, names, encoder.overlap)
                sample.add(examples[held_out])
            present, first, sizes = np.unique(clients[kept], return_index=True, return_counts=True)
            start[present] = writer.rows + first
            count[present] = sizes
            writer.write(examples[kept])
            self._on_progress("writing examples", writer.rows, None)
        writer.close()
        write_clients(self._folder / "clients.arrow", names, start, count)

    def _batches(self, doing: str, parts: list[Part], columns: Any) -> Iterator[RawBatch]:
        rows = [part.rows for part in parts]
        total = None if None in rows else sum(row or 0 for row in rows)
        done = 0
        for part in parts:
            for batch in part.read(columns):
                yield batch
                done += len(batch)
                self._on_progress(doing, done, total)

    def _number(self, batch: RawBatch) -> NDArray[np.int32]:
        """The number of the client of each row, in the order in which clients appear."""
        coded = batch.clients.dictionary_encode()
        numbers = [
            self._numbers.setdefault(name, len(self._numbers))
            for name in coded.dictionary.to_pylist()
        ]
        result: NDArray[np.int32] = np.array(numbers, np.int32)[coded.indices.to_numpy()]
        return result


def _hold_out(
    clients: NDArray[np.int32], names: list[str], overlap: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows to keep and which to hold out, given rows grouped by client.

    A tenth of each client's rows is held out at random. Where rows overlap (Shakespeare), it is
    the last tenth of clients with enough rows (800), and the ``overlap`` rows before are dropped.
    """
    kept = np.ones(len(clients), bool)
    held_out = np.zeros(len(clients), bool)
    present, first, sizes = np.unique(clients, return_index=True, return_counts=True)
    for client, begin, size in zip(present, first, sizes, strict=True):
        many = int(size * _HELD_OUT_SHARE)
        if overlap:
            if size >= overlap / _HELD_OUT_SHARE:
                held_out[begin + size - many : begin + size] = True
                kept[begin + size - many - overlap : begin + size] = False
            continue
        random = generator(_SEED, 1, zlib.crc32(names[client].encode()))
        chosen = begin + random.permutation(size)[:many]
        held_out[chosen] = True
        kept[chosen] = False
    return kept, held_out


@contextlib.contextmanager
def _part_folder(goal: Path) -> Iterator[Path]:
    """A new folder ``GOAL.fl-epe-part-…`` that is renamed to ``goal`` at the end.

    An error removes it. One that a killed process left is removed too: nobody locks it any more.
    """
    name = f"{goal.name}{PART}-"
    for old in goal.parent.glob(f"{glob.escape(name)}*"):
        _remove_if_stale(old)
    part = Path(tempfile.mkdtemp(prefix=name, dir=goal.parent))
    lock = _lock(part)
    try:
        yield part
        part.chmod(0o755)
        try:
            part.rename(goal)
        except OSError as error:
            raise FileExistsError(f"Expected target={str(goal)!r} not to exist.") from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    finally:
        if lock is not None:
            os.close(lock)


_STARTING = 60
"""Seconds in which a new folder may not be locked yet."""


def _remove_if_stale(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - folder.stat().st_mtime < _STARTING:
            return
        if (lock := _lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """A lock on a folder that dies with this process; ``None`` if another process has it."""
    if sys.platform == "win32":
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody has it, or there are no locks here
        os.close(descriptor)
        return None
    return descriptor


def _vocabulary_beside(source: str) -> Path | None:
    if is_hub_id(source):
        return None
    path = Path(source).expanduser()
    folder = path if path.is_dir() else path.parent
    names = (words.WORD_COUNT, f"{words.WORD_COUNT}.tar.bz2")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _cache() -> Path:
    if own := os.environ.get("FL_EPE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fl_epe")


def _fingerprint(source: str) -> str:
    """Changes with the source's name and the sizes and times of its files."""
    path = Path(source).expanduser()
    files = sorted(itertools.chain([path], path.rglob("*"))) if path.exists() else []
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((source, stats)).encode()).hexdigest()[:16]
