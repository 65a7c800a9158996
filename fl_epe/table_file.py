"""Reads tables from files: the rules that every reader of a table keeps.

`read_table` chooses a reader by the file's ending, in any case, and says what is wrong in one line.
A text is opened by `open_table` alone, and `text_layout` says how it is written:

- CSV, TSV and JSON lines, each also packed with gzip, of which no more is unpacked than
  `fl_epe.archive` allows;
- text is in UTF-8, or in UTF-16 with its byte order mark;
- a CSV file whose header has no comma may have semicolons, beside which numbers may have decimal
  commas, or tabs;
- a last line without a line break is refused, as the file may be cut off there. A packed file
  cannot be: it has a checksum. Neither can a line of JSON: it has brackets;
- names of columns are without the space around them, and none may be there twice. Those that a
  reader looks for are found in any case (`find_columns`).
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
"""The number of a row's last line, and its cells."""

TEXT_ENDINGS = (".csv", ".tsv", ".jsonl")
"""Of tables that are text; each may be followed by ``.gz``."""

_HEAD = 1 << 16  # bytes, enough for a header and some rows
_LONGEST_LINE = 1 << 22
_FREE = (
    2 << 20
)  # bytes of a packed text, or numbers in Parquet, where Python reads each row
_ROWS = 1 << 14  # of Parquet, at once as Python's objects
_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_DECIMAL_COMMA = re.compile(
    r'(?:^|;) ?"?[-+]?\d*,\d+(?:[eE][-+]?\d+)?"? ?(?:;|$)', re.MULTILINE
)
_SAVE = "save it as UTF-8"


def table_ending(path: Path) -> str:
    """What the end of the name says about the format: in small letters, and without ``.gz``."""
    name = path.name.lower()
    text = Path(name.removesuffix(".gz")).suffix
    return text if text in TEXT_ENDINGS else Path(name).suffix


def read_table(
    path: Path, readers: Mapping[str, Callable[[Path], Content]], what: str
) -> Content:
    """What the reader for the ending of ``path`` makes of the file.

    Args:
        path: the file.
        readers: by `table_ending`, such as ".csv".
        what: what the file should hold, for messages.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for another ending, or if the reader cannot read the file; the message is one
            line with the file and the reason.
    """
    require_file(path)
    if (ending := table_ending(path)) not in readers:
        known = ", ".join(readers)
        raise_invalid(
            "path", str(path), f"to end with one of {known} (of text, also with .gz)"
        )
    try:
        return readers[ending](path)
    except (*UNREADABLE, csv.Error) as error:
        reason = one_line(error).rstrip(".")
        raise UnreadableFileError(
            f"Expected {path} to hold {what}: {reason}."
        ) from error


def shown(value: object) -> str:
    """A value of a cell for a message, cut off where it is long."""
    return one_line(repr(value), 60)


def check_header(names: Sequence[str]) -> None:
    """Raise a `ValueError` for a duplicate column; one without a name may be there twice."""
    for name, times in collections.Counter(names).most_common(2):
        if name and times > 1:
            raise ValueError(f"duplicate column {shown(name)}")


def find_columns(
    header: Sequence[str], wanted: Sequence[str], *, every: bool = False
) -> dict[str, int]:
    """Where the columns of these names are, which are in small letters; the header's in any case.

    Args:
        header: the names in the file.
        wanted: the names to look for.
        every: whether none may be missing; otherwise one is enough.

    Raises:
        ValueError: for a duplicate column, or if not enough are there.
    """
    names = [name.strip() for name in header]
    check_header(names)
    small = [name.lower() for name in names]
    check_header([name for name in small if name in wanted])
    found = {name: small.index(name) for name in wanted if name in small}
    missing = [name for name in wanted if name not in found]
    if missing and (every or not found):
        reason = f"column {missing[0]!r} is missing, " if every else ""
        raise ValueError(f"{reason}found {shown(names)}")
    return found


class _Unpacked(io.RawIOBase):
    """The bytes in a file packed with gzip, of which no more are unpacked than may be."""

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
    """The bytes of a table that is text, unpacked if its name ends with ``.gz``.

    Reading them raises a `ValueError` if it would unpack to more than it may, and what `gzip`
    raises for a file that is damaged or cut off.
    """
    if path.suffix.lower() == ".gz":
        return io.BufferedReader(_Unpacked(path), _HEAD)
    return path.open("rb")


@dataclasses.dataclass(frozen=True)
class TextLayout:
    """How the text of a table is written.

    Attributes:
        encoding: "utf-8-sig" or "utf-16".
        separator: between cells.
        decimal: the sign before the decimals of a number: "." or, beside semicolons, ",".
    """

    encoding: str
    separator: str
    decimal: str


def text_layout(path: Path) -> TextLayout:
    """How a CSV or TSV file is written, by its first 64 KiB and its end.

    Raises:
        ValueError: for what is no text in UTF-8 or UTF-16, or a last line without a line break.
    """
    head, encoding = text_head(path)
    _check_end(path, encoding)
    text = head.decode(encoding, "replace").lstrip("\r\n")
    separator = "\t"
    if table_ending(path) == ".csv":
        header = re.sub('"[^"]*"', "", text.splitlines()[0]) if text else ""
        separator = next((sign for sign in ",;\t" if sign in header), ",")
    comma = separator == ";" and _DECIMAL_COMMA.search(text)
    return TextLayout(encoding, separator, "," if comma else ".")


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
    number = 0
    try:
        with io.TextIOWrapper(open_table(path), encoding, newline="") as file:
            while line := file.readline(_LONGEST_LINE):
                number += 1
                if len(line) == _LONGEST_LINE:
                    raise ValueError(
                        f"line {number} is longer than {_LONGEST_LINE:,} characters"
                    )
                yield line
    except UnicodeDecodeError as error:
        near = error.object[max(0, error.start - 20) : error.end + 20].decode("latin-1")
        raise ValueError(
            f"it is no text in UTF-8 ({error.reason} near {shown(near)}): {_SAVE}"
        ) from error


