"""What a column of somebody's table is for a model: a number, a category, a date, or left out.

`sort_columns` looks at names and values alone. ``fl-epe new`` writes what it finds into a file,
where every column can be moved.
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
"""A column with at most so many values holds classes, and no identifiers."""

# Of the rows. A model learns nothing from a value that is in one row alone.
_DISTINCT_NUMBERS, _DISTINCT_TEXTS = 0.95, 0.5
_IDENTIFIER = re.compile(r"(^|[\W_])(?i:id|uuid|guid)$|[a-z](Id|ID)$")
_ROW_NUMBERS = re.compile(
    r"$|Unnamed: |__index_level_"
)  # of pandas, in a CSV and a Parquet file
_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal")
_DATES = ("datetime64", "datetime", "date")
_WORDS = ("string", "boolean", "categorical")
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
    """The names of a table's columns by what they are, in the order of the table.

    Attributes:
        numbers: have an order and a distance.
        categories: of a few values, or true and false.
        dates: and the format that pandas reads each by.
        left_out: and for each the reason.
    """

    numbers: list[str] = dataclasses.field(default_factory=list)
    categories: list[str] = dataclasses.field(default_factory=list)
    dates: dict[str, str] = dataclasses.field(default_factory=dict)
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)


def sort_columns(table: pandas.DataFrame, but: Collection[str]) -> ColumnKinds:
    """What each column is, ``but`` for some.

    Examples:
        >>> import pandas
        >>> table = {"user_id": [7, 8, 7], "height": [1.7, None, 1.6], "sex": ["f", "m", "f"]}
        >>> found = sort_columns(pandas.DataFrame(table), but=[])
        >>> found.numbers, found.categories, found.left_out
        (['height'], ['sex'], {'user_id': 'its name is that of an identifier'})
    """
    found = ColumnKinds()
    for name in table.columns:
        if name in but:
            continue
        kind, note = _kind(name, table[name])
        match kind:
            case "number":
                found.numbers.append(name)
            case "category":
                found.categories.append(name)
            case "date":
                found.dates[name] = note
            case _:
                found.left_out[name] = note
    return found


def _kind(name: str, column: pandas.Series[Any]) -> tuple[str, str]:
    """What a column is, and the format of its dates or why it is left out."""
    from pandas.api.types import infer_dtype

    values = column.dropna()
    stored = infer_dtype(values)
    if _ROW_NUMBERS.match(name):
        return "", "row numbers"
    if not len(values):
        return "", "it has no values"
    if stored not in (*_NUMBERS, *_DATES, *_WORDS):
        return "", "neither numbers, text nor dates"
    distinct = values.nunique()
    share = distinct / len(values) if distinct > CLEAR_CLASSES else 0.0
    counted = f"{distinct:,} different values in {len(values):,} rows"
    if distinct == 1 and not column.hasnans:
        return "", "the same value in every row"
    if _IDENTIFIER.search(name):
        return "", "its name is that of an identifier"
    if stored in _DATES:
        return "date", _ISO
    if stored in _NUMBERS:
        if share > _DISTINCT_NUMBERS and (values % 1 == 0).all():
            return "", f"whole numbers as of an identifier, {counted}"
        return "number", ""
    if stored == "string" and (date_format := _date_format(values.unique())):
        return "date", date_format
    if share > _DISTINCT_TEXTS:
        return "", f"text as of an identifier or a note, {counted}"
    return "category", ""


def _date_format(texts: Any) -> str | None:
    """The first format in which all of these are dates."""
    import pandas

    for date_format in _DATE_FORMATS:
        dates = pandas.to_datetime(texts, format=date_format, errors="coerce", utc=True)
        if not dates.isna().any():
            return date_format
    return None


def classes_to_predict(targets: pandas.Series[Any]) -> int | None:
    """How many classes a column has that is to be predicted; ``None`` if it holds real numbers.

    Whole numbers that are stored as real ones are whole where a value is missing, as nothing else
    can be stored then.

    Raises:
        ValueError: if it holds one value alone, or neither numbers nor text that repeats.
    """
    from pandas.api.types import infer_dtype

    values = targets.dropna()
    kind = infer_dtype(values)
    if kind not in (*_NUMBERS, *_WORDS):
        raise_invalid("targets", targets.name, "to hold numbers or text")
    if kind == "string" and (blank := values.str.strip() == "").any():
        row = blank.idxmax() + 1
        raise_invalid(
            "targets",
            targets.name,
            f"to have a label in every row: row {row:,} is blank",
        )
    distinct = values.nunique()
    if distinct < 2:
        raise_invalid(
            "targets", targets.name, f"to have different values, found {distinct}"
        )
    real = kind == "floating" and not targets.hasnans
    if real or (
        kind in _NUMBERS and (distinct > CLEAR_CLASSES or (values % 1 != 0).any())
    ):
        return None
    if distinct > CLEAR_CLASSES and distinct > _DISTINCT_TEXTS * len(values):
        found = f"found {distinct:,} different ones in {len(values):,} rows"
        raise_invalid("targets", targets.name, f"to have classes that repeat, {found}")
    return int(distinct)
