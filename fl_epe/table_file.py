"""Reads tables from files, with the same rules for every reader of a table.

`read_table` chooses a reader by the file's ending, ignoring case, and reports an error in one
line. `open_table` opens text files, and `text_layout` detects their format:

- A text is CSV, TSV or JSON lines. It may be compressed with gzip, and is decompressed within
  the limits of `fl_epe.archive`.
- A text is in UTF-8, or in UTF-16 with a byte order mark.
- A CSV file whose header has no comma may have semicolons or tabs; with semicolons, numbers may
  have decimal commas.
- A last line without a line break is refused, as the file may be cut off there. A compressed
  file shows that by its checksum, and a line of JSON by its brackets.
- Spaces around names of columns are removed, and duplicate names are refused. The columns that
  a reader needs are found in upper or lower case (`find_columns`).
"""

import codecs
import collections
import csv
import dataclasses
import functools
import gzip
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from fl_epe.archive import (
    UNREADABLE,
    UnreadableFileError,
    check_size,
    json_object,
    one_line,
    require_file,
)
from fl_epe.checks import raise_invalid

Content = TypeVar("Content")

Row = tuple[int, list[Any]]
"""The number of the row, which in a text is that of its last line, and its cells."""

TEXT_ENDINGS = (".csv", ".tsv", ".jsonl")
"""Endings of tables that are text; each may be followed by ``.gz``."""

_HEAD = 1 << 16  # bytes that are enough for a header and some rows
_LONGEST_LINE = 1 << 22  # characters
# A file of any size may decompress to so many bytes, if Python reads each row.
_FREE = 2 << 20
# So many rows of Parquet are Python objects at once.
_ROWS = 1 << 14
_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_DECIMAL_COMMA = re.compile(
    r'(?:^|;) ?"?[-+]?\d*,\d+(?:[eE][-+]?\d+)?"? ?(?:;|$)', re.MULTILINE
)
_SAVE = "save it as UTF-8"


def table_ending(path: Path) -> str:
    """The ending of the name that shows the format, in lower case and without ``.gz``."""
    name = path.name.lower()
    unpacked = Path(name.removesuffix(".gz")).suffix
    if unpacked in TEXT_ENDINGS:
        return unpacked
    return Path(name).suffix


def read_table(
    path: Path, readers: Mapping[str, Callable[[Path], Content]], what: str
) -> Content:
    """The result of the reader for the ending of ``path``.

    Args:
        path: the file.
        readers: the reader for each `table_ending`, such as ".csv".
        what: the expected content, for messages.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for an unknown ending, or if the reader cannot read the file; the message is
            one line with the file and the reason.
    """
    require_file(path)
    ending = table_ending(path)
    if ending not in readers:
        expected = (
            f"to end with one of {', '.join(readers)} (of text, also with .gz)"
        )
        raise_invalid("path", str(path), expected)
    try:
        return readers[ending](path)
    except (*UNREADABLE, csv.Error) as error:
        reason = one_line(error).rstrip(".")
        raise UnreadableFileError(
            f"Expected {path} to hold {what}: {reason}."
        ) from error


def shown(value: object) -> str:
    """The value of a cell for a message, shortened if it is long."""
    return one_line(repr(value), 60)


def check_header(names: Sequence[str]) -> None:
    """Raise a `ValueError` for a duplicate column; several columns may have no name."""
    for name, count in collections.Counter(names).items():
        if name and count > 1:
            raise ValueError(f"duplicate column {shown(name)}")


def find_columns(
    header: Sequence[str], wanted: Sequence[str], *, every: bool = False
) -> dict[str, int]:
    """The positions of the wanted columns in a header, in upper or lower case.

    Args:
        header: the names in the file.
        wanted: the names to look for, in lower case.
        every: whether all names are required; otherwise one is enough.

    Raises:
        ValueError: for a duplicate column, or if a required column is missing.
    """
    names = [name.strip() for name in header]
    check_header(names)
    lower = [name.lower() for name in names]
    check_header([name for name in lower if name in wanted])
    columns = {name: lower.index(name) for name in wanted if name in lower}
    missing = [name for name in wanted if name not in columns]
    if missing and every:
        raise ValueError(
            f"column {missing[0]!r} is missing, found {shown(names)}"
        )
    if missing and not columns:
        raise ValueError(f"found {shown(names)}")
    return columns


