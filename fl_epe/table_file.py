"""Reads tables from files: what CSV and Parquet readers have in common.

`read_table` chooses a reader by the file's ending and says what is wrong in one line; `csv_rows`
and `parquet_table` are for the readers. A header with a duplicate column is refused.
"""

import csv
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fl_epe.archive import UNREADABLE, UnreadableFileError, check_size, one_line, require_file
from fl_epe.checks import raise_invalid

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
    require_file(path)
    if path.suffix.lower() not in readers:
        raise_invalid("path", str(path), f"to end with one of {', '.join(readers)}")
    try:
        return readers[path.suffix.lower()](path)
    except (*UNREADABLE, csv.Error) as error:
        reason = one_line(error).rstrip(".")
        raise UnreadableFileError(f"Expected {path} to hold {what}: {reason}.") from error


def shown(value: object) -> str:
    """A value of a cell for a message, cut off where it is long."""
    return one_line(repr(value), 60)


def check_header(names: Sequence[str]) -> None:
    """Raise a `ValueError` for a duplicate column."""
    if twice := [name for at, name in enumerate(names) if name and name in names[:at]]:
        raise ValueError(f"duplicate column {shown(twice[0])}")


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
        ValueError: for a row with more or fewer cells than the header, a header with a
            duplicate column, a last line without a line break, or what is no text in UTF-8.
        csv.Error: for what is no CSV.
    """
    width = None
    _check_end(path)
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=strict)
        try:
            for row in filter(None, reader):
                if width is None:
                    width = len(row)
                    check_header([name.strip() for name in row])
                if fill:
                    row += [""] * (width - len(row))
                if len(row) != width:
                    raise ValueError(
                        f"line {reader.line_num} has {len(row)} cells, the header {width}"
                    )
                yield reader.line_num, row
        except UnicodeDecodeError as error:
            raise ValueError(
                f"after line {reader.line_num} it is no text in UTF-8 ({error.reason}): save it "
                "as UTF-8"
            ) from error


def _check_end(path: Path) -> None:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        if file.read() not in (b"\n", b"\r", b"", b"\0"):  # NUL is the end of a text in UTF-16
            raise ValueError(
                "the last line has no line break, as if the file was cut off there: take the whole "
                "file, or add one"
            )


def parquet_table(path: Path, columns: Sequence[str] | None = None) -> Any:
    """The `pyarrow.Table` in a Parquet file, checked against the checksums that it may have.

    Args:
        path: the file.
        columns: those to read; all by default.

    Raises:
        ValueError: if it is no sound Parquet file, is too large (see `fl_epe.archive`), lacks a
            column, or if PyArrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError("reading Parquet needs pyarrow: pip install 'fl-epe[parquet]'") from error
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            check_header([name.strip() for name in names])
            if missing := [name for name in columns or () if name not in names]:
                raise ValueError(f"column {missing[0]!r} is missing, found {shown(names)}")
            _check_size(file.metadata, path.stat().st_size)
            table = file.read(columns=columns)
            table.validate(full=True)
    except pyarrow.ArrowException as error:
        raise ValueError(one_line(error)) from error
    return table


def _check_size(about: Any, size: int) -> None:
    # Not of each column: what PyArrow finds wrong in there it does not raise, it ends the process.
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    rows = max(about.num_rows, sum(abs(group.num_rows) for group in groups))
    claimed = sum(abs(group.total_byte_size) for group in groups)
    check_size(max(claimed, rows * 8), size)  # a number has 8 bytes
