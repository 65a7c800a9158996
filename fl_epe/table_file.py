"""Reads tables from files, with the same rules for all of them.

`read_table` chooses a reader by the ending of the file's name, ignoring case. `table_rows` and
`parquet_table` read chosen columns. `open_table` opens a text, and `text_layout` detects its
format. The rules:

- A text is CSV, TSV or JSON lines. It may be compressed with gzip, and is decompressed within
  the limits of `fl_epe.archive`.
- A text is in UTF-8, or in UTF-16 with a byte order mark.
- A CSV file whose header has no comma may have semicolons or tabs between cells; with semicolons,
  numbers may have decimal commas.
- A CSV or TSV file must end with a line break. Without one it may have been cut off. In a
  compressed file, gzip's checksum shows that, and in JSON lines, a missing bracket.
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
import itertools
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
"""The number of a row, and its cells. In a text, it is the number of the row's last line."""

TEXT_ENDINGS = (".csv", ".tsv", ".jsonl")
"""Endings of tables that are text; each may be followed by ``.gz``."""

# Bytes at the beginning of a file from which its format is detected.
_HEAD = 1 << 16
_MAX_LINE = 1 << 22  # characters
# Bytes to which a small file may decompress, see `check_size`. The limit is lower than for arrays,
# as the rows become Python objects.
_MIN_LIMIT = 2 << 20
_CELL = 8  # bytes of a number in memory
# Rows of Parquet that are Python objects at the same time.
_ROWS_AT_ONCE = 1 << 14
_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
# A cell between semicolons that is a number with a decimal comma.
_DECIMAL_COMMA = re.compile(
    r'(?:^|;) ?"?[-+]?\d*,\d+(?:[eE][-+]?\d+)?"? ?(?:;|$)', re.MULTILINE
)
_SAVE_AS_UTF_8 = "save it as UTF-8"


def table_ending(path: Path) -> str:
    """The ending of a file's name, in lower case; ``.gz`` after the ending of a text is ignored."""
    name = path.name.lower()
    unpacked = Path(name.removesuffix(".gz")).suffix
    if unpacked in TEXT_ENDINGS:
        return unpacked
    return Path(name).suffix


def read_table(
    path: Path, readers: Mapping[str, Callable[[Path], Content]], what: str
) -> Content:
    """Read a file with the reader for its ending.

    Args:
        path: the file.
        readers: the reader for each `table_ending`, such as ".csv".
        what: the expected content, for messages.

    Returns:
        What the reader returns.

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
        raise_invalid("path", path, expected)
    try:
        return readers[ending](path)
    except (*UNREADABLE, csv.Error) as error:
        reason = one_line(error).rstrip(".")
        raise UnreadableFileError(
            f"Expected {path} to hold {what}: {reason}."
        ) from error


def shown(value: object) -> str:
    """A value for a message, shortened if it is long."""
    return one_line(repr(value), 60)


def check_header(names: Sequence[str]) -> None:
    """Raise a `ValueError` if two columns have the same name, which is not empty."""
    for name, count in collections.Counter(names).items():
        if name and count > 1:
            raise ValueError(f"duplicate column {shown(name)}")


def find_columns(
    header: Sequence[str], wanted: Sequence[str], *, every: bool = False
) -> dict[str, int]:
    """The positions of the wanted columns, which a header may have in upper or lower case.

    Args:
        header: the names in the file.
        wanted: the names to look for, in lower case.
        every: whether all of them are required; otherwise one is enough.

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


class _Decompressed(io.RawIOBase):
    """The decompressed bytes of a gzip file, within the limits of `fl_epe.archive`."""

    def __init__(self, path: Path) -> None:
        self._packed_size = path.stat().st_size
        self._file = gzip.open(path)  # noqa: SIM115 - closed by `close`

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = self._file.readinto(buffer)
        check_size(self._file.tell(), self._packed_size, _MIN_LIMIT)
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def open_table(path: Path) -> BinaryIO:
    """Open a text for reading bytes; a file whose name ends with ``.gz`` is decompressed.

    Reading raises a `ValueError` if the decompressed bytes exceed the limits of `fl_epe.archive`,
    and an error of `gzip` if the file is damaged or cut off.
    """
    if path.suffix.lower() == ".gz":
        return io.BufferedReader(_Decompressed(path), _HEAD)
    return path.open("rb")


