"""Reads the rows of published data sets in batches, from Parquet, SQLite, HDF5 and LEAF's JSON."""

import collections
import contextlib
import itertools
import math
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
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

from fl_epe.archive import UNREADABLE, check_size, one_line
from fl_epe.client_ids import client_ids
from fl_epe.data.encoders import CLIENT
from fl_epe.data.leaf import read_leaf
from fl_epe.table_file import read_table

ENDINGS = (".parquet", ".h5", ".json", ".sqlite", ".sqlite.lzma")
"""Endings of the files that can be read."""

ROWS_PER_BATCH = 4096
"""The approximate number of rows of a batch."""

# Bytes that a value of a database may have, even if the file is smaller.
_MIN_LENGTH_LIMIT = 1 << 20

Columns = Mapping[str, tuple[str, ...]]
"""For each column, by its name in this package, the names that it may have in a source."""

Batch = tuple[str, pa.RecordBatch]
"""The place of some rows in the source, for messages, and the rows.

A batch without rows stands for one client without examples.
"""

LIBRARY_ERRORS = (
    pa.ArrowException,
    sqlite3.Error,
    UnicodeError,
    *(kind for kind in UNREADABLE if kind is not ValueError),
)
"""Errors of libraries for a broken file. A `ValueError` is of this package, and names the file."""


def file_ending(path: Path) -> str:
    """The ending of a file that can be read, in lower case, or an empty string."""
    name = path.name.lower()
    return next((ending for ending in ENDINGS if name.endswith(ending)), "")


def read_parquet(path: Path, wanted: Columns) -> Iterator[Batch]:
    """Batches of the rows of a Parquet file."""
    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        names = _names_in_source(file.schema_arrow.names, wanted, str(path))
        batches = file.iter_batches(
            ROWS_PER_BATCH, columns=list(names.values())
        )
        yield from _renamed(batches, names, str(path))


def read_dataset(dataset: Any, name: str, wanted: Columns) -> Iterator[Batch]:
    """Batches of the rows of a `datasets.Dataset`; pictures are not decoded."""
    names = _names_in_source(dataset.column_names, wanted, name)
    rows = dataset.select_columns(list(names.values())).with_format("arrow")
    yield from _renamed(rows.iter(ROWS_PER_BATCH), names, name)


def _renamed(
    batches: Iterable[Any], names: dict[str, str], source: str
) -> Iterator[Batch]:
    """The batches with the columns' names in this package."""
    for number, batch in enumerate(batches):
        place = f"{source}, rows from {number * ROWS_PER_BATCH}"
        columns = {name: batch[column] for name, column in names.items()}
        yield place, arrow_rows(columns, place)


def sqlite_splits(path: Path) -> dict[str, int]:
    """The splits in one of TFF's SQLite files, and the number of examples of each."""
    query = "SELECT CAST(split_name AS TEXT), CAST(num_examples AS INTEGER) FROM client_metadata"
    splits = collections.Counter[str]()
    with _database(path, "client_metadata") as database:
        rows = _within_file_size(database.execute(query), path)
        for split, examples in rows:
            splits[split] += examples
    if not splits:
        raise ValueError(
            f"Expected {path.name} to list clients in 'client_metadata', found none."
        )
    return splits


def read_sqlite(path: Path, split: str, wanted: Columns) -> Iterator[Batch]:
    """Batches of one split of TFF's SQLite file: `tf.train.Example` messages by client."""
    query = "SELECT rowid, client_id, serialized_example_proto FROM examples WHERE split_name = ?"
    with _database(path, "examples") as database:
        stored = _within_file_size(database.execute(query, (split,)), path)
        batches = iter(
            lambda: list(itertools.islice(stored, ROWS_PER_BATCH)), []
        )
        for rows in batches:
            examples = [_example_values(row, path, wanted) for row in rows]
            columns = {
                name: [example[name] for example in examples] for name in wanted
            }
            place = f"{path}, rows {rows[0][0]} to {rows[-1][0]}"
            yield place, arrow_rows(columns, place)


@contextlib.contextmanager
def _database(path: Path, table: str) -> Iterator[sqlite3.Connection]:
    """A read-only connection to an SQLite file of somebody else.

    Raises:
        ValueError: if the table is a view or has a computed column, whose rows may never end.
    """
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
        database.execute("PRAGMA trusted_schema = OFF")
        database.setlimit(
            sqlite3.SQLITE_LIMIT_LENGTH,
            max(_MIN_LENGTH_LIMIT, path.stat().st_size),
        )
        # A view has no pages, and a computed column is hidden.
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


