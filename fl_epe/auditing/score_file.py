"""Reads the scores of observed and unobserved canaries from CSV, NPZ, JSON or Parquet files."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.table_file import csv_rows, parquet_module, read_table

Floats = NDArray[np.float64]

LAYOUT = (
    "columns (or keys) 'observed' and, unless --dim is given, 'unobserved'; "
    "or 'score' and 'member' (1 took part, 0 did not)"
)
"""What a file must hold, for messages and help."""

_MEMBER = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def read_scores(path: Path) -> tuple[Floats, Floats | None]:
    """Observed scores ``(k,)`` and unobserved ones ``(u,)``, or ``None`` if there are none.

    Args:
        path: ends with .csv, .npz, .json or .parquet; see `LAYOUT`. Empty cells are passed over.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read as scores, in one line that names the file and the reason.
    """
    readers = {".csv": _csv, ".npz": _npz, ".json": _json, ".parquet": _parquet}
    return read_table(
        path, {end: functools.partial(_scores, read) for end, read in readers.items()}, LAYOUT
    )


def _scores(
    reader: Callable[[Path], Mapping[str, Iterable[Any]]], path: Path
) -> tuple[Floats, Floats | None]:
    return _split(reader(path))


def _split(columns: Mapping[str, Iterable[Any]]) -> tuple[Floats, Floats | None]:
    named = {str(name).strip().lower(): values for name, values in columns.items()}
    if "score" in named and "member" in named:
        pairs = list(zip(named["score"], named["member"], strict=True))
        by_side = {
            side: _numbers(s for s, m in pairs if _member(m) is side) for side in (True, False)
        }
        return by_side[True], by_side[False] if len(by_side[False]) else None
    if "observed" not in named:
        raise ValueError(f"found {sorted(named)}")
    observed = _numbers(named["observed"])
    others = _numbers(named["unobserved"]) if "unobserved" in named else np.empty(0)
    if not len(observed):
        raise ValueError("there is no observed score")
    return observed, others if len(others) else None


def _member(value: Any) -> bool:
    text = str(value).strip().lower().removesuffix(".0")
    if text not in _MEMBER:
        raise ValueError(f"member={value!r} is neither 1 nor 0")
    return _MEMBER[text]


def _numbers(values: Iterable[Any]) -> Floats:
    cells = (value.strip() if isinstance(value, str) else value for value in values)
    return np.array([float(cell) for cell in cells if cell is not None and cell != ""])


def _csv(path: Path) -> Mapping[str, Iterable[Any]]:
    rows = [cells for _, cells in csv_rows(path, fill=True)]
    if not rows:
        raise ValueError("the file is empty")
    header, *body = rows
    return {name: [row[i] for row in body] for i, name in enumerate(header)}


def _npz(path: Path) -> Mapping[str, Iterable[Any]]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        if {"meta", "presence"} <= set(archive.files):
            raise ValueError("this is a run's record; see 'fl-epe report RUN_DIR'")
        columns = {name: archive[name] for name in archive.files}
    for name, values in columns.items():
        if values.ndim > 1 and name.lower() in ("observed", "unobserved", "score", "member"):
            raise ValueError(f"{name}.shape={values.shape} is not (k,)")
    return {name: np.atleast_1d(values) for name, values in columns.items()}


def _json(path: Path) -> Mapping[str, Iterable[Any]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"found a {type(content).__name__}, not an object")
    return {name: value for name, value in content.items() if isinstance(value, list)}


def _parquet(path: Path) -> Mapping[str, Iterable[Any]]:
    columns: dict[str, list[Any]] = parquet_module().read_table(path).to_pydict()
    return {name: [v for v in values if not _missing(v)] for name, values in columns.items()}


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
