"""What a value of a record's file may be, by its name: kinds, ranges and lengths.

`AuditRecord` checks that its values fit together; here stands what a file may hold at all, so that
an edited one is refused by the name of the field and not by an error somewhere in a report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np

from fl_epe.canaries import CanaryKind
from fl_epe.checks import LARGEST

_ROUNDING = 1e-3  # of a cosine, computed in float32
_PLANNED = 10_000  # more participations than rounds: those of a run that ended early
_LARGEST = 1e100  # of what is squared
_FLOAT32 = 1e46  # no length of float32 is larger, and 0 alone is below its inverse
_SIDES = ("observed", "unobserved")
_OF_THE_END = ("_final", "_displacement")  # NaN where the final model is
_COSINES = {
    f"{side}{of}": 1 if of in (*_OF_THE_END, "_canary_part") else 2
    for side in _SIDES
    for of in ("", *_OF_THE_END, "_delta", "_residual", "_canary_sum", "_canary_part")
}
# Lengths, which cannot be negative; those that scorers promise to be finite.
_NORMS = {
    "mean_norms": True,
    "delta_norms": False,
    "residual_norms": True,
    "canary_sum_norms": True,
}
_PER_ROUND = {"clip_norms": False, "contributions": False}
_IDS = (*(f"{side}_ids" for side in _SIDES), "client_ids", "client_offsets")
_INCLUSIONS = ("fixed", "coin")


def check_values(values: Mapping[str, Any]) -> None:
    """Raise a `ValueError` that names the first value that cannot be one of a record."""
    for name, value in values.items():
        _check_of(name)(name, value)
    if math.isfinite(values.get("final_norm", math.nan)):
        for name in (f"{side}{of}" for side in _SIDES for of in _OF_THE_END):
            if name in values and np.any(np.isnan(values[name])):
                raise ValueError(f"Expected {name} to be finite, as the final model is")
    rounds = np.shape(values["observed"])[0]
    _check_offsets(values, rounds)
    often = values.get("canary_participations", 0)
    if often > rounds + _PLANNED:
        raise ValueError(
            f"Expected canary_participations={often:.6g} to be possible in {rounds} rounds"
        )
    rates = values.get("server", {}).get("learning_rates")
    if rates is not None and len(rates) != rounds:
        raise ValueError(f"Expected server.learning_rates of length {len(rates)} to be {rounds}")


def _check_of(name: str) -> Callable[[str, Any], None]:
    if name in _COSINES:
        return _cosines
    if name in _NORMS or name in _PER_ROUND:
        return _lengths
    if name in _IDS or name == "absent":
        return _whole_numbers
    return _CHECKS.get(name, _anything)


def _anything(name: str, value: Any) -> None:
    """A name that this version does not know, and does not read."""


def _array(name: str, value: Any, kinds: str, axes: int) -> None:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
        found = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(f"Expected {name} to be an array of {_WORDS[kinds]}, found {found}")
    if value.ndim != axes:
        raise ValueError(f"Expected {name}.shape={value.shape} to have {axes} axes")


_WORDS = {"f": "real numbers", "i": "whole numbers", "b": "true and false", "biuf": "numbers"}


def _cosines(name: str, value: Any) -> None:
    _array(name, value, "f", _COSINES[name])
    known = value[~np.isnan(value)] if name.endswith(_OF_THE_END) else value
    if not np.all(np.abs(known) <= 1 + _ROUNDING):  # neither is NaN
        raise ValueError(f"Expected {name} to be finite and in [-1, 1], as cosines are")


def _lengths(name: str, value: Any) -> None:
    _array(name, value, "f", 1)
    if np.any(value < 0) or (_NORMS.get(name) and not np.all(np.isfinite(value))):
        raise ValueError(f"Expected {name} to be lengths >= 0")
    known = value[np.isfinite(value) & (value > 0)]
    if not np.all((known >= 1 / _FLOAT32) & (known <= _FLOAT32)):
        raise ValueError(f"Expected {name} to be lengths that float32 can have")


def _whole_numbers(name: str, value: Any) -> None:
    _array(name, value, "i", 1)
    if name == "absent" and np.any(value < 0):
        raise ValueError(f"Expected {name} to be counts >= 0, found {value.min()}")


def _presence(name: str, value: Any) -> None:
    _array(name, value, "b", 2)


def _weights(name: str, value: Any) -> None:
    _array(name, value, "f", 2)
    if not np.all((value >= 0) & (value <= _LARGEST)):
        raise ValueError(f"Expected {name} to be finite and >= 0")


def _metrics(name: str, value: Any) -> None:
    for key, series in value.items():
        _array(f"metrics.{key[:40]}", series, "biuf", 1)
    for names in (_EVALUATED, _TRAINED):
        if len(lengths := {len(value[key]) for key in names if key in value}) > 1:
            raise ValueError(f"Expected metrics {', '.join(names)} of one length, found {lengths}")


_EVALUATED = ("eval_round", "eval_loss", "eval_accuracy")
_TRAINED = ("train_loss", "train_accuracy", "unclipped", "cohort")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _number(name: str, value: Any) -> None:
    if not _is_number(value) or value < 0:
        raise ValueError(f"Expected {name}={value!r:.40} to be a number >= 0")


def _positive(name: str, value: Any) -> None:
    if not _is_number(value) or value <= 0:
        raise ValueError(f"Expected {name}={value!r:.40} to be a number > 0")


def _cohort_size(name: str, value: Any) -> None:
    """Of a deployment nobody may know it."""
    if not (isinstance(value, float) and math.isnan(value)):
        _positive(name, value)
        if not 1 / _FLOAT32 <= value <= _FLOAT32:
            raise ValueError(f"Expected {name}={value!r:.40} to be a mean number of clients")


def _length(name: str, value: Any) -> None:
    """A norm, which of a model that diverged may be infinite or unknown."""
    if isinstance(value, float) and (math.isnan(value) or value == math.inf):
        return
    _number(name, value)
    if value and not 1 / _FLOAT32 <= value <= _FLOAT32:
        raise ValueError(f"Expected {name}={value!r:.40} to be a length that float32 can have")


def _optional_length(name: str, value: Any) -> None:
    if value is not None:
        _length(name, value)


def _multiplier(name: str, value: Any) -> None:
    if value is None:
        return
    _number(name, value)
    if value and not 1 / _LARGEST <= value <= _LARGEST:  # its square is a number, too
        raise ValueError(f"Expected {name}={value!r:.40} to be 0, or from 1e-100 to 1e100")


def _count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**53:
        raise ValueError(f"Expected {name}={value!r:.40} to be a whole number >= 1")


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError(f"Expected {name}={value!r:.40} to be a text")


def _inclusion(name: str, value: Any) -> None:
    if value not in _INCLUSIONS:
        raise ValueError(f"Expected {name}={value!r:.40} to be one of {_INCLUSIONS}")


def _canary_kind(name: str, value: Any) -> None:
    if value not in get_args(CanaryKind):
        kinds = get_args(CanaryKind)
        raise ValueError(f"Expected {name}={value!r:.40} to be one of {kinds}")


def _texts(name: str, value: Any) -> None:
    if not isinstance(value, list) or any(type(text) is not str for text in value):
        raise ValueError(f"Expected {name}={value!r:.40} to be a list of texts")


def _table(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"Expected {name}={value!r:.40} to be a table")


def _versions(name: str, value: Any) -> None:
    _table(name, value)
    for key, version in value.items():
        _text(f"{name}.{key[:40]}", version)


def _counts(name: str, value: Any) -> None:
    _table(name, value)
    for key, count in value.items():
        if type(count) is not int or not 0 <= count <= LARGEST:
            raise ValueError(f"Expected {name}.{key[:40]}={count!r:.40} to be a number of times")


def _seeds(name: str, value: Any) -> None:
    _table(name, value)
    for key, seed in value.items():
        if seed is not None and (type(seed) is not int or seed < 0):
            raise ValueError(f"Expected {name}.{key[:40]} to be a whole number >= 0 or null")


_SERVER_NUMBERS = ("learning_rate", "momentum", "beta1", "beta2", "epsilon")


def _moments(name: str, value: Any) -> None:
    _array(name, value, "f", 1)
    if not np.all(np.isfinite(value)):
        raise ValueError(f"Expected {name} to be finite")


def _histograms(name: str, value: Any) -> None:
    _array(name, value, "i", 2)
    if np.any(value < 0) or not np.all(value.sum(axis=1) > 0):
        raise ValueError(f"Expected {name} to count some scores for each statistic")


def _server(name: str, value: Any) -> None:
    _table(name, value)
    _text("server.name", value.get("name", ""))
    for key, number in value.items():
        if key == "learning_rates":
            if not isinstance(number, list) or not all(map(_is_number, number)):
                raise ValueError("Expected server.learning_rates to be a list of numbers")
        elif key in _SERVER_NUMBERS:
            _number(f"server.{key}", number)
    if value.get("name") == "sgd":
        rates = {"learning_rate", "learning_rates"} & value.keys()
        if not rates or not 0 <= value.get("momentum", -1) < 1:
            raise ValueError("Expected server to have a learning_rate and a momentum in [0, 1)")


# What the report says of a run's settings, where they say it.
_SAID: dict[str, Callable[[str, Any], None]] = {
    "task": _text,
    "participation": _text,
    "caveat": _text,
    "client_participations": _number,
    "chance_accuracy": _number,
    "chance_loss": _number,
    "max_share": _number,
    "not_measured": _text,
    "plan": _texts,
    "doubts": _texts,
    "heaviest_share": _number,
    "heaviest_canary_share": _number,
    "arrays_left_out": _texts,
    "noise_is_for": _number,
    "clients": _number,
}


def _config(name: str, value: Any) -> None:
    _table(name, value)
    for key, check in _SAID.items():
        if value.get(key) is not None:
            check(f"{name}.{key}", value[key])


def _run(name: str, value: Any) -> None:
    _table(name, value)
    for key in ("started", "ended"):
        if value.get(key) is not None:
            _text(f"{name}.{key}", value[key])
    if value.get("commands") is not None:
        _texts(f"{name}.commands", value["commands"])


_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "dim": _count,
    "delta": _positive,
    "presence": _presence,
    "metrics": _metrics,
    "final_norm": _length,
    "displacement_norm": _length,
    "canary_part_norm": _optional_length,
    "cohort_size": _cohort_size,
    "noise_multiplier": _multiplier,
    "sum_noise_multiplier": _multiplier,
    "participation": _text,
    "canary_participations": _number,
    "server": _server,
    "inclusion": _inclusion,
    "canary_weights": _weights,
    "canary_kind": _canary_kind,
    "config": _config,
    "seeds": _seeds,
    "versions": _versions,
    "faults": _texts,
    "null_statistics": _texts,
    "null_means": _moments,
    "null_deviations": _moments,
    "null_counts": _histograms,
    "fault_counts": _counts,
    "run": _run,
}


def _check_offsets(values: Mapping[str, Any], rounds: int) -> None:
    offsets, ids = values.get("client_offsets"), values.get("client_ids")
    if offsets is None or ids is None:
        return
    fits = len(offsets) == rounds + 1 and offsets[0] == 0 and offsets[-1] == len(ids)
    if not fits or np.any(np.diff(offsets) < 0):
        raise ValueError(
            f"Expected client_offsets to rise from 0 to {len(ids)} in {rounds + 1} steps"
        )
