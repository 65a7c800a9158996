"""Checks of arguments that several modules share.

Each raises an `ArgumentError` that names the argument, its value and the allowed values.

Examples:
    >>> check_probability("delta", 2.0)
    Traceback (most recent call last):
    fl_epe.checks.ArgumentError: Expected delta=2.0 in (0, 1).
"""

import contextlib
import dataclasses
import difflib
import math
import numbers
import re
import sys
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

Booleans = NDArray[np.bool_]
Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Integers = NDArray[np.int64]
Reals = NDArray[np.floating]
Vector = Reals
NamedArrays = dict[str, NDArray[Any]]
"""The content of an archive or a checkpoint."""

# The largest integer of NumPy's int64.
LARGEST = 2**63 - 1

# The largest number of characters of a value in a message; a value from a file may have more.
_MAX_SHOWN = 400


class ArgumentError(ValueError):
    """An argument has an invalid value.

    The error stores names and values separately from the text, so that the command line can
    write ``--clip-norm`` instead of ``clip_norm``:

        >>> error = ArgumentError("Expected {low} < {high}.", low=3, high=2)
        >>> str(error)
        'Expected low=3 < high=2.'
        >>> error.message({"low": "--low", "high": "--high"})
        'Expected --low=3 < --high=2.'

    Attributes:
        text: the message, with an argument's name in braces in place of its name and value.
        values: the arguments' values by name.
    """

    def __init__(self, text: str, **values: Any) -> None:
        self.text = text
        self.values = values
        super().__init__(self.message())

    def message(
        self,
        options: Mapping[str, str] | None = None,
        unfilled: Collection[str] = (),
    ) -> str:
        """The message with names and values.

        Args:
            options: the typed form of a name, such as "--clip-norm", by the name. An option
                without a value is shown by its name alone.
            unfilled: names that stay in braces.
        """

        def fill(match: re.Match[str]) -> str:
            name = match[1]
            if name not in self.values or name in unfilled:
                return match[0]
            value = self.values[name]
            if options is not None:
                name = options.get(name, name)
                if value is None:
                    return name
            text = str(value)
            if isinstance(value, str | Path):
                text = repr(text)
            if len(text) > _MAX_SHOWN:
                text = f"{text[:_MAX_SHOWN]}…"
            return f"{name}={text}"

        return re.sub(r"{([^{}]+)}", fill, self.text)


@contextlib.contextmanager
def rename_arguments(**names: str) -> Iterator[None]:
    """In this context, rename the arguments in an `ArgumentError`: ``old_name="new_name"``.

    So an error of a function that is called names the arguments of its caller.
    """
    try:
        yield
    except ArgumentError as error:
        text = error.text
        for old, new in names.items():
            text = text.replace(f"{{{old}}}", f"{{{new}}}")
        values = {
            names.get(name, name): value for name, value in error.values.items()
        }
        raise ArgumentError(text, **values) from error


@contextlib.contextmanager
def argument_context(name: str, value: str, *outside: str) -> Iterator[None]:
    """In this context, an error about a part of an argument's text begins with the argument.

    Args:
        name: name of the argument.
        value: the argument's text.
        outside: names of other arguments, which are not part of the text.
    """
    try:
        yield
    except ArgumentError as error:
        if name in error.values:
            raise
        values = {
            argument: error.values[argument]
            for argument in outside
            if argument in error.values
        }
        text = error.message(unfilled=outside)
        text = f"In {{{name}}}: {text[0].lower()}{text[1:]}"
        raise ArgumentError(text, **{name: value}, **values) from error


def did_you_mean(text: str, words: Collection[str]) -> str:
    """A question with the words that were probably meant, or an empty text.

    Examples:
        >>> did_you_mean("--noise", ["--unobserved", "--noise-multiplier"])
        ' (did you mean --noise-multiplier?)'
        >>> did_you_mean("x", ["--unobserved"])
        ''
    """
    longer = sorted(name for name in words if name.startswith(text))
    close = longer[:3] or difflib.get_close_matches(text, words, n=1)
    if close:
        return f" (did you mean {' or '.join(close)}?)"
    return ""


def raise_invalid(name: str, value: Any, wanted: str) -> NoReturn:
    """Raise an `ArgumentError`: "Expected NAME=VALUE WANTED."."""
    raise ArgumentError(f"Expected {{{name}}} {wanted}.", **{name: value})


def check_types(settings: Any, *, largest: float = LARGEST) -> None:
    """Check that each field of a dataclass has a value of its type, see `checked_type`.

    A field of type ``int`` whose value is a whole number as a float is set to the ``int``.

    Args:
        settings: a dataclass, also a frozen one.
        largest: largest absolute value of an integer; a field named ``seed`` may be larger.

    Raises:
        ArgumentError: with the name of the field.
    """
    hints = typing.get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        limit = math.inf if field.name == "seed" else largest
        checked = checked_type(
            field.name, value, hints[field.name], largest=limit
        )
        object.__setattr__(settings, field.name, checked)