class _Unpacked(io.RawIOBase):
    """The decompressed bytes of a gzip file, within the limits of `fl_epe.archive`."""

    def __init__(self, path: Path) -> None:
        self._packed_size = path.stat().st_size
        self._file = gzip.open(path)  # noqa: SIM115 - closed by `close`

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = self._file.readinto(buffer)
        check_size(self._file.tell(), self._packed_size, _FREE)
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def open_table(path: Path) -> BinaryIO:
    """The bytes of a table that is text, decompressed if its name ends with ``.gz``.

    Reading the bytes raises a `ValueError` beyond the limits of `fl_epe.archive`, and the
    errors of `gzip` for a file that is damaged or cut off.
    """
    if path.suffix.lower() == ".gz":
        return io.BufferedReader(_Unpacked(path), _HEAD)
    return path.open("rb")


@dataclasses.dataclass(frozen=True)
class TextLayout:
    """The format of a table that is text.

    Attributes:
        encoding: "utf-8-sig" or "utf-16".
        separator: the sign between cells.
        decimal: the decimal sign of numbers: "." or, with semicolons between cells, ",".
    """

    encoding: str
    separator: str
    decimal: str


def text_layout(path: Path) -> TextLayout:
    """The format of a CSV or TSV file, from its first 64 KiB and its end.

    Raises:
        ValueError: if the file is not text in UTF-8 or UTF-16, or its last line has no line
            break.
    """
    head, encoding = text_head(path)
    _check_end(path, encoding)
    text = head.decode(encoding, "replace").lstrip("\r\n")
    separator = "\t"
    if table_ending(path) == ".csv":
        header = text.splitlines()[0] if text else ""
        unquoted = re.sub('"[^"]*"', "", header)
        separator = next((sign for sign in ",;\t" if sign in unquoted), ",")
    decimal = "."
    if separator == ";" and _DECIMAL_COMMA.search(text):
        decimal = ","
    return TextLayout(encoding, separator, decimal)


def text_head(path: Path) -> tuple[bytes, str]:
    """The first bytes of a text, and its encoding."""
    with open_table(path) as file:
        head = file.read(_HEAD)
    if head[:2] in _UTF_16:
        return head, "utf-16"
    if b"\0" in head:
        raise ValueError(f"it is no text in UTF-8 (it has zero bytes): {_SAVE}")
    return head, "utf-8-sig"


def _check_end(path: Path, encoding: str) -> None:
    if path.suffix.lower() == ".gz":
        return
    with path.open("rb") as file:
        mark = file.read(2)
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - 2))
        end = file.read().decode(_UTF_16.get(mark, "latin-1"), "replace")
    if end[-1:] not in ("\n", "\r", ""):
        raise ValueError(
            "the last line has no line break, as if the file was cut off there: take the whole "
            "file, or add one"
        )


def _lines(path: Path, encoding: str) -> Iterator[str]:
    """The lines of a text with their ends; the file is read line by line."""
    try:
        with io.TextIOWrapper(open_table(path), encoding, newline="") as file:
            lines = iter(lambda: file.readline(_LONGEST_LINE), "")
            for number, line in enumerate(lines, 1):
                if len(line) == _LONGEST_LINE:
                    raise ValueError(
                        f"line {number} is longer than {_LONGEST_LINE:,} characters"
                    )
                yield line
    except UnicodeDecodeError as error:
        context = error.object[max(0, error.start - 20) : error.end + 20]
        text = context.decode("latin-1")
        raise ValueError(
            f"it is no text in UTF-8 ({error.reason} near {shown(text)}): {_SAVE}"
        ) from error


@dataclasses.dataclass(frozen=True)
class TableRows:
    """Some columns of a table, row by row.

    Attributes:
        names: names of the wanted columns that the table has.
        rows: number and cells of each row: texts, or values of JSON or Parquet; ``None`` for an
            empty cell.
        unit: what the numbers count: "line" or "row".
        decimal: the decimal sign, see `TextLayout`.
    """

    names: list[str]
    rows: Iterator[Row]
    unit: str = "line"
    decimal: str = "."

    def place(self, number: int) -> str:
        """The row with this number, in words for messages."""
        return f"{self.unit} {number}"


