"""The file of a record: a NumPy archive without pickles, which any tool can read.

Arrays are stored under their names in `AuditRecord.by_name`, except for the few fields whose names
in files are shorter (`FILE_NAMES`). All other values are in ``meta``, a JSON text as bytes. Every
member has a checksum, see `fl_epe.archive`. Each value that is read is checked for its field's type
and range, so that the error about an edited file names the value.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fl_epe.archive import read_archive, write_archive
from fl_epe.checks import ArgumentError, checked_type, parts_of, raise_invalid

SCHEMA = 1  # version of the file format; a file with another one is refused
DESCRIPTION = "a record written by AuditRecord.save"

FILE_NAMES = {
    "observed.model_updates": "observed.deltas",
    "observed.canary_sums": "observed.sums",
    "observed.canary_displacement": "observed.part",
    "unobserved.model_updates": "unobserved.deltas",
    "unobserved.canary_sums": "unobserved.sums",
    "unobserved.canary_displacement": "unobserved.part",
    "norms.model_updates": "norms.deltas",
    "norms.canary_sums": "norms.sums",
    "norms.canary_displacement": "norms.part",
    "mechanism.noise_cohort_size": "mechanism.noise_is_for",
    "findings.missing_canaries_reason": "findings.not_measured",
    "findings.mechanism_faults": "findings.step_faults",
    "findings.unchecked_assumptions": "findings.unseen",
    "running.law_was_known": "running.of_law",
}
"""The names in files of the fields that have another name in `AuditRecord.by_name`."""

_FIELD_NAMES = {file_name: name for name, file_name in FILE_NAMES.items()}

_METRICS_PREFIX = "metrics."
_MAX_TEXT = 2000  # largest number of characters of a text
_MAX_DEPTH = 8  # largest depth of nested lists and tables
# Largest absolute value of an integer: seeds are the largest ones.
_MAX_INTEGER = 2**128


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
        file_name = FILE_NAMES.get(name, name)
        if isinstance(value, np.ndarray):
            arrays[file_name] = value
        elif name != "metrics":
            meta[file_name] = value
    for name, series in values["metrics"].items():
        arrays[f"{_METRICS_PREFIX}{name}"] = np.asarray(series)
    write_archive(path, arrays, {"meta": meta}, schema=SCHEMA, private=private)


def read_values(path: Path) -> dict[str, Any]:
    """The values that `write_values` wrote, by the same names; they are not checked yet.

    Raises:
        FileNotFoundError: if there is no such file.
        UnreadableFileError: if it is not a record, is damaged, or has another schema.
    """
    (meta,), members = read_archive(
        path, DESCRIPTION, schema=SCHEMA, texts=("meta",)
    )
    arrays = {}
    metrics = {}
    for name, array in members.items():
        if name.startswith(_METRICS_PREFIX):
            metrics[name.removeprefix(_METRICS_PREFIX)] = array
        else:
            arrays[name] = array
    stored = {**_shortened(meta), **arrays}
    values = {
        _FIELD_NAMES.get(name, name): value for name, value in stored.items()
    }
    return values | {"metrics": metrics}


def _shortened(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """A JSON value whose long texts are cut off, down to ``depth`` levels of lists and tables.

    A record that somebody else sent may hold any text.
    """
    if isinstance(value, str):
        if len(value) <= _MAX_TEXT:
            return value
        return value[: _MAX_TEXT - 1] + "…"
    if isinstance(value, list) and depth:
        return [_shortened(part, depth - 1) for part in value]
    if isinstance(value, dict) and depth:
        return {
            _shortened(name): _shortened(part, depth - 1)
            for name, part in value.items()
        }
    return value


def build_part(
    part_class: Any, values: Mapping[str, Any], prefix: str = ""
) -> Any:
    """A part of a record from values by name, each of the type of its field and in its range.

    Values whose names the part does not have are ignored.

    Args:
        part_class: the part's dataclass.
        values: the values of the whole record, by their full names.
        prefix: the prefix of the names of the part's fields.

    Raises:
        ArgumentError: for a value of another type or out of range, or one that is missing.
    """
    arguments: dict[str, Any] = {}
    hints = typing.get_type_hints(part_class)
    for field in dataclasses.fields(part_class):
        name = f"{prefix}{field.name}"
        hint = hints[field.name]
        kinds = parts_of(hint)
        inner_class = next(filter(dataclasses.is_dataclass, kinds), None)
        # An optional part, such as `Findings.stopped`, is stored as one value if it is None.
        is_none = (
            types.NoneType in kinds
            and values.get(name) is None
            and not any(key.startswith(f"{name}.") for key in values)
        )
        if inner_class is not None and not is_none:
            arguments[field.name] = build_part(inner_class, values, f"{name}.")
        elif name in values:
            arguments[field.name] = _checked(name, values[name], hint)
            if name not in _ANY_RANGE:
                _check_range(name, arguments[field.name])
        elif field.default is field.default_factory:
            # Both are `dataclasses.MISSING`: the field has no default.
            raise ArgumentError(
                f"Expected it to hold {name}: not a whole record."
            )
    return part_class(**arguments)


# What an array has, by the kinds of its dtype.
_CONTENTS = {
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
    return checked_type(name, value, hint, largest=_MAX_INTEGER)


def _checked_array(name: str, value: Any, scalar: Any) -> np.ndarray:
    """``value`` if it is an array with this type of entries."""
    kinds = "biuf" if scalar is Any else np.dtype(scalar).kind
    if not isinstance(value, np.ndarray):
        actual = type(value).__name__
    elif value.dtype.kind not in kinds:
        actual = str(value.dtype)
    else:
        return value
    raise ArgumentError(
        f"Expected {name} to be an array of {_CONTENTS[kinds]}, found {actual}."
    )


class _Range(NamedTuple):
    """The range of the numbers whose names start with one of these prefixes.

    Attributes:
        prefixes: the beginnings of names; "" for all names.
        low: lower end of the range.
        high: upper end of the range.
        further: valid numbers outside the range.
    """

    prefixes: tuple[str, ...]
    low: float
    high: float
    further: tuple[float, ...] = ()


_MAX_SQUARABLE = 1e100  # its square does not overflow

# The range of the norms of float32 vectors that are not 0.
_MIN_NORM = 1e-46
_MAX_NORM = 1e46

# The range of a value is in the first entry that has a prefix of the value's name.
_RANGES = (
    # Integers up to 2⁵³ are exact in float64.
    _Range(("dim",), 1, 2**53 - 1),
    _Range(("observed.ids", "unobserved.ids"), 0, 2**53),
    # Cosines are computed in float32. Those with a model that diverged are not known.
    _Range(("observed.", "unobserved."), -1.001, 1.001, (math.nan,)),
    _Range(
        ("norms.means", "norms.residuals", "norms.canary_sums"),
        _MIN_NORM,
        _MAX_NORM,
        (0,),
    ),
    _Range(
        ("norms.", "mechanism.clip_norms", "mechanism.contributions"),
        _MIN_NORM,
        _MAX_NORM,
        (0, math.inf, math.nan),
    ),
    # Each participation may be an epoch.
    _Range(("mechanism.canary_participations",), 0, 1e6),
    # A deployment may not know its cohort size.
    _Range(("mechanism.cohort_size",), _MIN_NORM, _MAX_NORM, (math.nan,)),
    _Range(
        ("mechanism.noise_multiplier", "mechanism.sum_noise_multiplier"),
        1 / _MAX_SQUARABLE,
        _MAX_SQUARABLE,
        (0,),
    ),
    _Range(
        (
            "mechanism.server.learning_rates",
            "running.scores",
            "running.signals",
        ),
        -_MAX_SQUARABLE,
        _MAX_SQUARABLE,
    ),
    _Range(("mechanism.server.momentum",), 0, math.nextafter(1, 0)),
    # No column has a norm above 1.
    _Range(("mechanism.strategy",), -1.001, 1.001),
    # Rows have the norm 1, but for the error of a sketch.
    _Range(("correlation.factor",), -1.1, 1.1),
    _Range(("running.planned",), 1 / _MAX_SQUARABLE, _MAX_SQUARABLE),
    _Range(("",), 0, _MAX_SQUARABLE),
)

# Values without a range.
_ANY_RANGE = ("metrics", "design.settings", "clients.ids")


def _check_range(name: str, value: Any) -> None:
    """Raises if a number in ``value`` is outside the range of values with this name."""
    if isinstance(value, dict):
        value = [item for item in value.values() if isinstance(item, int)]
    elif not isinstance(value, int | float | np.ndarray):
        return
    numbers = np.asarray(value, np.float64)
    allowed = next(
        entry for entry in _RANGES if name.startswith(entry.prefixes)
    )
    fits = (numbers >= allowed.low) & (numbers <= allowed.high)
    fits |= np.isin(numbers, allowed.further)
    if np.isnan(allowed.further).any():
        fits |= np.isnan(numbers)
    if not fits.all():
        further = "".join(f" or {number}" for number in allowed.further)
        raise_invalid(
            name,
            numbers[~fits].flat[0],
            f"in [{allowed.low}, {allowed.high}]{further}",
        )