def checked_type(
    name: str, value: Any, kind: Any, *, largest: float = LARGEST
) -> Any:
    """Check that ``value`` is of this type, and return it.

    For the type ``int``, a whole number as a float is returned as an ``int``. Types that are
    checked: ``int``, ``float``, ``str``, ``bool``, and a ``Literal`` of words, which may be in
    a union with ``float`` or ``None``. A value of any other type is returned unchanged.

    Raises:
        ArgumentError: for another type, a number that is not finite, or an integer whose absolute
            value is above ``largest``.
    """
    kinds = parts_of(kind)
    words = tuple(part for part in kinds if isinstance(part, str))
    if value is None and types.NoneType in kinds:
        return value
    if isinstance(value, str) and value in words:
        return value
    if words and float not in kinds:
        raise_invalid(name, value, f"to be one of {words}")
    if words and isinstance(value, str):
        raise_invalid(name, value, f"to be a number or one of {words}")
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    is_finite = is_number and abs(value) <= sys.float_info.max
    if int in kinds:
        if not is_finite or value != int(value):
            raise_invalid(name, value, "to be an integer")
        if abs(int(value)) > largest:
            raise_invalid(name, value, f"<= {largest}")
        if isinstance(value, numbers.Integral):
            return value
        return int(value)
    if float in kinds and not is_finite:
        raise_invalid(name, value, "to be a finite number")
    if kinds[0] is str and not isinstance(value, str):
        raise_invalid(name, value, "to be text")
    if kinds[0] is bool and not isinstance(value, bool):
        raise_invalid(name, value, "to be true or false")
    return value


def parts_of(kind: Any) -> list[Any]:
    """The types of a union, with the words of a ``Literal`` in its place."""
    if typing.get_origin(kind) in (
        types.UnionType,
        typing.Union,
        typing.Literal,
    ):
        return [
            part for inner in typing.get_args(kind) for part in parts_of(inner)
        ]
    return [kind]


def check_scores(
    name: str, values: ArrayLike, *, ranks: bool = False
) -> Floats:
    """Check that there are at least two scores, all finite; return them as float64, shape (k,).

    With ``ranks``, where only the order of scores counts, they may be infinite, but not NaN.
    """
    scores = np.asarray(values, np.float64)
    if scores.ndim != 1 or scores.size < 2:
        raise_invalid(f"{name}.shape", scores.shape, "to be (k,) with k >= 2")
    bad = scores[np.isnan(scores) if ranks else ~np.isfinite(scores)]
    if bad.size:
        wanted = "a number" if ranks else "finite"
        raise_invalid(name, bad[0], f"to be {wanted} ({bad.size} such values)")
    return scores


def any_infinite(*groups: Floats | None) -> bool:
    """Whether a value of these groups is infinite."""
    return any(
        bool(np.isinf(group).any()) for group in groups if group is not None
    )


def all_equal(values: Floats) -> bool:
    """Whether all of these values, at least one, are equal; they may be infinite."""
    return bool(values.min() == values.max())


def check_probability(name: str, value: float) -> None:
    """Raise an `ArgumentError` unless ``value`` is in (0, 1)."""
    if not 0 < value < 1:
        raise_invalid(name, value, "in (0, 1)")


# With a noise multiplier between these bounds, no result overflows.
LEAST_NOISE = 1e-6
MOST_NOISE = 1e6


def check_noise_multiplier(name: str, value: float) -> None:
    """Raise an `ArgumentError` unless ``value`` is a noise multiplier; 0 is no noise."""
    if value < 0 or not math.isfinite(value):
        raise_invalid(name, value, "in [0, inf)")
    if value and not LEAST_NOISE <= value <= MOST_NOISE:
        wanted = f"in [{LEAST_NOISE:g}, {MOST_NOISE:g}], or 0 for no noise"
        raise_invalid(name, value, wanted)


def check_not_negative(name: str, value: float) -> None:
    """Raise an `ArgumentError` unless ``value`` is at least 0."""
    if not value >= 0:
        raise_invalid(name, value, ">= 0")


def check_fraction(name: str, value: float) -> None:
    """Raise an `ArgumentError` unless ``value`` is in [0, 1)."""
    if not 0 <= value < 1:
        raise_invalid(name, value, "in [0, 1)")


def check_positive(name: str, value: float) -> None:
    """Raise an `ArgumentError` unless ``value`` is positive and finite."""
    if not 0 < value < math.inf:
        raise_invalid(name, value, "in (0, inf)")


def check_rate(name: str, value: float) -> None:
    """Raise an `ArgumentError` unless ``value`` is in (0, 1]."""
    if not 0 < value <= 1:
        raise_invalid(name, value, "in (0, 1]")


def check_count(name: str, value: float) -> None:
    """Raise an `ArgumentError` unless ``value`` is a whole number >= 1."""
    if not 1 <= value < math.inf or value != int(value):
        raise_invalid(name, value, "to be an integer >= 1")


def tail_sums(values: Floats) -> Floats:
    """The sum of each value and all values after it, and a final 0, shape ``(n + 1,)``."""
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)


def finite(value: float | None) -> float | None:
    """``value``, or ``None`` if it is infinite or NaN, which JSON cannot represent."""
    if value is not None and math.isfinite(value):
        return value
    return None