def table_rows(
    path: Path, wanted: Sequence[str], *, every: bool = False
) -> TableRows:
    """Some columns of a CSV, TSV, JSON lines or Parquet file; a text need not fit into memory.

    Empty lines are left out, and rows of CSV that are too short are filled with empty cells.
    The first line of JSON defines the columns.

    Args:
        path: the file.
        wanted: names of the columns, see `find_columns`.
        every: whether all of them are required.

    Raises:
        ValueError: for a column that is missing or duplicate, a row with more cells than the
            header, or a line that is not a JSON object; also the errors of `text_layout` and
            `parquet_table`. It may be raised while the rows are read.
        csv.Error: if the file is not CSV.
    """
    ending = table_ending(path)
    if ending == ".parquet":
        table = parquet_table(path, wanted, every=every)
        return TableRows(table.column_names, _parquet_rows(table), "row")
    decimal = "."
    if ending == ".jsonl":
        rows = _json_rows(path, wanted, every)
    else:
        layout = text_layout(path)
        decimal = layout.decimal
        rows = _csv_rows(path, layout, wanted, every)
    _, names = next(rows)
    return TableRows(names, rows, decimal=decimal)


def _parquet_rows(table: Any) -> Iterator[Row]:
    number = 0
    for batch in table.to_batches(max_chunksize=_ROWS):
        columns = [column.to_pylist() for column in batch.columns]
        for cells in zip(*columns, strict=True):
            number += 1
            yield number, list(cells)


def _csv_rows(
    path: Path, layout: TextLayout, wanted: Sequence[str], every: bool
) -> Iterator[Row]:
    """The names of the columns, as a row with number 0, and then the rows of the table."""
    lines = _lines(path, layout.encoding)
    reader = csv.reader(lines, delimiter=layout.separator, strict=True)
    rows = filter(None, reader)
    header = next(rows, None)
    if header is None:
        raise ValueError("the file is empty")
    width = len(header)
    columns = find_columns(header, wanted, every=every)
    positions = list(columns.values())
    yield 0, list(columns)
    for row in rows:
        if len(row) > width:
            raise ValueError(
                f"line {reader.line_num} has {len(row)} cells, the header {width}"
            )
        row += [""] * (width - len(row))
        yield reader.line_num, [row[position] for position in positions]


def _json_rows(path: Path, wanted: Sequence[str], every: bool) -> Iterator[Row]:
    """The names of the columns, as a row with number 0, and then the rows of the table."""

    @functools.lru_cache
    def columns_of(keys: tuple[str, ...]) -> dict[str, int]:
        return find_columns(keys, wanted, every=every)

    _, encoding = text_head(path)
    names: list[str] = []
    for number, line in enumerate(_lines(path, encoding), 1):
        if not line.strip():
            continue
        values = json_object(line, f"line {number}")
        try:
            columns = columns_of(tuple(values))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if not names:
            names = list(columns)
            yield 0, names
        unknown = columns.keys() - set(names)
        if unknown:
            raise ValueError(
                f"line {number} has {min(unknown)!r}, which the first line has not"
            )
        cells = list(values.values())
        cell_of = {name: cells[position] for name, position in columns.items()}
        yield number, [cell_of.get(name) for name in names]
    if not names:
        raise ValueError("the file is empty")


def parquet_table(
    path: Path, wanted: Sequence[str] = (), *, every: bool = False
) -> Any:
    """The `pyarrow.Table` in a Parquet file; checksums are verified if the file has them.

    Args:
        path: the file.
        wanted: names of the columns, see `find_columns`, which the table has under these names.
            By default the table has all columns, under their names in the file.
        every: whether all wanted columns are required.

    Raises:
        ValueError: if the file is not valid Parquet, is too large (see `fl_epe.archive`) or
            lacks a column, or if PyArrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(
            "reading Parquet needs pyarrow: pip install 'fl-epe[parquet]'"
        ) from error
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            check_header([name.strip() for name in names])
            _check_size(file.metadata, path.stat().st_size)
            if not wanted:
                table = file.read()
                table.validate(full=True)
                return table
            check_size(file.metadata.num_rows * 8, path.stat().st_size, _FREE)
            positions = find_columns(names, wanted, every=every)
            columns = [names[position] for position in positions.values()]
            table = file.read(columns=columns)
            table.validate(full=True)
    except pyarrow.ArrowException as error:
        raise ValueError(one_line(error)) from error
    return table.select(columns).rename_columns(list(positions))


def _check_size(metadata: Any, size: int) -> None:
    # Sizes of single columns are not read: if they are invalid, PyArrow ends the process.
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = max(metadata.num_rows, sum(abs(group.num_rows) for group in groups))
    claimed = sum(abs(group.total_byte_size) for group in groups)
    # A number has 8 bytes.
    check_size(max(claimed, rows * 8), size)
