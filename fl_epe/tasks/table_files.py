"""Reads a table of examples from one file: CSV, TSV, JSON lines, LEAF's JSON or Parquet.

All files follow the rules of `fl_epe.table_file`. Types are inferred, except those of clients'
ids, which stay text as written (`fl_epe.client_ids`).
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_epe.checks import rename_arguments
from fl_epe.data import LEAF, read_leaf
from fl_epe.table_file import (
    TEXT_ENDINGS,
    check_header,
    open_table,
    parquet_table,
    read_table,
    table_ending,
    text_head,
    text_layout,
)

if TYPE_CHECKING:
    import pyarrow

_ENDINGS = (*TEXT_ENDINGS, ".json", ".parquet")
# The beginning of a JSON file that is not JSON lines: a list of rows, or one of the two formats of
# pandas with row numbers, by row or by column.
_NOT_JSON_LINES = re.compile(
    rb'\s*(\[|\{\s*"\d+"\s*:\s*\{|\{\s*"(\\.|[^"\\])*"\s*:\s*\{\s*"\d+"\s*:)'
)


def is_table_file(path: Path) -> bool:
    """Whether a file's name ends like those that `read_file` reads."""
    return table_ending(path) in _ENDINGS


def read_file(path: Path, by: str) -> pyarrow.Table:
    """The table in a file.

    Args:
        path: the file; its ending decides the format.
        by: the column of clients' ids, or an empty text.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file has no table; the message is one line with the file and the
            reason.
    """
    read_csv = functools.partial(_read_csv, by=by)
    read_json = functools.partial(_read_json, by=by)
    readers: dict[str, Callable[[Path], pyarrow.Table]] = {
        ".csv": read_csv,
        ".tsv": read_csv,
        ".jsonl": read_json,
        ".json": read_json,
        ".parquet": parquet_table,
    }
    with rename_arguments(path="dataset"):
        return read_table(path, readers, "a table")


@contextlib.contextmanager
def _open_as_utf_8(path: Path, encoding: str) -> Iterator[Any]:
    """Open the file as an Arrow stream in UTF-8."""
    import pyarrow as pa

    try:
        with open_table(path) as file, pa.PythonFile(file, "r") as packed:
            yield pa.transcoding_input_stream(packed, encoding, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"it is no text in UTF-8 ({error.reason}): save it as UTF-8"
        ) from error


def _read_csv(path: Path, by: str) -> pyarrow.Table:
    import pyarrow as pa
    from pyarrow import csv

    layout = text_layout(path)

    def read(**options: Any) -> pyarrow.Table:
        parse = csv.ParseOptions(delimiter=layout.separator)
        convert = csv.ConvertOptions(decimal_point=layout.decimal, **options)
        with _open_as_utf_8(path, layout.encoding) as stream:
            return csv.read_csv(
                stream, parse_options=parse, convert_options=convert
            )

    # An empty cell is null in a column of text, too.
    table = read(strings_can_be_null=True)
    header = table.column_names
    table = table.rename_columns([name.strip() for name in header])
    check_header(table.column_names)
    if by in table.column_names:
        # Clients' ids are read again, as text.
        index = table.column_names.index(by)
        name = header[index]
        ids = read(include_columns=[name], column_types={name: pa.string()})
        table = table.set_column(index, by, ids.column(0))
    return table


def _read_json(path: Path, by: str) -> pyarrow.Table:
    import pyarrow as pa

    head, encoding = text_head(path)
    if LEAF.match(head):
        return _leaf_table(path)
    if _NOT_JSON_LINES.match(head):
        raise ValueError(
            "it has no row of JSON a line: write it with "
            "pandas.DataFrame.to_json(orient='records', lines=True)"
        )
    table = _json_lines(path, encoding)
    if by in table.column_names and pa.types.is_temporal(table[by].type):
        # Ids that look like dates are read again, as text.
        table = _json_lines(path, encoding, [(by, pa.string())])
    return table


def _json_lines(
    path: Path, encoding: str, types: Sequence[Any] = ()
) -> pyarrow.Table:
    """A table of JSON lines; types are inferred for columns that are not in ``types``."""
    import pyarrow as pa
    from pyarrow import json

    options = json.ParseOptions(explicit_schema=pa.schema(types))
    with _open_as_utf_8(path, encoding) as stream:
        return json.read_json(stream, parse_options=options)


def _leaf_table(path: Path) -> pyarrow.Table:
    """A table with the columns user, x and y; the rows of each client are consecutive."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {"user": [], "x": [], "y": []}
    for user, examples in read_leaf(path).items():
        columns["user"] += [user] * len(examples["y"])
        columns["x"] += examples["x"]
        columns["y"] += examples["y"]
    return pa.table(columns)
