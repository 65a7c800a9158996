"""Reads rows of a published file, or of a `datasets` data set, in batches: files may be large."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError
from pyarrow import parquet

from fl_epe.archive import UNREADABLE, one_line
from fl_epe.data.encoders import CLIENT
from fl_epe.data.examples import optional

ROWS = 4096
"""Rows of a batch, about."""

Columns = Mapping[str, tuple[str, ...]]
"""The names that sources give a column, by its name in this package."""

Batch = tuple[str, pa.RecordBatch]
"""Where rows are from, for messages, and the rows."""


BROKEN = (
    pa.ArrowException,
    sqlite3.Error,
    UnicodeError,
    *(kind for kind in UNREADABLE if kind is not ValueError),
)
"""What the libraries raise for a broken file, beside ValueError."""


def read_parquet(path: Path, wanted: Columns) -> Iterator[Batch]:
    """Rows of a Parquet file."""
    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        names = _pick(file.schema_arrow.names, wanted, str(path))
        batches = file.iter_batches(ROWS, columns=list(names.values()))
        yield from _renamed(batches, names, str(path))


def read_dataset(dataset: Any, name: str, wanted: Columns) -> Iterator[Batch]:
    """Rows of a `datasets.Dataset`, which maps its files into memory; pictures stay encoded."""
    names = _pick(dataset.column_names, wanted, name)
    rows = dataset.select_columns(list(names.values())).with_format("arrow")
    yield from _renamed(rows.iter(ROWS), names, name)


def _renamed(batches: Iterable[Any], names: dict[str, str], source: str) -> Iterator[Batch]:
    for number, batch in enumerate(batches):
        place = f"{source}, rows from {number * ROWS}"
        yield place, arrow_rows({ours: batch[name] for ours, name in names.items()}, place)


def sqlite_splits(path: Path) -> dict[str, int]:
    """The splits in one of TFF's SQLite files and how many examples each has."""
    query = (
        "SELECT CAST(split_name AS TEXT), CAST(SUM(num_examples) AS INTEGER)"
        " FROM client_metadata GROUP BY split_name"
    )
    with _sqlite(path) as database:
        found = dict(database.execute(query))
    if not found:
        raise ValueError(f"Expected {path.name} to list clients in 'client_metadata', found none.")
    return found


def read_sqlite(path: Path, split: str, wanted: Columns) -> Iterator[Batch]:
    """Examples of one split of a SQLite file of TFF: `tf.train.Example` messages by client."""
    query = "SELECT rowid, client_id, serialized_example_proto FROM examples WHERE split_name = ?"
    with _sqlite(path) as database:
        cursor = database.execute(query, (split,))
        while rows := cursor.fetchmany(ROWS):
            parsed = [_parsed(row, path, wanted) for row in rows]
            columns = {name: [row[name] for row in parsed] for name in wanted}
            place = f"{path}, rows {rows[0][0]} to {rows[-1][0]}"
            yield place, arrow_rows(columns, place)


def _sqlite(path: Path) -> contextlib.closing[sqlite3.Connection]:
    """A connection that cannot write."""
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    return contextlib.closing(sqlite3.connect(address, uri=True))


def _parsed(row: tuple[int, str, bytes], path: Path, wanted: Columns) -> dict[str, Any]:
    """The values of a `tf.train.Example`, without TensorFlow; those of one number are a number."""
    number, client, message = row
    place = f"{path}, row {number},"
    try:
        example = _Example.FromString(message)
    except (DecodeError, TypeError) as error:
        raise ValueError(
            f"Expected {place} to be a tf.train.Example: {one_line(error)}."
        ) from error
    features = {entry.key: entry.value for entry in example.features.feature}
    names = _pick(features, {n: w for n, w in wanted.items() if n != CLIENT}, place)
    values = {ours: _values(features[name]) for ours, name in names.items()}
    return {CLIENT: client} | {n: v[0] if len(v) == 1 else v for n, v in values.items()}


# TensorFlow's example.proto and feature.proto; a map is written as a list of entries.
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
_Example: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("fl_epe.Example"))


def _values(feature: Any) -> Any:
    if feature.HasField("int64_list"):
        return np.array(feature.int64_list.value[:], np.int64)
    if feature.HasField("float_list"):
        return np.array(feature.float_list.value[:], np.float32)
    return list(feature.bytes_list.value)


def read_hdf5(path: Path, wanted: Columns) -> Iterator[Batch]:
    """Examples of a file of TFF with data sets ``examples/<client>/<feature>``."""
    features = {name: choices for name, choices in wanted.items() if name != CLIENT}
    with optional("h5py").File(path, "r") as file:
        for client, group in file["examples"].items():
            place = f"{path}, client {client!r},"
            names = _pick(list(group), features, place)
            columns = {ours: group[name][()] for ours, name in names.items()}
            owners = [client] * len(next(iter(columns.values())))
            yield place, arrow_rows({CLIENT: owners} | columns, place)


def _pick(present: Collection[str], wanted: Columns, place: str) -> dict[str, str]:
    """For each wanted column the name that it has among those ``present``."""
    found = {}
    for name, choices in wanted.items():
        matches = [choice for choice in choices if choice in present]
        if not matches:
            raise ValueError(
                f"Expected {place} to have a column {' or '.join(map(repr, choices))}, "
                f"found {one_line(', '.join(map(repr, sorted(present))) or 'none')}."
            )
        found[name] = matches[0]
    return found


def arrow_rows(columns: Mapping[str, Any], place: str) -> pa.RecordBatch:
    """Columns as Arrow arrays, the client's as texts; none may be missing."""
    try:
        arrays = {name: _array(values) for name, values in columns.items()}
        arrays[CLIENT] = arrays[CLIENT].cast(pa.string())
        rows = pa.RecordBatch.from_pydict(arrays)
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        raise ValueError(
            f"Expected columns of one type and length in {place}: {one_line(error)}."
        ) from error
    for name, array in arrays.items():
        if array.null_count:
            raise ValueError(f"Expected no missing {name} in {place}, found {array.null_count}.")
    return rows


def _array(values: Any) -> pa.Array:
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values[0].size)
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else pa.array(values)
