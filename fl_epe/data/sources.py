"""Finds the splits of a source (a hub id, a file or a folder), and reads rows in batches."""

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import lzma
import math
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
)
from google.protobuf.message import DecodeError
from pyarrow import parquet

from fl_epe.archive import UNREADABLE, check_size, one_line, require_file
from fl_epe.client_ids import client_ids
from fl_epe.data.encoders import CLIENT
from fl_epe.data.examples import is_hub_id
from fl_epe.data.leaf import read_leaf
from fl_epe.files import inside
from fl_epe.table_file import read_table

ROWS = 4096
"""The approximate number of rows of a batch."""

# The number of bytes that are unpacked at once.
_PART = 1 << 20
# The number of bytes that a value of a database may have even in a smaller file.
_FREE_LENGTH = 1 << 20

Columns = Mapping[str, tuple[str, ...]]
"""The names of a column in sources, by its name in this package."""

Batch = tuple[str, pa.RecordBatch]
"""The place of the rows in the source, for messages, and the rows."""

BROKEN = (
    pa.ArrowException,
    sqlite3.Error,
    UnicodeError,
    *(kind for kind in UNREADABLE if kind is not ValueError),
)
"""The libraries' errors for a broken file, besides ValueError."""


def read_parquet(path: Path, wanted: Columns) -> Iterator[Batch]:
    """Batches of the rows of a Parquet file."""
    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        names = _pick(file.schema_arrow.names, wanted, str(path))
        batches = file.iter_batches(ROWS, columns=list(names.values()))
        yield from _renamed(batches, names, str(path))


def read_dataset(dataset: Any, name: str, wanted: Columns) -> Iterator[Batch]:
    """Batches of rows of a `datasets.Dataset`, a memory map; pictures stay encoded."""
    names = _pick(dataset.column_names, wanted, name)
    rows = dataset.select_columns(list(names.values())).with_format("arrow")
    yield from _renamed(rows.iter(ROWS), names, name)


def _renamed(
    batches: Iterable[Any], names: dict[str, str], source: str
) -> Iterator[Batch]:
    for number, batch in enumerate(batches):
        place = f"{source}, rows from {number * ROWS}"
        columns = {name: batch[column] for name, column in names.items()}
        yield place, arrow_rows(columns, place)


def sqlite_splits(path: Path) -> dict[str, int]:
    """The splits in one of TFF's SQLite files, and the number of examples of each."""
    query = "SELECT CAST(split_name AS TEXT), CAST(num_examples AS INTEGER) FROM client_metadata"
    splits = collections.Counter[str]()
    with _sqlite(path, "client_metadata") as database:
        for split, examples in _bounded(database.execute(query), path):
            splits[split] += examples
    if not splits:
        raise ValueError(
            f"Expected {path.name} to list clients in 'client_metadata', found none."
        )
    return splits


def read_sqlite(path: Path, split: str, wanted: Columns) -> Iterator[Batch]:
    """Batches of one split of TFF's SQLite file: `tf.train.Example` messages by client."""
    query = "SELECT rowid, client_id, serialized_example_proto FROM examples WHERE split_name = ?"
    with _sqlite(path, "examples") as database:
        stored = _bounded(database.execute(query, (split,)), path)
        rows = list(itertools.islice(stored, ROWS))
        while rows:
            parsed = [_parsed(row, path, wanted) for row in rows]
            columns = {name: [row[name] for row in parsed] for name in wanted}
            place = f"{path}, rows {rows[0][0]} to {rows[-1][0]}"
            yield place, arrow_rows(columns, place)
            rows = list(itertools.islice(stored, ROWS))


@contextlib.contextmanager
def _sqlite(path: Path, table: str) -> Iterator[sqlite3.Connection]:
    """A connection to read a stored table, as a view or a computed column may never end."""
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
        database.execute("PRAGMA trusted_schema = OFF")
        database.setlimit(
            sqlite3.SQLITE_LIMIT_LENGTH, max(_FREE_LENGTH, path.stat().st_size)
        )
        pages = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE lower(name) = ?", (table,)
        )
        columns = database.execute(
            "SELECT hidden FROM pragma_table_xinfo(?)", (table,)
        )
        is_stored = all(page for (page,) in pages)
        if not is_stored or any(hidden for (hidden,) in columns):
            raise ValueError(
                f"Expected {path}, {table!r}, to be a table: it is a view or computed."
            )
        yield database


