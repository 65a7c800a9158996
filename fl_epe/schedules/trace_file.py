"""Reads participation traces: files with a row for each client in each round."""

from __future__ import annotations

import array
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.table_file import csv_rows, parquet_table, read_table, shown

ROUND, CLIENT = "round", "client_id"
"""Names of the columns."""

_LONGEST = 256  # characters of a client's id: an array of texts is as wide as the longest


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
    return read_table(path, {".csv": _csv, ".parquet": _parquet}, "a participation trace")


def _positions(names: Sequence[str]) -> tuple[int, int]:
    missing = [name for name in (ROUND, CLIENT) if name not in names]
    if missing:
        raise ValueError(f"column {missing[0]!r} is missing, found {list(names)}")
    return names.index(ROUND), names.index(CLIENT)


def _csv(path: Path) -> Columns:
    rounds, clients, lines = (array.array("q") for _ in range(3))
    codes: dict[str, int] = {}  # of every distinct client
    rows = csv_rows(path)
    at_round, at_client = _positions([name.strip() for name in next(rows, (0, []))[1]])
    for line, row in rows:
        try:
            rounds.append(_round(row[at_round]))
        except (ValueError, OverflowError) as error:
            raise ValueError(
                f"line {line}: {ROUND}={shown(row[at_round])} is not an integer"
            ) from error
        text = row[at_client].strip()
        if not text:
            raise ValueError(f"line {line}: {CLIENT} is empty")
        if len(text) > _LONGEST:
            raise ValueError(f"line {line}: {CLIENT} is longer than {_LONGEST} characters")
        clients.append(codes.setdefault(text, len(codes)))
        lines.append(line)
    if not lines:
        raise ValueError("there is no row")
    return Columns(
        np.array(rounds, np.int64),
        _ids(list(codes))[np.array(clients)],
        lambda row: f"line {lines[row]}",
    )


def _round(text: str) -> int:
    """The integer that a cell holds; Python's would allow ``1_0``."""
    if "_" in text:
        raise ValueError
    return int(text)


def _ids(texts: list[str]) -> NDArray[Any]:
    """Integers if every text is how Python writes one, so that "7" and "07" stay two clients."""
    strings = np.array(texts)
    try:
        numbers = strings.astype(np.int64)
    except (ValueError, OverflowError):
        return strings
    return numbers if np.array_equal(numbers.astype(str), strings) else strings


def _parquet(path: Path) -> Columns:
    table = parquet_table(path, [ROUND, CLIENT])
    from pyarrow import types

    kind = table.schema.field(ROUND).type
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
    texts = coded.dictionary.to_pylist()
    for text in texts:
        if isinstance(text, str) and not 0 < len(text.strip()) <= _LONGEST:
            raise ValueError(
                f"{CLIENT}={shown(text)} is empty, or longer than {_LONGEST} characters"
            )
    names = np.array(texts)
    round_ids = table[ROUND].cast("int64").to_numpy()
    return Columns(round_ids, names[coded.indices.to_numpy()], lambda row: f"row {row + 1}")