def _within_file_size(
    rows: Iterable[tuple[Any, ...]], path: Path
) -> Iterator[tuple[Any, ...]]:
    """The rows of a table, until they exceed the file's size, as in a cycle of pages."""
    remaining = path.stat().st_size
    for row in rows:
        texts = [value for value in row if isinstance(value, str | bytes)]
        remaining -= 1 + sum(len(text) for text in texts)
        if remaining < 0:
            raise ValueError(
                f"Expected {path} to be a sound .sqlite: its rows exceed its size."
            )
        yield row


def _example_values(
    row: tuple[Any, ...], path: Path, wanted: Columns
) -> dict[str, Any]:
    """The client and the features of a `tf.train.Example`; a single value becomes a scalar."""
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
    for name, feature in _feature_names(features, wanted, place).items():
        values = _feature_values(features[feature])
        row_values[name] = values[0] if len(values) == 1 else values
    return row_values


# The messages of TensorFlow's example.proto and feature.proto, which are read without TensorFlow.
# A map is declared as a list of entries, which has the same encoding.
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


def _feature_values(feature: Any) -> Any:
    """The values of a feature, as an array of numbers or a list of bytes."""
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
        clients = _group(file, "examples", path)
        for client in clients:
            place = f"{path}, client {client!r},"
            group = _group(clients, client, place)
            names = _feature_names(list(group), wanted, place)
            data_sets = {
                name: _stored_member(group, feature, place)
                for name, feature in names.items()
            }
            unpacked += sum(data_set.nbytes for data_set in data_sets.values())
            check_unpacked(unpacked, path)
            columns = {
                name: data_set[()] for name, data_set in data_sets.items()
            }
            yield _client_batch(client, columns, place)


def read_leaf_json(path: Path, wanted: Columns) -> Iterator[Batch]:
    """Batches of LEAF's JSON file."""
    clients = read_table(path, {".json": read_leaf}, "LEAF's JSON")
    for client, examples in clients.items():
        place = f"{path}, client {client!r},"
        names = _feature_names(examples, wanted, place)
        columns = {
            name: pa.array(examples[feature]) for name, feature in names.items()
        }
        yield _client_batch(client, columns, place)


def _feature_names(
    present: Collection[str], wanted: Columns, place: str
) -> dict[str, str]:
    """The name in a source of each wanted column, except the client's."""
    features = {
        name: choices for name, choices in wanted.items() if name != CLIENT
    }
    return _names_in_source(present, features, place)


def _client_batch(client: str, columns: Mapping[str, Any], place: str) -> Batch:
    """The batch of one client's examples."""
    owners = [client] * len(next(iter(columns.values())))
    return place, arrow_rows({CLIENT: owners, **columns}, place)


def check_unpacked(size: int, path: Path) -> None:
    """Raise a `ValueError` that names the file if its unpacked size exceeds the limit."""
    try:
        check_size(size, path.stat().st_size)
    except ValueError as error:
        raise ValueError(
            f"Expected {path} to be a sound {file_ending(path)}: {error}."
        ) from error


def _group(parent: Any, name: str, place: object) -> Any:
    """A group that is stored in ``parent``, not a data set: listing that would read all of it."""
    import h5py

    group = _stored_member(parent, name, place)
    if not isinstance(group, h5py.Group):
        raise ValueError(f"Expected {place} to hold a group {name!r}.")
    return group


def _stored_member(group: Any, name: str, place: object) -> Any:
    """A member of an HDF5 group, not a link: that may lead to any other file."""
    import h5py

    link = group.get(name, getlink=True)
    # `group[name]` raises the error for a missing member.
    if link is None or isinstance(link, h5py.HardLink):
        member = group[name]
        is_data_set = isinstance(member, h5py.Dataset)
        if not is_data_set or not (member.external or member.is_virtual):
            return member
    raise ValueError(
        f"Expected {place} to hold {name!r} itself, not a link to it elsewhere."
    )


def _names_in_source(
    present: Collection[str], wanted: Columns, place: str
) -> dict[str, str]:
    """The name in a source of each wanted column, given the names of all its columns."""
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
    """The columns as a batch of rows, with clients' ids as text.

    Raises:
        ValueError: if a value is missing, or if a column has several types or another length.
    """
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
    """A column as an Arrow array; the rows of an array of numbers become lists."""
    if isinstance(values, np.ndarray) and values.ndim > 1:
        size = math.prod(values.shape[1:])
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), size)
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    return pa.array(values)
