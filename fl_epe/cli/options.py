"""Command-line options from the fields of a dataclass.

Each field becomes an option: its name with dashes, its type and its default. The help is the
field's text in the section "Attributes:" of the class's docstring. What nobody typed stays
``None``, so that `given` returns only what somebody typed:

    >>> @dataclasses.dataclass
    ... class Baking:
    ...     '''Attributes:
    ...     loaves: how many.
    ...     '''
    ...
    ...     loaves: int = 1
    >>> parser = argparse.ArgumentParser()
    >>> add_options(parser, Baking)
    >>> given(parser.parse_args(["--loaves", "3"]), Baking)
    {'loaves': 3}
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import math
import re
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

from fl_epe.checks import literal_words
from fl_epe.cli.errors import BAD_INPUT, on_one_line

_METAVARS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}
_DIGITS = 100

DEBUG = "if the command fails, keep the traceback in a file and say where it is"
"""The help of ``--debug``."""


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviated options, and says what is wrong in one line."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more | {"allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        """Print the message and end with status 2."""
        self.exit(BAD_INPUT, f"fl-epe: error: {on_one_line(message)} (see {self.prog} --help)\n")


def no_other_name(name: str) -> None:
    """The ``spell`` of a command whose options are called as in Python."""


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    command: Callable[[argparse.Namespace], int],
    *,
    summary: str,
    description: str,
    examples: str = "",
    spell: Callable[[str], str | None] = no_other_name,
) -> argparse.ArgumentParser:
    """Add a command, which is called with what was typed; its parser takes the options.

    Args:
        commands: to which it is added.
        name: what to type.
        command: what to call.
        summary: a few words for the list of commands.
        description: for the command's own help.
        examples: for the end of that help.
        spell: the options that stand for names in errors that are not called as an option is.
    """
    parser = commands.add_parser(
        name,
        help=summary,
        description=textwrap.fill(description, 79),
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=command, parser=parser, spell=spell)
    parser.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,  # it may also stand before the command
        help=DEBUG,
    )
    return parser


def add_options(
    parser: argparse._ActionsContainer,
    settings: type,
    leave_out: Collection[str] = (),
    *,
    required: bool = True,
    prefix: str = "",
) -> None:
    """Add an option for each field of the dataclass ``settings``.

    Types: ``int``, ``float``, ``str`` and ``Path``, a tuple of one of them (several values),
    ``Literal`` (a choice), ``float | Literal`` (a number or a word) and ``bool`` (a flag).
    Fields that are mappings are left out.

    Args:
        parser: a parser, or a group of its options.
        settings: a dataclass, whose docstring has a section "Attributes:" or "Args:".
        leave_out: names of fields that get no option.
        required: whether the parser insists on fields that have no default.
        prefix: before the names of the parser's attributes, which are the fields' names.
    """
    texts, kinds = _texts(settings), typing.get_type_hints(settings)
    for field in dataclasses.fields(settings):
        kind = _without_none(kinds[field.name])
        if field.name not in leave_out and typing.get_origin(kind) is not Mapping:
            how = _how_to_read(kind, default=field.default)
            how["help"] = _help(texts.get(field.name), field.default)
            if required and field.default is dataclasses.MISSING:
                how["required"] = True
            option = "--" + field.name.replace("_", "-")
            parser.add_argument(option, dest=prefix + field.name, default=None, **how)


def given(arguments: argparse.Namespace, settings: type, prefix: str = "") -> dict[str, Any]:
    """The fields of ``settings`` that were typed, by name; ``prefix`` as in `add_options`."""
    names = (field.name for field in dataclasses.fields(settings))
    values = {name: getattr(arguments, prefix + name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _texts(settings: type) -> dict[str, str]:
    """What the docstring says of each attribute; nothing where docstrings are stripped."""
    text = inspect.cleandoc(settings.__doc__ or "")
    _, _, section = text.partition("Attributes:\n" if "Attributes:\n" in text else "Args:\n")
    found = re.findall(r"^(?: {4})?(\w+): (.+(?:\n {5,}.+)*)", section, re.M)
    return {name: " ".join(text.split()) for name, text in found}


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) not in (types.UnionType, typing.Union):
        return kind
    inner = [part for part in typing.get_args(kind) if part is not types.NoneType]
    return inner[0] if len(inner) == 1 else kind


def readable(kind: Any) -> bool:
    """Whether a value of this type can be typed as an option."""
    kind = _without_none(kind)
    if typing.get_origin(kind) is tuple:
        return readable(typing.get_args(kind)[0])
    return (
        kind is bool
        or kind in READERS
        or typing.get_origin(kind) is typing.Literal
        or bool(_number_or_words(kind))
    )


def _how_to_read(kind: Any, default: Any = None) -> dict[str, Any]:
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction if default is True else "store_true"}
    if typing.get_origin(kind) is typing.Literal:
        return {"choices": typing.get_args(kind)}
    if words := _number_or_words(kind):
        return {"type": _reader_of(words), "metavar": "|".join((_METAVARS[float], *words))}
    if typing.get_origin(kind) is tuple:
        return _how_to_read(typing.get_args(kind)[0]) | {"nargs": "+"}
    return {"type": READERS[kind], "metavar": _METAVARS[kind]}


def _number_or_words(kind: Any) -> tuple[str, ...]:
    """The words of ``float | Literal[...]``; none for another type."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) not in (types.UnionType, typing.Union) or float not in parts:
        return ()
    return tuple(word for part in parts for word in literal_words(part))


def _reader_of(words: tuple[str, ...]) -> Callable[[str], float | str]:
    def number_or_word(text: str) -> float | str:
        if text in words:
            return text
        try:
            return real_number(text)
        except argparse.ArgumentTypeError as error:
            listed = " or ".join(map(repr, words))
            raise argparse.ArgumentTypeError(f"{error}, nor {listed}") from None

    return number_or_word


def whole_number(text: str) -> int:
    """An integer that somebody typed."""
    try:
        return int(text) if len(text) <= _DIGITS else _refuse(text, f"{len(text)} characters long")
    except ValueError:
        return _refuse(text, "not a whole number")


def real_number(text: str) -> float:
    """A finite number that somebody typed."""
    try:
        value = float(text)
    except ValueError:
        return _refuse(text, "not a number")
    return value if math.isfinite(value) else _refuse(text, "not a finite number")


def some_text(text: str) -> str:
    """Text that is not empty."""
    return text or _refuse(text, "empty")


def a_path(text: str) -> Path:
    """A path that is not empty."""
    return Path(some_text(text))


def _refuse(text: str, what: str) -> NoReturn:
    shown = text if len(text) <= _DIGITS else f"{text[:20]}…"
    raise argparse.ArgumentTypeError(f"{shown!r} is {what}")


READERS: dict[Any, Callable[[str], Any]] = {
    int: whole_number,
    float: real_number,
    str: some_text,
    Path: a_path,
}
"""What makes a value of each type from a word of the command line."""


def _help(text: str | None, default: Any) -> str | None:
    """The text for a terminal, with the default unless the text says it."""
    if text is None:
        return None
    plain = text.replace("`", "").replace("%", "%%").removesuffix(".")
    if "(default: " in plain or any(default is no for no in (None, False, dataclasses.MISSING)):
        return plain
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{plain} (default: {shown})"