def _bounded(
    rows: Iterable[tuple[Any, ...]], path: Path
) -> Iterator[tuple[Any, ...]]:
    """The rows of a table, which exceed their file's size only if its pages form a cycle."""
    remaining = path.stat().st_size
    for row in rows:
        texts = [value for value in row if isinstance(value, str | bytes)]
        remaining -= 1 + sum(len(text) for text in texts)
        if remaining < 0:
            raise ValueError(
                f"Expected {path} to be a sound .sqlite: its rows exceed its size."
            )
        yield row


def _parsed(
    row: tuple[Any, ...], path: Path, wanted: Columns
) -> dict[str, Any]:
    """The values of a `tf.train.Example`, without TensorFlow; a single value is a scalar."""
    number, client, message = row
    place = f"{path}, row {number},"
    try:
        example = _Example.FromString(message)
    except (DecodeError, TypeError) as error:
        raise ValueError(
            f"Expected {place} to be a tf.train.Example: {one_line(error)}."
        ) from error
    features = {entry.key: entry.value for entry in example.features.feature}
    row_values = {CLIENT: client}
    for name, feature in _features(features, wanted, place).items():
        values = _values(features[feature])
        row_values[name] = values[0] if len(values) == 1 else values
    return row_values


# The messages of TensorFlow's example.proto and feature.proto. A map is written as its
# equivalent, a list of entries.
_PROTO = """
name: "example" package: "fl_epe" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature"
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".fl_epe.BytesList" }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".fl_epe.FloatList" }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".fl_epe.Int64List" } }
message_type { name: "Entry"
  field { name: "key" number: 1 type: TYPE_STRING }
  field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".fl_epe.Feature" } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED
    type: TYPE_MESSAGE type_name: ".fl_epe.Entry" } }
message_type { name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".fl_epe.Features" } }
"""
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto()))
_Example: Any = message_factory.GetMessageClass(
    _POOL.FindMessageTypeByName("fl_epe.Example")
)


def _values(feature: Any) -> Any:
    if feature.HasField("int64_list"):
        return np.array(feature.int64_list.value[:], np.int64)
    if feature.HasField("float_list"):
        return np.array(feature.float_list.value[:], np.float32)
    return list(feature.bytes_list.value)


def read_hdf5(path: Path, wanted: Columns) -> Iterator[Batch]:
    """Batches of TFF's HDF5 file, with data sets ``examples/<client>/<feature>``."""
    import h5py

    unpacked = 0
    with h5py.File(path, "r") as file:
        for client in _group(file, "examples", path):
            place = f"{path}, client {client!r},"
            group = _group(file["examples"], client, place)
            names = _features(list(group), wanted, place)
            data_sets = {
                name: _stored(group, feature, place)
                for name, feature in names.items()
            }
            unpacked += sum(data_set.nbytes for data_set in data_sets.values())
            _check_size(unpacked, path)
            columns = {
                name: data_set[()] for name, data_set in data_sets.items()
            }
            yield _of_client(client, columns, place)


def read_leaf_json(path: Path, wanted: Columns) -> Iterator[Batch]:
    """Batches of LEAF's JSON file."""
    clients = read_table(path, {".json": read_leaf}, "LEAF's JSON")
    for client, examples in clients.items():
        place = f"{path}, client {client!r},"
        names = _features(examples, wanted, place)
        columns = {
            name: pa.array(examples[x_or_y]) for name, x_or_y in names.items()
        }
        yield _of_client(client, columns, place)


def _features(
    present: Collection[str], wanted: Columns, place: str
) -> dict[str, str]:
    """The names in the file of all columns except the client's."""
    features = {
        name: choices for name, choices in wanted.items() if name != CLIENT
    }
    return _pick(present, features, place)


def _of_client(client: str, columns: Mapping[str, Any], place: str) -> Batch:
    """The batch of one client's examples, given their columns."""
    owners = [client] * len(next(iter(columns.values())))
    return place, arrow_rows({CLIENT: owners, **columns}, place)


def _check_size(unpacked: int, path: Path) -> None:
    """Raise a `ValueError` that names the file if its unpacked size exceeds the limit."""
    try:
        check_size(unpacked, path.stat().st_size)
    except ValueError as error:
        raise ValueError(
            f"Expected {path} to be a sound {_format(path)}: {error}."
        ) from error