@dataclasses.dataclass(frozen=True)
class TableRows:
    """Some columns of a table, row by row.

    Attributes:
        names: of the columns that were asked for and are there.
        rows: their cells in each row: texts, and what JSON or Parquet holds; ``None`` where there
            is nothing. The number of a row is that of its last line, if it is of a text.
        unit: what is numbered: "line" or "row".
        decimal: see `TextLayout`.
    """

    names: list[str]
    rows: Iterator[Row]
    unit: str = "line"
    decimal: str = "."

    def place(self, number: int) -> str:
        """The row with that number, for messages."""
        return f"{self.unit} {number}"


def table_rows(path: Path, wanted: Sequence[str], *, every: bool = False) -> TableRows:
    """Some columns of a CSV, TSV, JSON lines or Parquet file; a text need not fit into memory.

    Empty lines are left out, and rows of CSV that are too short are filled with empty cells. The
    first line of JSON says which columns there are.

    Args:
        path: the file.
        wanted: see `find_columns`.
        every: see `find_columns`.

    Raises:
        ValueError: for a column that is missing or there twice, a row with more cells than the
            header, a line that is no JSON object, and what `text_layout` and `parquet_table`
            refuse; also while the rows are read.
        csv.Error: for what is no CSV.
    """
    ending = table_ending(path)
    if ending == ".parquet":
        table = parquet_table(path, wanted, every=every)
        return TableRows(table.column_names, _parquet_rows(table), "row")
    if ending == ".jsonl":
        rows = _json_rows(path, wanted, every)
        return TableRows(next(rows)[1], rows)
    layout = text_layout(path)
    rows = _csv_rows(path, layout, wanted, every)
    return TableRows(next(rows)[1], rows, decimal=layout.decimal)


def _parquet_rows(table: Any) -> Iterator[Row]:
    number = itertools.count(1)
    for batch in table.to_batches(max_chunksize=_ROWS):
        for cells in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            yield next(number), list(cells)


def _csv_rows(
    path: Path, layout: TextLayout, wanted: Sequence[str], every: bool
) -> Iterator[Row]:
    """The names of the columns, and the rows of their cells."""
    reader = csv.reader(
        _lines(path, layout.encoding), delimiter=layout.separator, strict=True
    )
    rows = filter(None, reader)
    if (header := next(rows, None)) is None:
        raise ValueError("the file is empty")
    width = len(header)
    found = find_columns(header, wanted, every=every)
    places = list(found.values())
    yield 0, list(found)
    for row in rows:
        if len(row) != width:
            if len(row) > width:
                raise ValueError(
                    f"line {reader.line_num} has {len(row)} cells, the header {width}"
                )
            row += [""] * (width - len(row))
        yield reader.line_num, [row[at] for at in places]


def _json_rows(path: Path, wanted: Sequence[str], every: bool) -> Iterator[Row]:
    """The names of the columns, and the rows of their cells."""

    @functools.lru_cache
    def columns(keys: tuple[str, ...]) -> dict[str, int]:
        return find_columns(keys, wanted, every=every)

    names: list[str] = []
    for number, line in enumerate(_lines(path, text_head(path)[1]), 1):
        if not line.strip():
            continue
        values = json_object(line, f"line {number}")
        try:
            found = columns(tuple(values))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if not names:
            names = list(found)
            yield 0, names
        if new := found.keys() - set(names):
            raise ValueError(
                f"line {number} has {min(new)!r}, which the first line has not"
            )
        cells = list(values.values())
        yield number, [cells[found[name]] if name in found else None for name in names]
    if not names:
        raise ValueError("the file is empty")


def parquet_table(
    path: Path, wanted: Sequence[str] = (), *, every: bool = False
) -> Any:
    """The `pyarrow.Table` in a Parquet file, checked against the checksums that it may have.

    Args:
        path: the file.
        wanted: see `find_columns`; the table has these columns under these names. All columns by
            default, under their own.
        every: see `find_columns`.

    Raises:
        ValueError: if it is no sound Parquet file, is too large (see `fl_epe.archive`), lacks a
            column, or if PyArrow is not installed.
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
            found = find_columns(names, wanted, every=every) if wanted else {}
            _check_size(file.metadata, path.stat().st_size)
            if wanted:
                check_size(file.metadata.num_rows * 8, path.stat().st_size, _FREE)
            columns = [names[at] for at in found.values()]
            table = file.read(columns=columns or None)
            table.validate(full=True)
    except pyarrow.ArrowException as error:
        raise ValueError(one_line(error)) from error
    return table.select(columns).rename_columns(list(found)) if found else table


def _check_size(about: Any, size: int) -> None:
    # Not of each column: what PyArrow finds wrong in there it does not raise, it ends the process.
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    rows = max(about.num_rows, sum(abs(group.num_rows) for group in groups))
    claimed = sum(abs(group.total_byte_size) for group in groups)
    check_size(max(claimed, rows * 8), size)  # a number has 8 bytes
