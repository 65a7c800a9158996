"""Checks of arguments that several modules share.

Each raises a `ValueError` that names the argument, its value and what is allowed.

Examples:
    >>> check_probability("delta", 2.0)
    Traceback (most recent call last):
    ValueError: Expected delta=2.0 in (0, 1).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import NoneType

import numpy as np
from numpy.typing import ArrayLike, NDArray


def check_scores(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """``values`` as a float64 array of shape ``(k,)``; at least two scores, all finite."""
    scores = np.asarray(values, np.float64)
    if scores.ndim != 1 or scores.size < 2:
        raise ValueError(f"Expected {name}.shape={scores.shape} to be (k,) with k >= 2.")
    bad = scores[~np.isfinite(scores)]
    if bad.size:
        raise ValueError(f"Expected {name} to be finite, got {bad[0]} ({bad.size} such values).")
    return scores


def check_probability(name: str, value: float) -> None:
    """Raise a `ValueError` unless ``value`` is in (0, 1)."""
    if not 0 < value < 1:
        raise ValueError(f"Expected {name}={value} in (0, 1).")


def check_positive(name: str, value: float) -> None:
    """Raise a `ValueError` unless ``value`` is positive and finite."""
    if not 0 < value < math.inf:
        raise ValueError(f"Expected {name}={value} in (0, inf).")


def check_rate(name: str, value: float) -> None:
    """Raise a `ValueError` unless ``value`` is in (0, 1]."""
    if not 0 < value <= 1:
        raise ValueError(f"Expected {name}={value} in (0, 1].")


def check_count(name: str, value: float, most: float = math.inf) -> None:
    """Raise a `ValueError` unless ``value`` is a whole number from 1 to ``most``."""
    if not 1 <= value <= most or value != int(value):
        limit = "" if math.isinf(most) else f" and <= {most}"
        raise ValueError(f"Expected {name}={value} to be an integer >= 1{limit}.")


_MAY_BE = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "None": (NoneType,),
}


def check_types(name: str, values: object, settings: type) -> None:
    """Raise a `ValueError` unless ``values`` are a table of the right types for a dataclass.

    Args:
        name: of the table, for messages.
        values: read from a file; names that ``settings`` does not have are left alone.
        settings: a dataclass of numbers, texts and booleans.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"Expected {name}={values!r:.40} to be a table.")
    for field in dataclasses.fields(settings):
        kinds = str(field.type).split(" | ")
        if field.name not in values or not set(kinds) <= _MAY_BE.keys():
            continue
        value = values[field.name]
        if not any(is_of(value, kind) for kind in kinds):
            words = " or ".join(_WORDS[kind] for kind in kinds)
            raise ValueError(f"Expected {name}.{field.name}={value!r:.40} to be {words}.")


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "None": "nothing",
}


def is_of(value: object, kind: str) -> bool:
    """Whether ``value`` is an "int", "float", "str", "bool" or "None", and no number is absurd."""
    if not isinstance(value, _MAY_BE[kind]) or (isinstance(value, bool) and kind != "bool"):
        return False
    return not isinstance(value, int) or abs(value) <= _LARGEST


_LARGEST = 2**128  # seeds have up to 128 bits
