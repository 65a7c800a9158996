"""The kind of each column of a table for a model: number, category, date, or left out.

`sort_columns` uses only names and values. ``fl-epe new`` writes the kinds into a file, where
the user can change the kind of every column.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from fl_epe.checks import raise_invalid

if TYPE_CHECKING:
    import pandas

CLEAR_CLASSES = 20
"""A column with at most this number of distinct values has classes, not identifiers."""

# Largest shares of distinct values in a column that is not left out: a model learns nothing from
# whole numbers or texts that hardly repeat.
_MAX_DISTINCT_NUMBERS = 0.95
_MAX_DISTINCT_TEXTS = 0.5
_IDENTIFIER_NAME = re.compile(r"(^|[\W_])(?i:id|uuid|guid)$|[a-z](Id|ID)$")
# Names under which pandas writes row numbers into a CSV or Parquet file.
_ROW_NUMBERS_NAME = re.compile(r"$|Unnamed: |__index_level_")
# Kinds of values, as `pandas.api.types.infer_dtype` names them.
_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal")
_DATES = ("datetime64", "datetime", "date")
_WORDS = ("string", "boolean", "categorical")
# Formats of dates, as `pandas.to_datetime` takes them.
_ISO = "ISO8601"
_DATE_FORMATS = (
    _ISO,
    "%d.%m.%Y",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%d.%m.%Y %H:%M",
    "%m/%d/%Y %H:%M",
)


@dataclasses.dataclass
class ColumnKinds:
    """The names of a table's columns by kind, in the order of the table.

    Attributes:
        numbers: columns whose values have an order and a distance.
        categories: columns of a few values, or of true and false.
        dates: columns of dates, and the format of each for pandas.
        left_out: columns to leave out, and the reason for each.
    """

    numbers: list[str] = dataclasses.field(default_factory=list)
    categories: list[str] = dataclasses.field(default_factory=list)
    dates: dict[str, str] = dataclasses.field(default_factory=dict)
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)


def sort_columns(
    table: pandas.DataFrame, excluded: Collection[str]
) -> ColumnKinds:
    """The kind of each column, except the excluded ones.

    Examples:
        >>> import pandas
        >>> table = {"user_id": [7, 8, 7], "height": [1.7, None, 1.6], "sex": ["f", "m", "f"]}
        >>> kinds = sort_columns(pandas.DataFrame(table), excluded=[])
        >>> kinds.numbers, kinds.categories, kinds.left_out
        (['height'], ['sex'], {'user_id': 'its name is that of an identifier'})
    """
    kinds = ColumnKinds()
    for name in table.columns:
        if name in excluded:
            continue
        kind, note = _kind(name, table[name])
        match kind:
            case "number":
                kinds.numbers.append(name)
            case "category":
                kinds.categories.append(name)
            case "date":
                kinds.dates[name] = note
            case "left out":
                kinds.left_out[name] = note
    return kinds


def _kind(name: str, column: pandas.Series[Any]) -> tuple[str, str]:
    """The kind of a column, and the format of its dates or the reason to leave it out."""
    from pandas.api.types import infer_dtype

    values = column.dropna()
    stored = infer_dtype(values)
    if _ROW_NUMBERS_NAME.match(name):
        return "left out", "row numbers"
    if not len(values):
        return "left out", "it has no values"
    if stored not in (*_NUMBERS, *_DATES, *_WORDS):
        return "left out", "neither numbers, text nor dates"
    distinct = values.nunique()
    # The share of distinct values, if they are too many for classes.
    share = distinct / len(values) if distinct > CLEAR_CLASSES else 0.0
    counted = f"{distinct:,} different values in {len(values):,} rows"
    if distinct == 1 and not column.hasnans:
        return "left out", "the same value in every row"
    if _IDENTIFIER_NAME.search(name):
        return "left out", "its name is that of an identifier"
    if stored in _DATES:
        return "date", _ISO
    if stored in _NUMBERS:
        if share > _MAX_DISTINCT_NUMBERS and (values % 1 == 0).all():
            return "left out", f"whole numbers as of an identifier, {counted}"
        return "number", ""
    date_format = _date_format(values.unique()) if stored == "string" else None
    if date_format is not None:
        return "date", date_format
    if share > _MAX_DISTINCT_TEXTS:
        return "left out", f"text as of an identifier or a note, {counted}"
    return "category", ""


def _date_format(texts: Any) -> str | None:
    """The first format in which all of these texts are dates; ``None`` if there is none."""
    import pandas

    for date_format in _DATE_FORMATS:
        dates = pandas.to_datetime(
            texts, format=date_format, errors="coerce", utc=True
        )
        if not dates.isna().any():
            return date_format
    return None


def classes_to_predict(targets: pandas.Series[Any]) -> int | None:
    """The number of classes of a column of targets; ``None`` if it has real numbers.

    Integers with many distinct values count as real numbers. In a column with missing values,
    integers are stored as floats, so floats without decimals count as integers there.

    Raises:
        ValueError: if all values are equal, a text is blank, or the values are neither numbers
            nor text that repeats.
    """
    from pandas.api.types import infer_dtype

    values = targets.dropna()
    kind = infer_dtype(values)
    if kind not in (*_NUMBERS, *_WORDS):
        raise_invalid("targets", targets.name, "to hold numbers or text")
    if kind == "string":
        is_blank = values.str.strip() == ""
        if is_blank.any():
            row = is_blank.idxmax() + 1
            expected = f"to have a label in every row: row {row:,} is blank"
            raise_invalid("targets", targets.name, expected)
    distinct = values.nunique()
    if distinct < 2:
        expected = f"to have different values, found {distinct}"
        raise_invalid("targets", targets.name, expected)
    if kind == "floating" and not targets.hasnans:
        return None
    if kind in _NUMBERS and (
        distinct > CLEAR_CLASSES or (values % 1 != 0).any()
    ):
        return None
    hardly_repeat = distinct > _MAX_DISTINCT_TEXTS * len(values)
    if distinct > CLEAR_CLASSES and hardly_repeat:
        counts = f"found {distinct:,} different ones in {len(values):,} rows"
        raise_invalid(
            "targets", targets.name, f"to have classes that repeat, {counts}"
        )
    return int(distinct)
