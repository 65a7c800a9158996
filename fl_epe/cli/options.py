"""The options of a command from the fields of its dataclass, and their help from its docstring.

A field becomes an option with the field's name in dashes, its type, its default and its text in
the section "Attributes:". ``Annotated[..., "FILE"]`` makes a positional argument that help
calls FILE, and `Group` adds the options of another dataclass. `command_from` calls the dataclass
with the typed values:

    >>> @dataclasses.dataclass
    ... class Bake:
    ...     '''Bake bread.
    ...
    ...     Attributes:
    ...         flour: what to bake with.
    ...         loaves: how many.
    ...     '''
    ...
    ...     flour: Annotated[str, "FLOUR"]
    ...     loaves: int = 1
    >>> parser = Parser()
    >>> add_options(parser, Bake)
    >>> command_from(Bake, parser.parse_args(["rye", "--loaves", "3"]))
    Bake(flour='rye', loaves=3)

tyro 1.0.17 was tried in place of this module. Its messages have 6 to 11 lines instead of one,
it prints ``{None}|FLOAT`` instead of ``X``, and it takes 0.14 s more for each command.
"""

import argparse
import contextlib
import dataclasses
import inspect
import json
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from fl_epe.checks import check_types, parts_of
from fl_epe.cli.console import BAD_INPUT
from fl_epe.files import on_one_line

# The heading of a section of a command's docstring.
_HEADING = re.compile(r"\n\n(Attributes|Examples):\n")
# The heading of a section with a text for each name, and the entry of a name: its further lines
# are indented by more than four spaces.
_HEADING_OF_NAMES = re.compile(r"(?:Attributes|Args|Options):\n")
_ENTRY = re.compile(r"^(?: {4})?(\w+): (.+(?:\n {5,}.+)*)", re.M)

Command = TypeVar("Command")

Typed = Mapping[str, Any]
"""The type of a field that is a `Group`: the values of the typed options, by name."""


class Parser(argparse.ArgumentParser):
    """A parser without defaults and abbreviated options, whose errors are one line.

    Attributes:
        names: the typed form of an argument, by its name in Python.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,
        )
        self.names: dict[str, str] = {}

    def error(self, message: str) -> NoReturn:
        """Print the message and end with status 2."""
        line = (
            f"fl-epe: error: {on_one_line(message)} (see {self.prog} --help)\n"
        )
        self.exit(BAD_INPUT, line)


@dataclasses.dataclass(frozen=True)
class Group:
    """Marks a field that holds the typed options of another dataclass.

    Attributes:
        settings: that dataclass, or a function that returns it from the parser and the typed
            words.
        without: fields that get no option.
    """

    settings: type | Callable[[Parser, Sequence[str]], type]
    without: Collection[str] = ()


def add_options(
    parser: Parser, settings: type, words: Sequence[str] = ()
) -> None:
    """Add an option for each field of a dataclass.

    Types: ``int``, ``float``, ``str`` and ``Path``, a tuple of one of them (several values,
    repeatable), ``Literal`` (a choice), ``float | Literal`` (a number or a word), ``bool`` (a flag)
    and ``Mapping`` (NAME=VALUE, repeatable). A field of another type gets no option.

    Args:
        parser: the parser of the command. Its ``names`` has the options that differ from their
            fields' names.
        settings: a dataclass, whose docstring has a section "Attributes:".
        words: the typed words, for a `Group` that depends on them.
    """
    for field in _fields(settings):
        if not isinstance(field.mark, Group):
            _add_option(parser, parser, field)
            continue
        inner = field.mark.settings
        if not isinstance(inner, type):
            inner = inner(parser, words)
        title = (field.text or field.name).removesuffix(".")
        group = parser.add_argument_group(title)
        for inner_field in _fields(inner):
            if inner_field.name not in field.mark.without:
                _add_option(parser, group, inner_field, f"{field.name} ")


@dataclasses.dataclass(frozen=True)
class _Field:
    """A field of a dataclass.

    Attributes:
        name: its name.
        kind: its type.
        mark: what ``Annotated`` adds to the type: a `Group`, or the name of a positional argument
            in help.
        default: its default; ``dataclasses.MISSING`` without one.
        is_needed: whether it has neither a default nor a default factory.
        text: its text in the docstring.
    """

    name: str
    kind: Any
    mark: Any
    default: Any
    is_needed: bool
    text: str | None


def _fields(settings: type) -> Iterator[_Field]:
    """The fields of a dataclass."""
    texts = texts_of(settings)
    hints = typing.get_type_hints(settings, include_extras=True)
    for field in dataclasses.fields(settings):
        kind = hints[field.name]
        mark = None
        if typing.get_origin(kind) is Annotated:
            kind, mark = typing.get_args(kind)
        yield _Field(
            field.name,
            kind,
            mark,
            field.default,
            field.default is field.default_factory is dataclasses.MISSING,
            texts.get(field.name),
        )


def _add_option(
    parser: Parser,
    container: argparse._ActionsContainer,
    field: _Field,
    prefix: str = "",
) -> None:
    """Add the option or the positional argument of a field, if its value can be typed.

    Args:
        parser: the parser of the command, whose ``names`` gets the option's name.
        container: the parser, or the group to which the option is added.
        field: the field, which is not a `Group`.
        prefix: a prefix of the field's name in the parsed arguments.
    """
    arguments = _arguments_for(field.kind, field.default)
    if not arguments:
        return
    arguments["help"] = _help(field.text, field.default)
    if field.mark is None:
        dashed = "--" + field.name.replace("_", "-")
        option = parser.names.setdefault(field.name, dashed)
        arguments["dest"] = prefix + field.name
        arguments["required"] = field.is_needed and not prefix
        container.add_argument(option, **arguments)
        return
    parser.names[field.name] = field.mark
    arguments["metavar"] = field.mark
    if not field.is_needed:
        arguments |= {"nargs": "?", "default": field.default}
    container.add_argument(field.name, **arguments)


def command_from(
    settings: Callable[..., Command], arguments: argparse.Namespace
) -> Command:
    """The command with the typed values; those of a `Group` become a dictionary by name."""
    values: dict[str, Any] = {}
    for destination, value in vars(arguments).items():
        if isinstance(value, list):
            # Pairs of NAME=VALUE, or the values of a tuple.
            value = dict(value) if isinstance(value[0], tuple) else tuple(value)
        name, _, inner_name = destination.partition(" ")
        if inner_name:
            values.setdefault(name, {})[inner_name] = value
        else:
            values[name] = value
    # The namespace also has values of the parser, such as ``debug``.
    fields = inspect.signature(settings).parameters.keys() & values.keys()
    command = settings(**{name: values[name] for name in fields})
    check_types(command)
    return command


def description_of(settings: type) -> tuple[str, str]:
    """A docstring's text before its sections, and its examples, for a terminal."""
    text = inspect.cleandoc(settings.__doc__ or "")
    about, *sections = _HEADING.split(f"\n\n{text}")
    paragraphs = [
        textwrap.fill(_plain(part), 79) for part in about.split("\n\n") if part
    ]
    examples = ""
    for title, section in zip(sections[::2], sections[1::2], strict=True):
        if title == "Examples":
            lines = textwrap.indent(textwrap.dedent(section), "  ")
            examples = f"examples:\n{lines}\n"
    return "\n\n".join(paragraphs), examples


