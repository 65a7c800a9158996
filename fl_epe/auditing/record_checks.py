"""What a record's file may hold: each value is of its field's type, and in its range.

`AuditRecord` checks that its values fit together; here is what a file may hold at all, so that an
edited one is refused by the name of the value and not by an error somewhere in a report.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_epe.checks import ArgumentError, raise_invalid

if TYPE_CHECKING:
    from fl_epe.auditing.record import AuditRecord

_ROUNDING = 1e-3  # of a cosine, computed in float32
_PLANNED = 10_000  # more participations than rounds: those of a run that ended early
_LARGEST = 1e100  # of what is squared
_FLOAT32 = 1e46  # no length of float32 is larger, and 0 alone is below its inverse
_SIDES = ("observed", "unobserved")
_SERIES = (
    ("eval_round", "eval_loss", "eval_accuracy"),
    ("train_loss", "train_accuracy", "unclipped", "cohort"),
)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _kinds(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if union else (hint,)


def fields_of(kind: type) -> Iterator[tuple[str, type | None]]:
    """The fields of a part of a record, each with its type if that is a part as well."""
    for name, hint in _hints(kind).items():
        parts = [k for k in _kinds(hint) if isinstance(k, type) and dataclasses.is_dataclass(k)]
        yield name, parts[0] if parts else None


def part_of(kind: type, values: Mapping[str, Any], above: str = "") -> Any:
    """A part of a record from values by name, each of the type of its field.

    Names that the part does not have are left out.

    Raises:
        ArgumentError: for a value of another type, or one that is missing.
    """
    given: dict[str, Any] = {}
    for name, part in fields_of(kind):
        full, hint = f"{above}{name}", _hints(kind)[name]
        if part is not None and values.get(full, ...) is not None:
            if hint is part or any(other.startswith(f"{full}.") for other in values):
                given[name] = part_of(part, values, f"{full}.")
        elif full in values:
            given[name] = _checked(full, values[full], hint)
    needed = [f.name for f in dataclasses.fields(kind) if f.default is f.default_factory]
    if missing := [f"{above}{name}" for name in needed if name not in given]:
        raise ArgumentError(f"Expected it to hold {missing[0]}: not a whole record.")
    return kind(**given)


_WORDS = {"f": "real numbers", "i": "whole numbers", "b": "true and false", "biuf": "numbers"}
_PLAIN: dict[Any, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda value: isinstance(value, bool), "to be true or false"),
    str: (lambda value: isinstance(value, str), "to be a text"),
    int: (lambda value: type(value) is int, "to be a whole number"),
    float: (
        lambda value: (
            (type(value) in (int, float) and abs(value) < 1e300)
            or value != value
            or value == math.inf
        ),
        "to be a number",
    ),
    types.NoneType: (lambda value: value is None, "to be null"),
    Any: (lambda value: True, ""),
}


def _checked(name: str, value: Any, hint: Any) -> Any:
    """``value`` if it is of this type; a list as a tuple, where that is the type."""
    kinds = _kinds(hint)
    if value is None and types.NoneType in kinds:
        return None
    kind = kinds[0]
    arguments, origin = typing.get_args(kind), typing.get_origin(kind)
    if origin is np.ndarray:
        (scalar,) = typing.get_args(arguments[1])
        _check_array(name, value, "biuf" if scalar is Any else np.dtype(scalar).kind)
    elif origin is typing.Literal:
        if value not in arguments:
            raise_invalid(name, value, f"to be one of {arguments}")
    elif origin is tuple:
        if not isinstance(value, list):
            raise_invalid(name, value, "to be a list")
        return tuple(_checked(name, each, arguments[0]) for each in value)
    elif origin is dict:
        if not isinstance(value, dict):
            raise_invalid(name, value, "to be a table")
        return {key: _checked(f"{name}.{key[:40]}", v, arguments[1]) for key, v in value.items()}
    elif not any(_PLAIN[each][0](value) for each in kinds):
        raise_invalid(name, value, _PLAIN[kind][1])
    return value


def _check_array(name: str, value: Any, kinds: str) -> None:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
        found = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise ArgumentError(f"Expected {name} to be an array of {_WORDS[kinds]}, found {found}.")


def check_values(record: AuditRecord) -> None:
    """Raise an `ArgumentError` that names the first value of a record that is out of range."""
    values = record.by_name()
    for name, value in values.items():
        check, wanted = _RANGES.get(name, (None, ""))
        if check is not None and value is not None and not np.all(check(value)):
            if isinstance(value, np.ndarray | dict):
                raise ArgumentError(f"Expected {name} {wanted}.")
            raise_invalid(name, value, wanted)
    if math.isfinite(record.norms.final):
        for name in (f"{side}.displacement" for side in _SIDES):
            if np.any(np.isnan(values[name])):
                raise ArgumentError(f"Expected {name} to be finite, as the final model is.")
    _check_series(record)
    server = record.mechanism.server
    if server.linear and server.learning_rates is None:
        raise ArgumentError("Expected mechanism.server.learning_rates, as the server is sgd.")
    often = record.mechanism.canary_participations
    if often > record.rounds + _PLANNED:
        wanted = f"to be possible in {record.rounds} rounds"
        raise_invalid("mechanism.canary_participations", often, wanted)
    ids, offsets = record.clients.ids, record.clients.offsets
    if ids is not None and offsets is not None:
        fits = np.shape(offsets) == (record.rounds + 1,) and np.ndim(ids) == 1
        if not fits or offsets[0] or offsets[-1] != len(ids) or np.any(np.diff(offsets) < 0):
            steps = f"to rise from 0 to {len(ids)} in {record.rounds + 1} steps"
            raise ArgumentError(f"Expected clients.offsets {steps}.")


def _check_series(record: AuditRecord) -> None:
    for name, series in record.metrics.items():
        if series.ndim != 1:
            raise_invalid(f"metrics.{name[:40]}.shape", series.shape, "to have one axis")
    for names in _SERIES:
        found = {len(record.metrics[name]) for name in names if name in record.metrics}
        if len(found) > 1:
            listed = ", ".join(names)
            raise ArgumentError(f"Expected metrics {listed} of one length, found {found}.")


_Range = tuple[Callable[[Any], Any], str]


def _is_length(value: Any) -> Any:
    """Of a vector of float32; a model that diverged has an infinite or unknown one."""
    value = np.asarray(value)
    known = (value >= 1 / _FLOAT32) & (value <= _FLOAT32)
    return known | (value == 0) | np.isnan(value) | (value == np.inf)


def _is_finite_length(value: Any) -> Any:
    return np.isfinite(value) & _is_length(value)


_COSINE: _Range = (
    lambda value: np.abs(value) <= 1 + _ROUNDING,
    "to be finite and in [-1, 1], as cosines are",
)
_COSINE_AT_THE_END: _Range = (lambda value: ~(np.abs(value) > 1 + _ROUNDING), "to be in [-1, 1]")
_LENGTH: _Range = (_is_length, "to be a length >= 0 that float32 can have")
_FINITE_LENGTH: _Range = (_is_finite_length, "to be a finite length >= 0 that float32 can have")
_MULTIPLIER: _Range = (
    lambda value: value == 0 or 1 / _LARGEST <= value <= _LARGEST,  # its square is a number, too
    "to be 0, or from 1e-100 to 1e100",
)
_COUNTS: _Range = (lambda value: value >= 0, "to be counts >= 0")
_NOT_NEGATIVE: _Range = (lambda value: 0 <= value < math.inf, "to be a number >= 0")
_RANGES: dict[str, _Range] = {
    **{f"{s}.{name}": _COSINE for s in _SIDES for name in ("means", "deltas", "residuals", "sums")},
    **{f"{side}.part": _COSINE for side in _SIDES},
    **{f"{s}.{name}": _COSINE_AT_THE_END for s in _SIDES for name in ("final", "displacement")},
    **{f"norms.{name}": _FINITE_LENGTH for name in ("means", "residuals", "sums")},
    **{f"norms.{name}": _LENGTH for name in ("deltas", "final", "displacement", "part")},
    **{f"mechanism.{name}": _LENGTH for name in ("clip_norms", "contributions")},
    **{f"mechanism.{name}": _MULTIPLIER for name in ("noise_multiplier", "sum_noise_multiplier")},
    "dim": (lambda value: value < 2**53, "to be a whole number < 2**53"),
    "mechanism.cohort_size": (  # of a deployment nobody may know it
        lambda value: value != value or 1 / _FLOAT32 <= value <= _FLOAT32,
        "to be a mean number of clients > 0",
    ),
    "mechanism.canary_participations": _NOT_NEGATIVE,
    "mechanism.canary_weights": (
        lambda value: (value >= 0) & (value <= _LARGEST),
        "to be finite and >= 0",
    ),
    "mechanism.inclusion": (lambda value: value in ("fixed", "coin"), "to be 'fixed' or 'coin'"),
    "mechanism.server.learning_rates": (np.isfinite, "to be finite"),
    "mechanism.server.momentum": (lambda value: 0 <= value < 1, "in [0, 1)"),
    "clients.absent": _COUNTS,
    **{f"null.{name}": (np.isfinite, "to be finite") for name in ("means", "deviations")},
    "running.gains": (lambda value: np.abs(value) <= _LARGEST, "to be finite"),
    "running.energies": (lambda value: (value >= 0) & (value <= _LARGEST), "to be finite and >= 0"),
    "running.widths": (lambda value: (value >= 1) & (value <= _LARGEST), "to be finite and >= 1"),
    "running.planned": (lambda value: value > 0, "to be a number > 0"),
    "null.counts": (
        lambda value: np.all(value >= 0) and np.all(value.sum(axis=1) > 0),
        "to count some scores for each statistic",
    ),
    **{
        f"design.{name}": _NOT_NEGATIVE
        for name in ("noise_is_for", "chance_accuracy", "chance_loss", "num_clients")
    },
    **{
        f"findings.{name}": _NOT_NEGATIVE
        for name in ("client_participations", "heaviest_share", "heaviest_canary_share")
    },
    "provenance.seeds": (
        lambda value: all(seed is None or seed >= 0 for seed in value.values()),
        "to be whole numbers >= 0 or null",
    ),
    "provenance.fault_counts": (
        lambda value: all(0 <= count < 2**63 for count in value.values()),
        "to be numbers of times",
    ),
}
