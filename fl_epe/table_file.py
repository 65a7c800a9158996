"""Reads tables from files: what CSV and Parquet readers have in common.

`read_table` chooses a reader by the file's ending and says what is wrong in one line; `csv_rows`
and `parquet_module` are for the readers.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fl_epe.archive import UNREADABLE

Content = TypeVar("Content")


def read_table(path: Path, readers: Mapping[str, Callable[[Path], Content]], what: str) -> Content:
    """What the reader for the ending of ``path`` makes of the file.

    Args:
        path: the file.
        readers: by ending, such as ".csv".
        what: what the file should hold, for messages.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for another ending, or if the reader cannot read the file; the message is one
            line with the file and the reason.
    """
    if not path.exists():
        raise FileNotFoundError(f"Expected path={str(path)!r} to exist.")
    if path.suffix.lower() not in readers:
        raise ValueError(f"Expected path={str(path)!r} to end with one of {', '.join(readers)}.")
    try:
        return readers[path.suffix.lower()](path)
    except (*UNREADABLE, csv.Error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"Expected {path} to hold {what}: {reason}.") from error


def csv_rows(
    path: Path, *, strict: bool = False, fill: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """The number of the last line and the cells of each row, the header first.

    Empty lines are left out. The file is read row by row, so that it need not fit into memory.

    Args:
        path: a CSV file in UTF-8, with or without a byte order mark.
        strict: refuse quotes whose meaning `csv` would otherwise guess.
        fill: fill rows that are too short with empty cells.

    Raises:
        ValueError: for a row with more or fewer cells than the header.
    """
    width = None
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=strict)
        for row in filter(None, reader):
            width = len(row) if width is None else width
            if fill:
                row += [""] * (width - len(row))
            if len(row) != width:
                raise ValueError(f"line {reader.line_num} has {len(row)} cells, the header {width}")
            yield reader.line_num, row


def parquet_module() -> Any:
    """`pyarrow.parquet`.

    Raises:
        ValueError: if PyArrow is not installed, saying how to get it.
    """
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError("reading Parquet needs pyarrow: pip install 'fl-epe[parquet]'") from error
    return parquet
