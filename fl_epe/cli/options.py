"""The options of a command from the fields of its dataclass, and their help from its docstring.

A field becomes an option with the field's name in dashes, its type, its default and its text in
the section "Attributes:". ``Annotated[..., "FILE"]`` makes a positional argument that help
calls FILE, and `Group` adds the options of another dataclass. `make` calls the dataclass with
the typed values:

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
    >>> make(Bake, parser.parse_args(["rye", "--loaves", "3"]))
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
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from fl_epe.checks import check_types, parts_of
from fl_epe.cli.console import BAD_INPUT
from fl_epe.files import on_one_line

_SECTIONS = re.compile(r"\n\n(Attributes|Examples):\n")
_NAMED_SECTION = re.compile(r"(?:Attributes|Args|Options):\n")
_NAMED_TEXT = re.compile(r"^(?: {4})?(\w+): (.+(?:\n {5,}.+)*)", re.M)

Command = TypeVar("Command")

# The type of a field that is a `Group`.
Typed = Mapping[str, Any]


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
    """Marks a field that holds the typed options of another dataclass, by name.

    Attributes:
        settings: that dataclass, or a function that returns it from the parser and the typed
            words.
        without: fields that get no option.
    """

    settings: type | Callable[[Parser, Sequence[str]], type]
    without: Collection[str] = ()


def add_options(
    parser: Parser,
    settings: type,
    words: Sequence[str] = (),
    *,
    group: argparse._ActionsContainer | None = None,
    without: Collection[str] = (),
    prefix: str = "",
) -> None:
    """Add an option for each field of a dataclass.

    Types: ``int``, ``float``, ``str`` and ``Path``, a tuple of one of them (several values,
    repeatable), ``Literal`` (a choice), ``float | Literal`` (a number or a word), ``bool`` (a flag)
    and ``Mapping`` (NAME=VALUE, repeatable). A field of another type gets no option.

    Args:
        parser: the parser of the command. Its ``names`` has the options that differ from their
            fields' names.
        settings: a dataclass, whose docstring has a section "Attributes:".
        words: the typed words.
        group: the group of the parser to which the options are added; by default the parser
            itself.
        without: names of fields that get no option.
        prefix: a prefix of the names of the parser's attributes, which are the fields' names.
    """
    texts = texts_of(settings)
    kinds = typing.get_type_hints(settings, include_extras=True)
    for field in dataclasses.fields(settings):
        name = field.name
        text = texts.get(name)
        kind = kinds[name]
        mark = None
        if typing.get_origin(kind) is Annotated:
            kind, mark = typing.get_args(kind)
        if isinstance(mark, Group):
            inner = mark.settings
            if not isinstance(inner, type):
                inner = inner(parser, words)
            title = (text or name).removesuffix(".")
            add_options(
                parser,
                inner,
                group=parser.add_argument_group(title),
                without=mark.without,
                prefix=f"{name} ",
            )
            continue
        how = _how_to_read(kind, field.default)
        if name in without or not how:
            continue
        how["help"] = _help(text, field.default)
        is_needed = (
            field.default is field.default_factory is dataclasses.MISSING
        )
        if mark is None:
            option = parser.names.setdefault(
                name, "--" + name.replace("_", "-")
            )
            how["dest"] = prefix + name
            how["required"] = is_needed and not prefix
            (group or parser).add_argument(option, **how)
        else:
            parser.names[name] = mark
            how["metavar"] = mark
            if not is_needed:
                how |= {"nargs": "?", "default": field.default}
            parser.add_argument(name, **how)


def make(
    settings: Callable[..., Command], arguments: argparse.Namespace
) -> Command:
    """The dataclass with the typed values; those of a `Group` become a dictionary by name."""
    values: dict[str, Any] = {}
    for dest, value in vars(arguments).items():
        if isinstance(value, list):
            value = dict(value) if isinstance(value[0], tuple) else tuple(value)
        name, _, inner = dest.partition(" ")
        if inner:
            values.setdefault(name, {})[inner] = value
        else:
            values[name] = value
    parameters = inspect.signature(settings).parameters
    command = settings(
        **{name: values[name] for name in parameters if name in values}
    )
    check_types(command)
    return command


def description_of(settings: type) -> tuple[str, str]:
    """A docstring's text before its sections, and its examples, for a terminal."""
    text = inspect.cleandoc(settings.__doc__ or "")
    about, *sections = _SECTIONS.split(f"\n\n{text}")
    paragraphs = [
        textwrap.fill(_plain(part), 79) for part in about.split("\n\n") if part
    ]
    examples = ""
    for title, section in zip(sections[::2], sections[1::2], strict=True):
        if title == "Examples":
            lines = textwrap.indent(textwrap.dedent(section), "  ")
            examples = f"examples:\n{lines}\n"
    return "\n\n".join(paragraphs), examples


def texts_of(settings: Callable[..., Any]) -> dict[str, str]:
    """The text of each attribute or option in docstrings; empty if these are stripped."""
    texts: dict[str, str] = {}
    documented: tuple[Callable[..., Any], ...]
    if isinstance(settings, type):
        documented = inspect.getmro(settings)
    else:
        documented = (settings,)
    for item in reversed(documented):
        docstring = inspect.cleandoc(item.__doc__ or "")
        for section in _NAMED_SECTION.split(docstring, maxsplit=1)[1:]:
            for name, text in _NAMED_TEXT.findall(section):
                texts[name] = _plain(text)
    return texts


def _plain(text: str) -> str:
    """The text without backquotes and line breaks."""
    return " ".join(text.replace("`", "").split())


def _how_to_read(kind: Any, default: Any = None) -> dict[str, Any]:
    """The arguments of argparse for a value of this type; empty if it cannot be an option."""
    # A flag with a default of True or None also has a form with --no-.
    kinds = [part for part in parts_of(kind) if part is not types.NoneType]
    words = tuple(part for part in kinds if isinstance(part, str))
    if kinds[0] is bool:
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
        how = _how_to_read(typing.get_args(kinds[0])[0])
        if how:
            return {**how, "nargs": "+", "action": "extend"}
        return {}
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
    """A reader of a number that is finite as a float, or of one of the words."""

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
    """The two parts of "NAME=VALUE"; a value that is no JSON is a text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    with contextlib.suppress(json.JSONDecodeError):
        value = json.loads(value)
    return name.replace("-", "_"), value


# argparse's reader of a word of the command line, by type, and the placeholder in the help.
_READERS: dict[Any, dict[str, Any]] = {
    int: {"type": _number(int), "metavar": "N"},
    float: {"type": _number(float), "metavar": "X"},
    str: {"type": _text, "metavar": "TEXT"},
    Path: {"type": _path, "metavar": "PATH"},
}


def _help(text: str | None, default: Any) -> str | None:
    """The text for a terminal, with the default unless the text has it."""
    if text is None:
        return None
    text = text.replace("%", "%%").removesuffix(".")
    no_default = default is False or default in (None, (), dataclasses.MISSING)
    if no_default or "(default: " in text:
        return text
    if isinstance(default, tuple):
        default = " ".join(map(str, default))
    return f"{text} (default: {default})"
