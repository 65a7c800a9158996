"""Reads scores of observed and unobserved canaries from CSV, NPZ, NPY, JSON or Parquet files."""

from __future__ import annotations

import array
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.archive import json_object, read_archive, read_npy
from fl_epe.table_file import check_header, csv_rows, parquet_table, read_table, shown

Floats = NDArray[np.float64]

LAYOUT = (
    "columns (or keys) 'observed' and, unless --dim is given, 'unobserved'; "
    "or 'score' and 'member' (1 took part, 0 did not)"
)
"""What a file must hold, for messages and help."""

_NAMES = ("observed", "unobserved", "score", "member")
_MEMBER = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def read_scores(path: Path) -> tuple[Floats, Floats | None]:
    """Observed scores ``(k,)`` and unobserved ones ``(u,)``, or ``None`` if there are none.

    Args:
        path: ends with .csv, .npz, .npy (observed scores alone), .json or .parquet; see `LAYOUT`.
            The shorter of two columns may end in empty cells; no other cell may be empty.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read as scores, in one line that names the file, the reason
            and, where it is about a cell, the row.
    """
    readers = {".csv": _csv, ".npz": _npz, ".json": _json, ".parquet": _parquet, ".npy": _npy}
    return read_table(
        path, {end: functools.partial(_scores, read) for end, read in readers.items()}, LAYOUT
    )


@dataclasses.dataclass(frozen=True)
class _Table:
    """Columns by name, and what to call a row in messages."""

    columns: Mapping[str, Any]
    place: Callable[[int], str]


def _scores(reader: Callable[[Path], _Table], path: Path) -> tuple[Floats, Floats | None]:
    return _split(reader(path))


def _split(table: _Table) -> tuple[Floats, Floats | None]:
    check_header(lower := [str(name).strip().lower() for name in table.columns])
    named = dict(zip(lower, table.columns.values(), strict=True))
    if "score" in named and "member" not in named:
        raise ValueError(f"'score' needs a column 'member', found {shown(sorted(named))}")
    if named.keys() & {"observed", "unobserved"} and named.keys() & {"score", "member"}:
        raise ValueError(f"found {shown(sorted(named))}, of two layouts: keep one of them")
    if "score" in named:
        scores, members = named["score"], named["member"]
        if len(scores) != len(members):
            raise ValueError(f"score has {len(scores)} values and member {len(members)}")
        numbers = _numbers("score", scores, table.place)
        took_part = _members(members, table.place)
        others = numbers[~took_part]
        return numbers[took_part], others if len(others) else None
    if "observed" not in named:
        raise ValueError(f"found {shown(sorted(named))}")
    observed = _numbers("observed", _without_end(named["observed"]), table.place)
    others = _numbers("unobserved", _without_end(named.get("unobserved", ())), table.place)
    if not len(observed):
        raise ValueError("there is no observed score")
    return observed, others if len(others) else None


def _members(values: Any, place: Callable[[int], str]) -> NDArray[np.bool_]:
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        if not (known := (values == 0) | (values == 1)).all():
            _member(values[np.argmin(known)], place(int(np.argmin(known))))
        return np.equal(values, 1)
    return np.array([_member(m, place(i)) for i, m in enumerate(values)], bool)


def _member(value: Any, place: str) -> bool:
    text = str(value).strip().lower().removesuffix(".0")
    if _is_empty(value):
        raise ValueError(f"{place}: member is missing")
    if text not in _MEMBER:
        raise ValueError(f"{place}: member={shown(value)} is neither 1 nor 0")
    return _MEMBER[text]


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _without_end(values: Any) -> Any:
    """The values without the empty ones at the end, which fill up the shorter column."""
    end = len(values)
    while end and _is_empty(values[end - 1]):
        end -= 1
    return values[:end]


def _numbers(name: str, values: Any, place: Callable[[int], str]) -> Floats:
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        numbers = np.asarray(values, np.float64)
    else:
        numbers = np.array([_number(name, value, i, place) for i, value in enumerate(values)])
    finite = np.isfinite(numbers)
    if not finite.all():
        first = int(np.argmin(finite))
        raise ValueError(f"{place(first)}: {name}={shown(values[first])} is not finite")
    return numbers


def _number(name: str, value: Any, row: int, place: Callable[[int], str]) -> float:
    if _is_empty(value):
        raise ValueError(f"{place(row)}: {name} is missing")
    if isinstance(value, bool | np.bool_ | bytes) or (isinstance(value, str) and "_" in value):
        raise ValueError(f"{place(row)}: {name}={shown(value)} is not a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (ValueError, TypeError) as error:
        raise ValueError(f"{place(row)}: {name}={shown(value)} is not a number") from error


def _row(index: int) -> str:
    return f"row {index + 1}"


def _line(number: int) -> str:
    return f"line {number}"


def _csv(path: Path) -> _Table:
    """Row by row into numbers: of ten million rows only those are kept."""
    rows = csv_rows(path, strict=True, fill=True)
    if (first := next(rows, None)) is None:
        raise ValueError("the file is empty")
    check_header(names := [name.strip().lower() for name in first[1]])
    columns: dict[str, array.array[Any]] = {}
    columns |= {name: array.array("b" if name == "member" else "d") for name in names}
    wanted = [(i, name, columns[name]) for i, name in enumerate(names) if name in _NAMES]
    ends: dict[str, int] = {}
    for line, cells in rows:
        for i, name, column in wanted:
            if _is_empty(cell := cells[i]):
                ends.setdefault(name, line)
            elif name in ends:
                raise ValueError(f"{_line(ends[name])}: {name} is missing")
            elif name == "member":
                column.append(_member(cell, _line(line)))
            else:
                column.append(_number(name, cell, line, _line))
                if not math.isfinite(column[-1]):
                    raise ValueError(f"{_line(line)}: {name}={shown(cell)} is not finite")
    if "score" in ends or "member" in ends:
        name = min(ends, key=lambda name: ends[name])
        raise ValueError(f"{_line(ends[name])}: {name} is missing")
    return _Table({name: np.asarray(column) for name, column in columns.items()}, _row)


def _npz(path: Path) -> _Table:
    _, columns = read_archive(path, "an archive of scores")
    if {"meta", "presence"} <= columns.keys():
        raise ValueError("this is a run's record; see 'fl-epe report RUN_DIR'")
    for name, values in columns.items():
        if values.ndim > 1 and name.strip().lower() in _NAMES:
            raise ValueError(f"{name}.shape={values.shape} is not (k,)")
    return _Table({name: np.atleast_1d(values) for name, values in columns.items()}, _row)


def _npy(path: Path) -> _Table:
    values = read_npy(path, "an array of observed scores")
    if values.ndim != 1:
        raise ValueError(f"shape={values.shape} is not (k,)")
    return _Table({"observed": values}, _row)


def _json(path: Path) -> _Table:
    content = json_object(path.read_bytes(), "the text")
    return _Table({name: v for name, v in content.items() if isinstance(v, list)}, _row)


def _parquet(path: Path) -> _Table:
    table = parquet_table(path)
    wanted = [name for name in table.column_names if name.strip().lower() in _NAMES]
    if not wanted:
        raise ValueError(f"found {shown(table.column_names)}")
    return _Table({name: table[name].to_pylist() for name in wanted}, _row)