def _group(parent: Any, name: str, place: object) -> Any:
    """A group that is stored in ``parent``; listing a data set instead would read all of it."""
    import h5py

    group = _stored(parent, name, place)
    if not isinstance(group, h5py.Group):
        raise ValueError(f"Expected {place} to hold a group {name!r}.")
    return group


def _stored(group: Any, name: str, place: object) -> Any:
    """A member of an HDF5 group that is stored there, as a link may lead to any other file."""
    import h5py

    link = group.get(name, getlink=True)
    if link is None or isinstance(link, h5py.HardLink):
        member = group[name]
        is_set = isinstance(member, h5py.Dataset)
        if not is_set or not (member.external or member.is_virtual):
            return member
    raise ValueError(
        f"Expected {place} to hold {name!r} itself, not a link to it elsewhere."
    )


def _pick(
    present: Collection[str], wanted: Columns, place: str
) -> dict[str, str]:
    """The name in a source of each wanted column."""
    names = {}
    for name, choices in wanted.items():
        matches = [choice for choice in choices if choice in present]
        if not matches:
            columns = ", ".join(map(repr, sorted(present))) or "none"
            raise ValueError(
                f"Expected {place} to have a column {' or '.join(map(repr, choices))}, "
                f"found {one_line(columns)}."
            )
        names[name] = matches[0]
    return names


def arrow_rows(columns: Mapping[str, Any], place: str) -> pa.RecordBatch:
    """The columns as Arrow arrays, the clients as `client_ids`; no value may be missing."""
    try:
        arrays = {name: _array(values) for name, values in columns.items()}
        arrays[CLIENT] = client_ids(arrays[CLIENT])
        rows = pa.RecordBatch.from_pydict(arrays)
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        raise ValueError(
            f"Expected columns of one type and length in {place}: {one_line(error)}."
        ) from error
    for name, array in arrays.items():
        if array.null_count:
            raise ValueError(
                f"Expected no missing {name} in {place}, found {array.null_count}."
            )
    return rows


def _array(values: Any) -> pa.Array:
    if isinstance(values, np.ndarray) and values.ndim > 1:
        size = math.prod(values.shape[1:])
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), size)
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    return pa.array(values)


TRAIN = "train"
HELD_OUT = "held-out"

_READERS: dict[str, Callable[[Path, Columns], Iterator[Batch]]] = {
    ".parquet": read_parquet,
    ".h5": read_hdf5,
    ".json": read_leaf_json,
}
_ENDINGS = (*_READERS, ".sqlite", ".sqlite.lzma")
# Names of splits that are held out. TFF has two of them: its "test" (later posts of the same
# users) is preferred to "heldout" (other users).
_HELD_OUT = re.compile(
    r"(?<![a-z])(test|held|heldout|valid|validation|val|dev|eval)(?![a-z])"
)


@dataclasses.dataclass(frozen=True)
class Part:
    """Some rows of a source that belong to one split.

    Attributes:
        split: the name of the split in the source.
        read: a function from the columns to the rows, which may be called again.
        rows: the number of rows, or ``None`` if it is unknown before they are read.
    """

    split: str
    read: Callable[[Columns], Iterator[Batch]]
    rows: int | None = None


def find_parts(source: str, scratch: Path) -> dict[str, list[Part]]:
    """The parts to train on and, if the source has such a split, those to hold out.

    Args:
        source: a hub id (``owner/name``), a file, a folder with files of one format, or a
            folder that `datasets.Dataset.save_to_disk` wrote. The formats are .parquet, .h5,
            .json (of LEAF), .sqlite and .sqlite.lzma. The names of files, or of the splits in
            them, define the held-out part: "test", or else "heldout", "validation" and such.
        scratch: a folder for unpacked files.

    Raises:
        FileNotFoundError: if the source is neither a path nor a hub id.
        ConnectionError: if the hub cannot be reached (and has nothing in its cache).
        ValueError: for a source of no known format.
    """
    path = Path(source).expanduser()
    if is_hub_id(source):
        parts = _hub(source)
    elif path.is_dir():
        parts = _folder(path, scratch)
    elif path.exists():
        parts = _file(path, scratch, path.name)
    else:
        raise FileNotFoundError(
            f"Expected source={source!r} to be a path or a hub id."
        )
    train = []
    tests = []
    validations = []
    for part in parts:
        words = _HELD_OUT.findall(part.split.lower())
        if not words:
            train.append(part)
        elif "test" in words:
            tests.append(part)
        else:
            validations.append(part)
    if train:
        return {TRAIN: train, HELD_OUT: tests or validations}
    if len(parts) != 1:
        names = [part.split for part in parts]
        raise ValueError(
            f"Expected source={source!r} to have a training split, has {names}."
        )
    return {TRAIN: parts, HELD_OUT: []}


