"""Reads a table of examples from one file: CSV, TSV, JSON lines, LEAF's JSON or Parquet.

All follow the rules of `fl_epe.table_file`. Types are inferred, but for clients' ids: they are text
as it is written (`fl_epe.client_ids`).
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
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
# A list of rows, or as pandas writes a table: rows by number, or in each column, its default.
_NO_LINES = re.compile(
    rb'\s*(\[|\{\s*"\d+"\s*:\s*\{|\{\s*"(\\.|[^"\\])*"\s*:\s*\{\s*"\d+"\s*:)'
)


def is_table_file(path: Path) -> bool:
    """Whether a file is called as those are that `read_file` reads."""
    return table_ending(path) in _ENDINGS


def read_file(path: Path, by: str) -> pyarrow.Table:
    """The table in a file.

    Args:
        path: the file; its ending says what it is.
        by: the column of clients' ids, or an empty text.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no table; in one line that names the file and the reason.
    """
    text = functools.partial(_csv, by=by)
    lines = functools.partial(_json, by=by)
    readers = {".csv": text, ".tsv": text, ".jsonl": lines, ".json": lines}
    with rename_arguments(path="dataset"):
        return read_table(path, readers | {".parquet": parquet_table}, "a table")


@contextlib.contextmanager
def _utf_8(path: Path, encoding: str) -> Iterator[Any]:
    """The file as a stream of Arrow in UTF-8."""
    import pyarrow as pa

    try:
        with open_table(path) as file, pa.PythonFile(file, "r") as packed:
            yield pa.transcoding_input_stream(packed, encoding, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"it is no text in UTF-8 ({error.reason}): save it as UTF-8"
        ) from error


def _csv(path: Path, by: str) -> pyarrow.Table:
    import pyarrow as pa
    from pyarrow import csv

    layout = text_layout(path)

    def read(**options: Any) -> pyarrow.Table:
        with _utf_8(path, layout.encoding) as stream:
            return csv.read_csv(
                stream,
                parse_options=csv.ParseOptions(delimiter=layout.separator),
                convert_options=csv.ConvertOptions(
                    decimal_point=layout.decimal, **options
                ),
            )

    table = read(strings_can_be_null=True)  # as numbers can, where nothing stands
    header = table.column_names
    table = table.rename_columns([name.strip() for name in header])
    check_header(table.column_names)
    if by in table.column_names:
        at = table.column_names.index(by)
        own = [header[at]]
        ids = read(include_columns=own, column_types=dict.fromkeys(own, pa.string()))
        table = table.set_column(at, by, ids.column(0))
    return table


def _json(path: Path, by: str) -> pyarrow.Table:
    import pyarrow as pa

    head, encoding = text_head(path)
    if LEAF.match(head):
        return _leaf(path)
    if _NO_LINES.match(head):
        raise ValueError(
            "it has no row of JSON a line: write it with "
            "pandas.DataFrame.to_json(orient='records', lines=True)"
        )
    table = _json_lines(path, encoding)
    if by in table.column_names and pa.types.is_temporal(
        table[by].type
    ):  # text like a date
        table = _json_lines(path, encoding, [(by, pa.string())])
    return table


def _json_lines(path: Path, encoding: str, known: Sequence[Any] = ()) -> pyarrow.Table:
    import pyarrow as pa
    from pyarrow import json

    with _utf_8(path, encoding) as stream:
        return json.read_json(
            stream, parse_options=json.ParseOptions(explicit_schema=pa.schema(known))
        )


def _leaf(path: Path) -> pyarrow.Table:
    """The columns user, x and y; the rows of a client are next to each other."""
    import pyarrow as pa

    users = read_leaf(path)
    columns = {
        name: [one for examples in users.values() for one in examples[name]]
        for name in ("x", "y")
    }
    owners = [user for user, examples in users.items() for _ in examples["y"]]
    return pa.table({"user": owners, **columns})