@dataclasses.dataclass(frozen=True)
class TextLayout:
    """The format of a table that is text.

    Attributes:
        encoding: "utf-8-sig" or "utf-16".
        separator: the character between cells.
        decimal: the decimal separator of numbers: "." or, with semicolons between cells, ",".
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
    _check_end(path)
    text = head.decode(encoding, "replace").lstrip("\r\n")
    separator = "\t"
    if table_ending(path) == ".csv":
        header = text.splitlines()[0] if text else ""
        unquoted = re.sub('"[^"]*"', "", header)
        # The first of these characters in the header; a table of one column has none of them.
        separator = next((c for c in ",;\t" if c in unquoted), ",")
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
        raise ValueError(
            f"it is no text in UTF-8 (it has zero bytes): {_SAVE_AS_UTF_8}"
        )
    return head, "utf-8-sig"


def _check_end(path: Path) -> None:
    """Raise a `ValueError` if the last line of a text that is not compressed has no line break."""
    if path.suffix.lower() == ".gz":
        return
    with path.open("rb") as file:
        byte_order_mark = file.read(2)
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - 2))
        end = file.read()
    # A line break is one byte in UTF-8, as in Latin-1, and two bytes in UTF-16.
    text = end.decode(_UTF_16.get(byte_order_mark, "latin-1"), "replace")
    if text[-1:] not in ("\n", "\r", ""):
        raise ValueError(
            "the last line has no line break, as if the file was cut off there: take the whole "
            "file, or add one"
        )


def _lines(path: Path, encoding: str) -> Iterator[str]:
    """The lines of a text with their ends; the file is read line by line."""
    try:
        with io.TextIOWrapper(open_table(path), encoding, newline="") as file:
            lines = iter(lambda: file.readline(_MAX_LINE), "")
            for number, line in enumerate(lines, 1):
                if len(line) == _MAX_LINE:
                    raise ValueError(
                        f"line {number} is longer than {_MAX_LINE:,} characters"
                    )
                yield line
    except UnicodeDecodeError as error:
        context = error.object[max(0, error.start - 20) : error.end + 20]
        text = context.decode("latin-1")
        raise ValueError(
            f"it is no text in UTF-8 ({error.reason} near {shown(text)}): {_SAVE_AS_UTF_8}"
        ) from error


@dataclasses.dataclass(frozen=True)
class TableRows:
    """Some columns of a table, row by row.

    Attributes:
        names: names of the wanted columns that the table has.
        rows: number and cells of each row. Cells are texts, or values of JSON or Parquet;
            ``None`` is an empty cell of JSON or Parquet.
        unit: what the numbers of rows count: "line" or "row".
        decimal: the decimal separator of texts, see `TextLayout`.
    """

    names: list[str]
    rows: Iterator[Row]
    unit: str = "line"
    decimal: str = "."

    def place(self, number: int) -> str:
        """The place of the row with this number, for messages."""
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
    if ending == ".jsonl":
        return _json_table(path, wanted, every)
    return _csv_table(path, wanted, every)


def _parquet_rows(table: Any) -> Iterator[Row]:
    """The rows of a `pyarrow.Table`, some thousands of which are Python objects at a time."""
    number = 0
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        columns = [column.to_pylist() for column in batch.columns]
        for cells in zip(*columns, strict=True):
            number += 1
            yield number, list(cells)


def _csv_table(path: Path, wanted: Sequence[str], every: bool) -> TableRows:
    """The wanted columns of a CSV or TSV file, see `table_rows`."""
    layout = text_layout(path)
    lines = _lines(path, layout.encoding)
    reader = csv.reader(lines, delimiter=layout.separator, strict=True)
    header = next(filter(None, reader), None)
    if header is None:
        raise ValueError("the file is empty")
    columns = find_columns(header, wanted, every=every)
    rows = _csv_rows(reader, len(header), list(columns.values()))
    return TableRows(list(columns), rows, decimal=layout.decimal)


def _csv_rows(reader: Any, width: int, positions: list[int]) -> Iterator[Row]:
    """The cells at these positions of each row; ``width`` is the number of columns."""
    for row in filter(None, reader):
        if len(row) > width:
            raise ValueError(
                f"line {reader.line_num} has {len(row)} cells, the header {width}"
            )
        row += [""] * (width - len(row))
        yield reader.line_num, [row[position] for position in positions]


def _json_table(path: Path, wanted: Sequence[str], every: bool) -> TableRows:
    """The wanted columns of a file of JSON lines, see `table_rows`."""
    rows = _json_rows(path, wanted, every)
    first = next(rows, None)
    if first is None:
        raise ValueError("the file is empty")
    names = list(first[1])
    return TableRows(
        names,
        (
            (number, [cells.get(name) for name in names])
            for number, cells in itertools.chain([first], rows)
        ),
    )


def _json_rows(
    path: Path, wanted: Sequence[str], every: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number, and cells by the column's name, of each line."""
    _, encoding = text_head(path)
    first_columns: dict[str, int] = {}

    @functools.lru_cache
    def columns_of(header: tuple[str, ...]) -> dict[str, int]:
        return find_columns(header, wanted, every=every)

    for number, line in enumerate(_lines(path, encoding), 1):
        if not line.strip():
            continue
        values = json_object(line, f"line {number}")
        try:
            columns = columns_of(tuple(values))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        first_columns = first_columns or columns
        unknown = columns.keys() - first_columns.keys()
        if unknown:
            raise ValueError(
                f"line {number} has {min(unknown)!r}, which the first line does not have"
            )
        cells = list(values.values())
        yield number, {name: cells[i] for name, i in columns.items()}


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
    size = path.stat().st_size
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            check_header([name.strip() for name in names])
            _check_metadata(file.metadata, size)
            if not wanted:
                table = file.read()
                table.validate(full=True)
                return table
            check_size(file.metadata.num_rows * _CELL, size, _MIN_LIMIT)
            positions = find_columns(names, wanted, every=every)
            columns = [names[position] for position in positions.values()]
            table = file.read(columns=columns)
            table.validate(full=True)
    except pyarrow.ArrowException as error:
        raise ValueError(one_line(error)) from error
    return table.select(columns).rename_columns(list(positions))


def _check_metadata(metadata: Any, size: int) -> None:
    """Check the unpacked size that a Parquet file of ``size`` bytes claims, see `check_size`."""
    # Sizes of single columns are not read: if they are invalid, PyArrow ends the process.
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = max(metadata.num_rows, sum(abs(group.num_rows) for group in groups))
    claimed = sum(abs(group.total_byte_size) for group in groups)
    check_size(max(claimed, rows * _CELL), size)