def _hub(name: str) -> list[Part]:
    import datasets

    try:
        dataset = datasets.load_dataset(name)
    except ConnectionError as error:
        raise ConnectionError(
            f"Expected source={name!r} to be a local path or a data set on the Hugging Face hub: "
            f"{error}. Without network, name a folder with its Parquet files."
        ) from error
    return _from_datasets(dataset, name)


def _from_datasets(dataset: Any, name: str) -> list[Part]:
    splits = dataset if isinstance(dataset, dict) else {TRAIN: dataset}
    parts = []
    for split, data in splits.items():
        read = functools.partial(read_dataset, data, f"{name}, split {split}")
        parts.append(Part(str(split), read, len(data)))
    return parts


def _folder(path: Path, scratch: Path) -> list[Part]:
    if any(
        (path / name).is_file() for name in ("dataset_dict.json", "state.json")
    ):
        return _from_datasets(read_saved(path), str(path))
    files = [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file() and _format(file)
    ]
    for file in files:
        in_source(path, file)
    endings = sorted({_format(file) for file in files})
    if len(endings) != 1:
        raise ValueError(
            f"Expected source={str(path)!r} to hold files of one format "
            f"({', '.join(_ENDINGS)}), found {', '.join(endings) or 'none'}."
        )
    parts = []
    for file in files:
        parts += _file(file, scratch, str(file.relative_to(path)))
    return parts


def in_source(folder: Path, file: Path) -> None:
    """Raise a `ValueError` for a link out of the folder, except into a hub cache's blobs."""
    if not file.resolve().is_relative_to((folder / "../../blobs").resolve()):
        inside(folder, file)


def read_saved(folder: Path) -> Any:
    """The data set that `datasets.Dataset.save_to_disk` wrote.

    Raises:
        ValueError: if the folder has something else, or refers to files outside the folder.
    """
    import datasets

    try:
        splits = [folder]
        if (folder / "dataset_dict.json").is_file():
            names = json.loads((folder / "dataset_dict.json").read_bytes())[
                "splits"
            ]
            splits = [inside(folder, folder / name) for name in names]
        for split in splits:
            state = json.loads(
                inside(folder, split / "state.json").read_bytes()
            )
            for part in state["_data_files"]:
                inside(folder, split / part["filename"])
        return datasets.load_from_disk(str(folder))
    except (*BROKEN, json.JSONDecodeError) as error:
        raise ValueError(
            f"Expected {folder} to be what save_to_disk of datasets wrote: {one_line(error)}."
        ) from error


def _format(path: Path) -> str:
    """The ending of a file that can be read, or an empty string."""
    name = path.name.lower()
    return next((ending for ending in _ENDINGS if name.endswith(ending)), "")


def _file(path: Path, scratch: Path, name: str) -> list[Part]:
    ending = _format(path)
    require_file(path)
    if not ending:
        raise ValueError(
            f"Expected {path} to end with one of {', '.join(_ENDINGS)}."
        )
    if ending in _READERS:
        return [
            Part(name, functools.partial(_rows, path, _READERS[ending], path))
        ]
    with _sound(path):
        unpacked = path
        if ending != ".sqlite":
            unpacked = scratch / path.with_suffix("").name
            with lzma.open(path) as packed, unpacked.open("wb") as file:
                for content in iter(lambda: packed.read(_PART), b""):
                    _check_size(file.tell() + len(content), path)
                    file.write(content)
        parts = []
        for split, rows in sqlite_splits(unpacked).items():
            if not split.startswith("digits_only"):
                read = functools.partial(
                    _rows, path, read_sqlite, unpacked, split
                )
                parts.append(Part(split, read, rows))
        return parts


def _rows(
    path: Path, read: Callable[..., Iterator[Batch]], *arguments: Any
) -> Iterator[Batch]:
    with _sound(path):
        yield from read(*arguments)


@contextlib.contextmanager
def _sound(path: Path) -> Iterator[None]:
    """Turn a library's error for a broken file into a ValueError that names the file."""
    try:
        yield
    except BROKEN as error:
        ending = _format(path)
        raise ValueError(
            f"Expected {path} to be a sound {ending}: {one_line(error)}."
        ) from error
