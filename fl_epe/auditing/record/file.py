"""The file of a record: a NumPy archive without pickles, which any tool can read.

Arrays are stored under their names in `AuditRecord.by_name`. All other values are in ``meta``, a
JSON text as bytes. Every member has a checksum, see `fl_epe.archive`. Each value that is read is
checked for its field's type and range, so that the error about an edited file names the value.
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
_LONGEST = 2000  # characters of a text
_DEPTH = 8  # largest depth of nested lists and tables
_LARGEST_INTEGER = 2**128  # largest seed


def write_values(
    path: Path, values: Mapping[str, Any], *, private: bool = True
) -> None:
    """Write a record's values by name to ``path``, which is replaced atomically.

    Args:
        path: the path of the file; its folder is created if it is missing.
        values: the values, see `AuditRecord.by_name`.
        private: whether only the owner may read the file (mode 0600).
    """
    arrays = {}
    meta = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            arrays[name] = value
        elif name != "metrics":
            meta[name] = value
    for name, series in values["metrics"].items():
        arrays[f"{_METRICS}{name}"] = np.asarray(series)
    write_archive(path, arrays, {"meta": meta}, schema=SCHEMA, private=private)


def read_values(path: Path) -> dict[str, Any]:
    """Read the values that `write_values` wrote; they are not checked yet.

    Raises:
        FileNotFoundError: if there is no such file.
        UnreadableFileError: if it is not a record, is damaged, or has another schema.
    """
    (meta,), arrays = read_archive(path, WHAT, schema=SCHEMA, texts=("meta",))
    names = [name for name in arrays if name.startswith(_METRICS)]
    metrics = {name.removeprefix(_METRICS): arrays.pop(name) for name in names}
    return {**_shortened(meta), **arrays, "metrics": metrics}


def _shortened(value: Any, depth: int = _DEPTH) -> Any:
    """A JSON value with its long texts cut off, as a file from elsewhere may hold any text."""
    if isinstance(value, str):
        if len(value) <= _LONGEST:
            return value
        return value[: _LONGEST - 1] + "…"
    if isinstance(value, list) and depth:
        return [_shortened(part, depth - 1) for part in value]
    if isinstance(value, dict) and depth:
        return {
            _shortened(name): _shortened(part, depth - 1)
            for name, part in value.items()
        }
    return value


def part_of(kind: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """A part of a record from values by name, each of the type of its field and in its range.

    Values whose names the part does not have are ignored.

    Args:
        kind: the part's dataclass.
        values: the values of the whole record, by their full names.
        prefix: the prefix of the names of the part's fields.

    Raises:
        ArgumentError: for a value of another type or out of range, or one that is missing.
    """
    arguments: dict[str, Any] = {}
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name = f"{prefix}{field.name}"
        hint = hints[field.name]
        inner_kinds = [k for k in parts_of(hint) if dataclasses.is_dataclass(k)]
        is_none = name in values and values[name] is None
        if inner_kinds and not is_none:
            inner_kind = inner_kinds[0]
            has_values = any(
                full_name.startswith(f"{name}.") for full_name in values
            )
            if has_values or hint is inner_kind:
                arguments[field.name] = part_of(inner_kind, values, f"{name}.")
        elif name in values:
            arguments[field.name] = _checked(name, values[name], hint)
            if name not in _ANY_RANGE:
                _check_range(name, arguments[field.name])
    for field in dataclasses.fields(kind):
        # Both are `dataclasses.MISSING` if the field has no default.
        is_required = field.default is field.default_factory
        if is_required and field.name not in arguments:
            name = f"{prefix}{field.name}"
            raise ArgumentError(
                f"Expected it to hold {name}: not a whole record."
            )
    return kind(**arguments)


_WORDS = {
    "f": "real numbers",
    "i": "whole numbers",
    "b": "true and false",
    "biuf": "numbers",
}


def _checked(name: str, value: Any, hint: Any) -> Any:
    """``value`` if it is of the type of ``hint``; a list becomes a tuple if that is the type."""
    kind, *alternatives = parts_of(hint)
    arguments = typing.get_args(kind)
    if kind is Any or (value is None and types.NoneType in alternatives):
        return value
    if kind is float and isinstance(value, float) and not math.isfinite(value):
        # The value belongs to a model that diverged, or is not known.
        return value
    origin = typing.get_origin(kind)
    if origin is np.ndarray:
        return _checked_array(name, value, typing.get_args(arguments[1])[0])
    if origin is tuple:
        if not isinstance(value, list):
            raise_invalid(name, value, "to be a list")
        return tuple(_checked(name, item, arguments[0]) for item in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise_invalid(name, value, "to be a table")
        return {
            key: _checked(f"{name}.{key[:40]}", item, arguments[1])
            for key, item in value.items()
        }
    return checked_type(name, value, hint, largest=_LARGEST_INTEGER)


def _checked_array(name: str, value: Any, scalar: Any) -> np.ndarray:
    """``value`` if it is an array of this type of numbers."""
    kinds = "biuf" if scalar is Any else np.dtype(scalar).kind
    if not isinstance(value, np.ndarray):
        actual = type(value).__name__
    elif value.dtype.kind not in kinds:
        actual = str(value.dtype)
    else:
        return value
    raise ArgumentError(
        f"Expected {name} to be an array of {_WORDS[kinds]}, found {actual}."
    )


_LARGEST = 1e100  # its square does not overflow
_LENGTH = (1e-46, 1e46)  # range of the norm of a float32 vector that is not 0

# The first entry with a prefix of a value's name has the ends of its range, and further values.
_RANGES: dict[tuple[str, ...], tuple[float, ...]] = {
    ("dim",): (1, 2**53 - 1),
    ("observed.ids", "unobserved.ids"): (0, 2**53),
    # Cosines are computed in float32; of a model that diverged they are unknown.
    ("observed.", "unobserved."): (-1.001, 1.001, math.nan),
    ("norms.means", "norms.residuals", "norms.sums"): (*_LENGTH, 0),
    ("norms.", "mechanism.clip_norms", "mechanism.contributions"): (
        *_LENGTH,
        0,
        math.inf,
        math.nan,
    ),
    # Each participation may be an epoch.
    ("mechanism.canary_participations",): (0, 1e6),
    # A deployment may not know its cohort size.
    ("mechanism.cohort_size",): (*_LENGTH, math.nan),
    ("mechanism.noise_multiplier", "mechanism.sum_noise_multiplier"): (
        1 / _LARGEST,
        _LARGEST,
        0,
    ),
    ("mechanism.server.learning_rates", "running.scores", "running.signals"): (
        -_LARGEST,
        _LARGEST,
    ),
    ("mechanism.server.momentum",): (0, math.nextafter(1, 0)),
    # No column has a norm above 1.
    ("mechanism.strategy",): (-1.001, 1.001),
    # Rows have the norm 1, but for the error of a sketch.
    ("correlation.factor",): (-1.1, 1.1),
    ("running.planned",): (1 / _LARGEST, _LARGEST),
    ("",): (0, _LARGEST),
}

# Values without a range.
_ANY_RANGE = ("metrics", "design.settings", "clients.ids")


def _check_range(name: str, value: Any) -> None:
    """Raises if a number of ``value`` is outside the range for this name."""
    if isinstance(value, dict):
        value = [item for item in value.values() if isinstance(item, int)]
    elif not isinstance(value, int | float | np.ndarray) or value is True:
        return
    numbers = np.asarray(value, np.float64)
    limits = [
        limits
        for prefixes, limits in _RANGES.items()
        if name.startswith(prefixes)
    ]
    low, high, *further = limits[0]
    fits = ((numbers >= low) & (numbers <= high)) | np.isin(numbers, further)
    if np.isnan(further).any():
        fits |= np.isnan(numbers)
    if not fits.all():
        besides = "".join(f" or {number}" for number in further)
        raise_invalid(
            name, numbers[~fits].flat[0], f"in [{low}, {high}]{besides}"
        )
