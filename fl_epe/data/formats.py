"""Reads rows of a file, or of a `datasets` data set, in batches, so that files may be large."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import urllib.parse
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError
from pyarrow import parquet

from fl_epe.archive import UNREADABLE, check_size, one_line
from fl_epe.data.encoders import CLIENT, Rows
from fl_epe.data.examples import optional

ROWS = 4096
"""Rows of a batch, about."""

Columns = Mapping[str, tuple[str, ...]]
"""The names that sources give a column, by its name in this package."""

Batch = tuple[str, Rows]
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
        for number, batch in enumerate(file.iter_batches(ROWS, columns=list(names.values()))):
            place = f"{path}, rows from {number * ROWS}"
            yield place, arrow_rows({ours: batch[name] for ours, name in names.items()}, place)


def read_json_lines(path: Path, wanted: Columns) -> Iterator[Batch]:
    """Rows of a file with a JSON object a line; empty lines are skipped."""
    with path.open("rb") as file:
        rows = map(json.loads, filter(bytes.strip, file))
        for number in itertools.count():
            place = f"{path}, rows from {number * ROWS}"
            try:
                chunk = list(itertools.islice(rows, ROWS))
            except (RecursionError, ValueError) as error:
                raise ValueError(f"Expected to read {place}: {one_line(error)}.") from error
            if not chunk:
                return
            if not all(isinstance(row, dict) for row in chunk):
                raise ValueError(f"Expected objects in {place}.")
            names = _pick(chunk[0], wanted, place)
            columns = {ours: [row.get(name) for row in chunk] for ours, name in names.items()}
            yield place, arrow_rows(columns, place)


def read_dataset(dataset: Any, name: str, wanted: Columns) -> Iterator[Batch]:
    """Rows of a `datasets.Dataset`, which maps its files into memory; pictures stay encoded."""
    names = _pick(dataset.column_names, wanted, name)
    rows = dataset.select_columns(list(names.values())).with_format("arrow")
    for number, table in enumerate(rows.iter(ROWS)):
        columns = {ours: table[column] for ours, column in names.items()}
        place = f"{name}, rows from {number * ROWS}"
        yield place, arrow_rows(columns, place)


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


@contextlib.contextmanager
def _sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write."""
    address = f"file:{urllib.parse.quote(str(path.absolute()))}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        yield database


def _parsed(row: tuple[int, str, bytes], path: Path, wanted: Columns) -> dict[str, Any]:
    number, client, message = row
    place = f"{path}, row {number},"
    try:
        features = parse_example(message, frozenset(itertools.chain.from_iterable(wanted.values())))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"Expected {place} to be a tf.train.Example: {one_line(error)}."
        ) from error
    names = _pick(features, {n: w for n, w in wanted.items() if n != CLIENT}, place)
    values = {ours: features[name] for ours, name in names.items()}
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


def parse_example(blob: bytes, names: Collection[str]) -> dict[str, Any]:
    """The features of a serialized ``tf.train.Example``, without TensorFlow.

    Args:
        blob: the bytes.
        names: of the features whose values are wanted; the others come as empty lists.

    Returns:
        For each name a list of byte strings, a float32 or an int64 vector, as the message has it; a
        feature without a list is an empty list of byte strings.

    Raises:
        ValueError: if the bytes are no such message, with the reason.
    """
    try:
        example = _Example.FromString(blob)
    except DecodeError as error:
        raise ValueError(f"{len(blob)} bytes that protobuf cannot parse ({error})") from error
    if blob and not example.HasField("features"):
        raise ValueError(f"{len(blob)} bytes in which protobuf finds no field 'features'")
    entries = {entry.key: entry.value for entry in example.features.feature}
    return {name: _values(entry) if name in names else [] for name, entry in entries.items()}


def _values(feature: Any) -> Any:
    if feature.HasField("int64_list"):
        return np.array(feature.int64_list.value[:], np.int64)
    if feature.HasField("float_list"):
        return np.array(feature.float_list.value[:], np.float32)
    return list(feature.bytes_list.value)


def read_hdf5(path: Path, wanted: Columns) -> Iterator[Batch]:
    """Examples of a file of TFF with data sets ``examples/<client>/<feature>``."""
    h5py, size = optional("h5py"), path.stat().st_size
    features = {name: choices for name, choices in wanted.items() if name != CLIENT}
    waiting: list[Rows] = []
    with h5py.File(path, "r") as file:
        for client, group in file["examples"].items():
            place = f"{path}, client {client!r},"
            columns: dict[str, Any] = {}
            for ours, name in _pick(list(group), features, place).items():
                try:
                    check_size(group[name].nbytes, size)
                except ValueError as error:
                    raise ValueError(f"Expected to read {name!r} in {place} {error}.") from error
                columns[ours] = np.asarray(group[name])
            columns[CLIENT] = [client] * len(next(iter(columns.values())))
            waiting.append(arrow_rows(columns, place))
            if sum(len(rows[CLIENT]) for rows in waiting) >= ROWS:
                yield _joined(waiting, f"{path}, clients to {client!r}")
                waiting = []
        if waiting:
            yield _joined(waiting, str(path))


def _joined(parts: list[Rows], place: str) -> Batch:
    """The rows of several clients, as most have few."""
    columns = {name: pa.chunked_array([rows[name] for rows in parts]) for name in parts[0]}
    return place, arrow_rows(columns, place)


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


def arrow_rows(columns: Mapping[str, Any], place: str) -> Rows:
    """Columns as Arrow arrays, the client's as texts; none may be missing."""
    try:
        rows = {name: _array(values) for name, values in columns.items()}
        rows[CLIENT] = rows[CLIENT].cast(pa.string())
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        reason = one_line(error)
        raise ValueError(f"Expected columns of one type in {place}: {reason}.") from error
    if len({len(array) for array in rows.values()}) != 1:
        sizes = {name: len(array) for name, array in rows.items()}
        raise ValueError(f"Expected features of one length in {place} found {sizes}.")
    for name, array in rows.items():
        if array.null_count:
            raise ValueError(f"Expected no missing {name} in {place}, found {array.null_count}.")
    return rows


def _array(values: Any) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else values.combine_chunks()
    elif isinstance(values, np.ndarray) and values.ndim > 1:
        values = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values[0].size)
    array = values if isinstance(values, pa.Array) else pa.array(values)
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    return array.storage if isinstance(array, pa.ExtensionArray) else array