def texts_of(documented: Callable[..., Any]) -> dict[str, str]:
    """The text of each name in the docstring of a function, or of a class and its bases.

    It is empty if Python was started without docstrings (``-OO``).
    """
    texts: dict[str, str] = {}
    items: tuple[Callable[..., Any], ...] = (documented,)
    if isinstance(documented, type):
        items = inspect.getmro(documented)
    for item in reversed(items):
        docstring = inspect.cleandoc(item.__doc__ or "")
        for section in _HEADING_OF_NAMES.split(docstring, maxsplit=1)[1:]:
            for name, text in _ENTRY.findall(section):
                texts[name] = _plain(text)
    return texts


def _plain(text: str) -> str:
    """The text without backquotes and line breaks."""
    return " ".join(text.replace("`", "").split())


def _arguments_for(kind: Any, default: Any = None) -> dict[str, Any]:
    """The arguments of `add_argument` for a type; empty if a value of it cannot be typed."""
    kinds = [part for part in parts_of(kind) if part is not types.NoneType]
    words = tuple(part for part in kinds if isinstance(part, str))
    if kinds[0] is bool:
        # Unless the default is False, there must also be an option with --no-.
        has_negation = default is True or default is None
        action = (
            argparse.BooleanOptionalAction if has_negation else "store_true"
        )
        return {"action": action}
    origin = typing.get_origin(kinds[0])
    if origin is Mapping:
        return {
            "action": "append",
            "type": name_and_value,
            "metavar": "NAME=VALUE",
        }
    if origin is tuple:
        arguments = _arguments_for(typing.get_args(kinds[0])[0])
        if arguments:
            arguments |= {"nargs": "+", "action": "extend"}
        return arguments
    if words and float in kinds:
        return {
            "type": _number(float, words),
            "metavar": "|".join(("X", *words)),
        }
    if words:
        return {"choices": words}
    return _READERS.get(kinds[0], {}).copy()


def _number(
    kind: type[int] | type[float], words: Collection[str] = ()
) -> Callable[[str], float | str]:
    """A function that reads a number, which must be finite as a float, or one of the words."""

    def number(text: str) -> float | str:
        if text in words:
            return text
        value = kind(text)
        # The comparison is false for NaN too.
        if not abs(value) <= sys.float_info.max:
            raise ValueError
        return value

    # argparse uses the name in its message.
    number.__name__ = kind.__name__
    return number


def _text(text: str) -> str:
    """A text that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return text


def _path(text: str) -> Path:
    """A path that is not empty."""
    return Path(_text(text))


def name_and_value(text: str) -> tuple[str, Any]:
    """The name and the value in "NAME=VALUE"; a value that is not JSON is a text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    with contextlib.suppress(json.JSONDecodeError):
        value = json.loads(value)
    return name.replace("-", "_"), value


# For each type, the function that reads a value, and the placeholder of the value in the help.
_READERS: dict[Any, dict[str, Any]] = {
    int: {"type": _number(int), "metavar": "N"},
    float: {"type": _number(float), "metavar": "X"},
    str: {"type": _text, "metavar": "TEXT"},
    Path: {"type": _path, "metavar": "PATH"},
}


def _help(text: str | None, default: Any) -> str | None:
    """The text for argparse, with the default unless it is empty or in the text."""
    if text is None:
        return None
    text = text.replace("%", "%%").removesuffix(".")
    is_empty = default is False or default in (None, (), dataclasses.MISSING)
    if is_empty or "(default: " in text:
        return text
    if isinstance(default, tuple):
        default = " ".join(map(str, default))
    return f"{text} (default: {default})"
