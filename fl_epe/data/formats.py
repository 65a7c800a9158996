"""Reads rows of a file, or of a `datasets` data set, in batches, so that files may be large."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import sqlite3
import sys
import urllib.parse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from fl_epe.archive import LIMIT_VARIABLE, one_line, size_limit
from fl_epe.data.encoding import CLIENT, Columns, RawBatch, pick, raw_batch
from fl_epe.data.places import optional
from fl_epe.data.wire import Feature, parse_example
from fl_epe.table_file import check_header, csv_rows

ROWS = 4096
"""Rows of a batch, at most."""

Row = TypeVar("Row")


def read_parquet(path: Path, wanted: Columns) -> Iterator[RawBatch]:
    """Rows of a Parquet file.

    Raises:
        ValueError: if it is no Parquet file or lacks a column.
    """
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            check_header(file.schema_arrow.names)
            names = pick(file.schema_arrow.names, wanted, str(path))
            batches = file.iter_batches(ROWS, columns=list(names.values()))
            for number, batch in enumerate(batches):
                place = f"{path}, rows from {number * ROWS}"
                yield raw_batch({ours: batch[name] for ours, name in names.items()}, place)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"Expected {path} to be a Parquet file: {one_line(error)}.") from error


def read_json_lines(path: Path, wanted: Columns) -> Iterator[RawBatch]:
    """Rows of a file with a JSON object a line; empty lines are skipped.

    Raises:
        ValueError: for a line that is not JSON or lacks a column.
    """
    with path.open("rb") as file:
        for rows in _chunks(_json_rows(file, path, wanted)):
            place = f"{path}, lines {rows[0][0]} to {rows[-1][0]}"
            yield raw_batch(_columns([row for _, row in rows]), place)


def _json_rows(
    file: Iterable[bytes], path: Path, wanted: Columns
) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        place = f"{path}, line {number},"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"Expected {place} to be JSON: {one_line(error)}.") from error
        if not isinstance(row, dict):
            raise ValueError(f"Expected {place} to be a JSON object, found {row!r:.40}.")
        yield number, {ours: row[name] for ours, name in pick(row, wanted, place).items()}


def read_csv(path: Path, wanted: Columns) -> Iterator[RawBatch]:
    """Rows of a CSV file with a header; cells may span lines, all are texts.

    Raises:
        ValueError: for a header without the columns or a row of another length.
    """
    rows = _csv_rows(path)
    _, header = next(rows, (0, []))
    names = pick(header, wanted, str(path))
    for chunk in _chunks(rows):
        columns = {
            ours: [cells[header.index(name)] for _, cells in chunk] for ours, name in names.items()
        }
        yield raw_batch(columns, f"{path}, lines to {chunk[-1][0]}")


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    line = 0
    try:
        for line, cells in csv_rows(path, strict=True, longest=sys.maxsize):
            yield line, cells
    except (csv.Error, ValueError) as error:
        reason = one_line(error)
        raise ValueError(f"Expected {path}, after line {line}, to be CSV: {reason}.") from error


def sqlite_splits(path: Path) -> dict[str, int]:
    """The splits in one of TFF's SQLite files and how many examples each has.

    Raises:
        ValueError: if the file is not SQLite or has other tables.
    """
    query = "SELECT split_name, SUM(num_examples) FROM client_metadata GROUP BY split_name"
    kinds = "SELECT name, type FROM sqlite_master WHERE name IN ('examples', 'client_metadata')"
    with _sqlite(path) as database:
        if {"view"} & {kind for _, kind in database.execute(kinds)}:  # it may have no end
            raise ValueError(f"Expected 'examples' and 'client_metadata' of {path} to be tables.")
        found = dict(database.execute(query))
    for split, count in found.items():
        if not isinstance(split, str) or not isinstance(count, int) or count < 0:
            raise ValueError(
                f"Expected num_examples of split {split!r:.40} in {path} to be a count, found "
                f"{count!r:.40}."
            )
    return found


def read_sqlite(path: Path, split: str, wanted: Columns) -> Iterator[RawBatch]:
    """Examples of one split of a SQLite file of TFF: `tf.train.Example` messages by client.

    Raises:
        ValueError: for other tables, a broken message or one without the features.
    """
    query = "SELECT rowid, client_id, serialized_example_proto FROM examples WHERE split_name = ?"
    names = frozenset(itertools.chain.from_iterable(wanted.values()))
    with _sqlite(path) as database:
        for rows in _chunks(database.execute(query, (split,))):
            place = f"{path}, rows {rows[0][0]} to {rows[-1][0]}"
            parsed = [_parse_row(row, path, wanted, names) for row in rows]
            yield raw_batch(_columns(parsed), place)


@contextlib.contextmanager
def _sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write; what SQLite says of the file becomes a ValueError."""
    address = f"file:{urllib.parse.quote(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA cell_size_check = ON")
            yield database
    except (sqlite3.Error, OverflowError, MemoryError) as error:
        raise ValueError(
            f"Expected {path} to be SQLite with the tables 'examples' (split_name, client_id, "
            f"serialized_example_proto) and 'client_metadata': {one_line(error)}."
        ) from error


