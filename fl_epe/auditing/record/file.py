"""The file of a record: a NumPy archive without pickles, which any tool can read.

Arrays are stored under their names in `AuditRecord.by_name`. All that is no array is in ``meta``, a
JSON text as bytes. Every member has a checksum, see `fl_epe.archive`. Each value that is read is
checked for its field's type and range, so that an edited file is refused by the name of the value
and not by an error somewhere in a report.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fl_epe.archive import read_archive, write_archive
from fl_epe.checks import ArgumentError, checked_type, parts_of, raise_invalid

SCHEMA = 1  # version of the file format; a file with another one is refused
WHAT = "a record written by AuditRecord.save"

_METRICS = "metrics."
_LONGEST = 2000
_SEEDS = 2**128


def write_values(
    path: Path, values: Mapping[str, Any], *, private: bool = True
) -> None:
    """Write a record's values by name; replaces ``path`` in one step, so that it is never half.

    Args:
        path: where to; its folder is made if it is missing.
        values: as `AuditRecord.by_name` gives them.
        private: for its owner alone (mode 0600).
    """
    metrics = {
        f"{_METRICS}{name}": np.asarray(v) for name, v in values["metrics"].items()
    }
    arrays = {
        name: value for name, value in values.items() if isinstance(value, np.ndarray)
    }
    meta = {
        name: value
        for name, value in values.items()
        if name not in {*arrays, "metrics"}
    }
    write_archive(
        path, arrays | metrics, {"meta": meta}, schema=SCHEMA, private=private
    )


def read_values(path: Path) -> dict[str, Any]:
    """What `write_values` wrote; no value is checked yet.

    Raises:
        FileNotFoundError: if there is no such file.
        UnreadableFileError: if it is not a record, is damaged, or has another schema.
    """
    (meta,), arrays = read_archive(path, WHAT, schema=SCHEMA, texts=("meta",))
    given = [name for name in arrays if name.startswith(_METRICS)]
    metrics = {name.removeprefix(_METRICS): arrays.pop(name) for name in given}
    return {**_short(meta), **arrays, "metrics": metrics}


def _short(value: Any, depth: int = 8) -> Any:
    """A JSON value whose texts are cut off where they are long: anybody may have written them."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"
    if isinstance(value, list) and depth:
        return [_short(part, depth - 1) for part in value]
    if isinstance(value, dict) and depth:
        return {_short(name): _short(part, depth - 1) for name, part in value.items()}
    return value


def part_of(kind: Any, values: Mapping[str, Any], above: str = "") -> Any:
    """A part of a record from values by name, each of the type of its field and in its range.

    Names that the part does not have are left out.

    Raises:
        ArgumentError: for a value of another type or out of range, or one that is missing.
    """
    given: dict[str, Any] = {}
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    for name in [field.name for field in fields]:
        full = f"{above}{name}"
        hint = hints[name]
        part = next((k for k in parts_of(hint) if dataclasses.is_dataclass(k)), None)
        if part is not None and values.get(full, ...) is not None:
            if hint is part or any(other.startswith(f"{full}.") for other in values):
                given[name] = part_of(part, values, f"{full}.")
        elif full in values:
            given[name] = _checked(full, values[full], hint)
            if full not in _ANY:
                _check_range(full, given[name])
    needed = [f.name for f in fields if f.default is f.default_factory]
    if missing := [f"{above}{name}" for name in needed if name not in given]:
        raise ArgumentError(f"Expected it to hold {missing[0]}: not a whole record.")
    return kind(**given)


_WORDS = {
    "f": "real numbers",
    "i": "whole numbers",
    "b": "true and false",
    "biuf": "numbers",
}


def _checked(name: str, value: Any, hint: Any) -> Any:
    """``value`` if it is of this type; a list as a tuple, where that is the type."""
    kind, *others = parts_of(hint)
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if kind is Any or (value is None and types.NoneType in others):
        return value
    if origin is np.ndarray:
        (scalar,) = typing.get_args(arguments[1])
        kinds = "biuf" if scalar is Any else np.dtype(scalar).kind
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            found = (
                value.dtype if isinstance(value, np.ndarray) else type(value).__name__
            )
            raise ArgumentError(
                f"Expected {name} to be an array of {_WORDS[kinds]}, found {found}."
            )
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise_invalid(name, value, "to be a list")
        return tuple(_checked(name, each, arguments[0]) for each in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise_invalid(name, value, "to be a table")
        return {
            key: _checked(f"{name}.{key[:40]}", v, arguments[1])
            for key, v in value.items()
        }
    if kind is float and isinstance(value, float) and not math.isfinite(value):
        return value  # of a model that diverged, or not known
    return checked_type(name, value, hint, largest=_SEEDS)


_LARGEST = 1e100  # of what is squared
_LENGTH = 1e-46, 1e46  # of float32, if it is not 0
_COSINE = (
    -1.001,
    1.001,
    math.nan,
)  # computed in float32; of a model that diverged, unknown

# By how names begin, the first that fits: the ends of a range, and numbers besides.
_RANGES: dict[str, tuple[float, ...]] = {
    "dim": (1, 2**53 - 1),
    "observed.ids unobserved.ids": (0, 2**53),
    "observed. unobserved.": _COSINE,
    "norms.means norms.residuals norms.sums": (*_LENGTH, 0),
    "norms. mechanism.clip_norms mechanism.contributions": (
        *_LENGTH,
        0,
        math.inf,
        math.nan,
    ),
    "mechanism.canary_participations": (0, 1e6),  # each of them may be an epoch
    "mechanism.cohort_size": (*_LENGTH, math.nan),  # of a deployment nobody may know it
    # Its square is a number, too.
    "mechanism.noise_multiplier mechanism.sum_noise_multiplier": (
        1 / _LARGEST,
        _LARGEST,
        0,
    ),
    "mechanism.server.learning_rates running.scores running.signals": (
        -_LARGEST,
        _LARGEST,
    ),
    "mechanism.server.momentum": (0, math.nextafter(1, 0)),
    "mechanism.strategy": (-1.001, 1.001),  # no column is longer than 1
    "correlation.factor": (-1.1, 1.1),  # rows of length 1 but for the error of sketches
    "running.planned": (1 / _LARGEST, _LARGEST),
    "": (0, _LARGEST),
}

_ANY = ("metrics", "design.settings", "clients.ids")


def _check_range(name: str, value: Any) -> None:
    if isinstance(value, dict):
        value = [each for each in value.values() if isinstance(each, int)]
    elif not isinstance(value, int | float | np.ndarray) or value is True:
        return
    numbers = np.asarray(value, np.float64)
    low, high, *others = next(
        ends
        for starts, ends in _RANGES.items()
        if name.startswith(tuple(starts.split(" ")))
    )
    fits = ((numbers >= low) & (numbers <= high)) | np.isin(numbers, others)
    if any(math.isnan(other) for other in others):
        fits |= np.isnan(numbers)
    if not fits.all():
        besides = "".join(f" or {other}" for other in others)
        raise_invalid(name, numbers[~fits].flat[0], f"in [{low}, {high}]{besides}")
