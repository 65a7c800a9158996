"""Traces of participation in files: who took part in which round, one row for each."""

from __future__ import annotations

import array
import csv
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUND, CLIENT = "round", "client_id"
"""Names of the columns."""

_CHUNK = 2**16


@dataclasses.dataclass(frozen=True)
class Columns:
    """The two columns of a file, and where in the file a row stands."""

    round_ids: NDArray[np.int64]
    client_ids: NDArray[Any]
    place: Callable[[int], str]


def read_columns(path: Path) -> Columns:
    """Rounds and clients from a file that ends with .csv or .parquet.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it does not hold the columns, naming the file and the line or the column.
    """
    readers = {".csv": _csv, ".parquet": _parquet}
    if not path.exists():
        raise FileNotFoundError(f"Expected path={str(path)!r} to exist.")
    if path.suffix.lower() not in readers:
        raise ValueError(f"Expected path={str(path)!r} to end with one of {', '.join(readers)}.")
    try:
        columns = readers[path.suffix.lower()](path)
        if not len(columns.round_ids):
            raise ValueError("there is no row")
    except (ValueError, TypeError, NotImplementedError, OSError, csv.Error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"Expected {path} to hold a participation trace: {reason}.") from error
    return columns


def _positions(names: Sequence[str]) -> tuple[int, int]:
    missing = [name for name in (ROUND, CLIENT) if name not in names]
    if missing:
        raise ValueError(f"column {missing[0]!r} is missing, found {list(names)}")
    return names.index(ROUND), names.index(CLIENT)


def _csv(path: Path) -> Columns:
    rounds, lines = array.array("q"), array.array("q")
    clients: list[NDArray[Any]] = []
    texts: list[str] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = [name.strip() for name in next(reader, [])]
        at_round, at_client = _positions(header)
        for row in reader:
            if not row:
                continue
            line = reader.line_num
            if len(row) != len(header):
                raise ValueError(f"line {line} has {len(row)} cells, the header {len(header)}")
            try:
                rounds.append(int(row[at_round]))
            except (ValueError, OverflowError) as error:
                raise ValueError(
                    f"line {line}: {ROUND}={row[at_round]!r} is not an integer"
                ) from error
            texts.append(row[at_client].strip())
            if not texts[-1]:
                raise ValueError(f"line {line}: {CLIENT} is empty")
            lines.append(line)
            if len(texts) == _CHUNK:
                clients.append(_ids(texts))
                texts = []
    if texts:
        clients.append(_ids(texts))
    return Columns(
        np.array(rounds, np.int64), _joined(clients), lambda row: f"line {int(lines[row])}"
    )


def _ids(texts: list[str]) -> NDArray[Any]:
    """Integers if every text is how Python writes one, so that "7" and "07" stay two clients."""
    strings = np.array(texts)
    try:
        numbers = strings.astype(np.int64)
    except (ValueError, OverflowError):
        return strings
    return numbers if np.array_equal(numbers.astype(str), strings) else strings


def _joined(chunks: list[NDArray[Any]]) -> NDArray[Any]:
    if not chunks:
        return np.empty(0, np.int64)
    if all(chunk.dtype.kind == "i" for chunk in chunks):
        return np.concatenate(chunks)
    return np.concatenate([chunk.astype(str) for chunk in chunks])


def _parquet(path: Path) -> Columns:
    try:
        from pyarrow import parquet, types
    except ImportError as error:
        raise ValueError("reading Parquet needs pyarrow (fl-epe's 'parquet' extra)") from error
    schema = parquet.read_schema(path)
    _positions(schema.names)
    table = parquet.read_table(path, columns=[ROUND, CLIENT])
    kind = schema.field(ROUND).type
    if not types.is_integer(kind):
        raise ValueError(f"column {ROUND!r} holds {kind}, not integers")
    for name in (ROUND, CLIENT):
        if table[name].null_count:
            row = int(np.argmax(table[name].is_null().to_numpy())) + 1
            raise ValueError(f"row {row}: {name} is missing")
    if not table.num_rows:
        raise ValueError("there is no row")
    # A dictionary holds every distinct client once.
    coded = table[CLIENT].combine_chunks().dictionary_encode()
    kind = coded.type.value_type
    if not (types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)):
        raise ValueError(f"column {CLIENT!r} holds {kind}, not strings or integers")
    names = np.array(coded.dictionary.to_pylist())
    round_ids = table[ROUND].cast("int64").to_numpy()
    return Columns(round_ids, names[coded.indices.to_numpy()], lambda row: f"row {row + 1}")