def _parse_row(
    row: tuple[int, str, bytes], path: Path, wanted: Columns, names: frozenset[str]
) -> dict[str, Any]:
    number, client, message = row
    place = f"{path}, row {number},"
    try:
        features = parse_example(message, names)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"Expected {place} to be a tf.train.Example: {one_line(error)}."
        ) from error
    rest = {name: choices for name, choices in wanted.items() if name != CLIENT}
    found = pick(features, rest, place)
    return {CLIENT: client} | {ours: _single(features[name]) for ours, name in found.items()}


def _single(feature: Feature) -> Any:
    return feature[0] if len(feature) == 1 else feature


def read_hdf5(path: Path, wanted: Columns) -> Iterator[RawBatch]:
    """Examples of a file of TFF with data sets ``examples/<client>/<feature>``.

    Raises:
        ValueError: if the file is not HDF5 or has no group "examples".
    """
    h5py = optional("h5py")
    try:
        with h5py.File(path, "r") as file:
            if not isinstance(file.get("examples"), h5py.Group):
                raise ValueError(f"Expected {path} to have a group 'examples', has {list(file)}.")
            yield from _joined(_hdf5_clients(file["examples"], path, wanted))
    except (OSError, LookupError, MemoryError, RuntimeError, TypeError, UnicodeError) as error:
        raise ValueError(f"Expected {path} to be an HDF5 file: {one_line(error)}.") from error


def _hdf5_clients(examples: Any, path: Path, wanted: Columns) -> Iterator[RawBatch]:
    """Batches of one client each."""
    rest = {name: choices for name, choices in wanted.items() if name != CLIENT}
    limit = size_limit(path.stat().st_size)
    for client, group in examples.items():
        place = f"{path}, client {client!r},"
        names = pick(list(getattr(group, "keys", list)()), rest, place)
        sizes = {name: _hdf5_rows(group[name], name, place, limit) for name in names.values()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"Expected features of one length in {place} found {sizes}.")
        for start in range(0, next(iter(sizes.values())), ROWS):
            parts = {ours: group[name][start : start + ROWS] for ours, name in names.items()}
            columns = {ours: _from_numpy(part) for ours, part in parts.items()}
            length = len(next(iter(columns.values())))
            yield raw_batch({CLIENT: pa.array([client] * length, pa.string())} | columns, place)


def _hdf5_rows(feature: Any, name: str, place: str, limit: int) -> int:
    """The rows of a data set, whose declared size is one that a file of that size can hold."""
    shape = getattr(feature, "shape", None)
    if not shape:
        raise ValueError(f"Expected {name!r} in {place} to be a data set with rows.")
    if feature.nbytes > limit:
        raise ValueError(
            f"Expected {name!r} of {shape} in {place} to take at most {limit >> 20:,} MiB. If you "
            f"trust it, set {LIMIT_VARIABLE}={(feature.nbytes >> 20) + 1}."
        )
    return int(shape[0])


def _from_numpy(values: np.ndarray) -> pa.Array:
    """Numbers as lists of all but the first axis, texts as they are."""
    if values.dtype.kind in "OSU":
        return pa.array(values.tolist())
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values[0].size)


def _joined(batches: Iterable[RawBatch]) -> Iterator[RawBatch]:
    """The same rows in batches of about `ROWS`: most clients have few."""
    waiting: list[RawBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        if rows >= ROWS:
            yield _join(waiting)
            waiting, rows = [], 0
    if waiting:
        yield _join(waiting)


def _join(batches: list[RawBatch]) -> RawBatch:
    place = f"{batches[0].place} to {batches[-1].place.split(', ', 1)[-1]}"
    try:
        return RawBatch(
            pa.concat_arrays([batch.clients for batch in batches]),
            {
                name: pa.concat_arrays([batch.columns[name] for batch in batches])
                for name in batches[0].columns
            },
            place,
        )
    except (pa.ArrowException, KeyError) as error:
        raise ValueError(f"Expected the same features in {place}: {one_line(error)}.") from error


def read_dataset(dataset: Any, name: str, wanted: Columns) -> Iterator[RawBatch]:
    """Rows of a `datasets.Dataset`, which maps its files into memory; pictures stay encoded."""
    names = pick(dataset.column_names, wanted, name)
    rows = dataset.select_columns(list(names.values())).with_format("arrow")
    for number, table in enumerate(rows.iter(ROWS)):
        place = f"{name}, rows from {number * ROWS}"
        yield raw_batch({ours: table[column] for ours, column in names.items()}, place)


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == ROWS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}
