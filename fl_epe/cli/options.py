"""The options of a command from the fields of its dataclass, and their help from its docstring.

A field becomes an option: its name with dashes, its type, its default and its text in the section
"Attributes:". ``Annotated[..., "FILE"]`` makes a positional argument that help calls FILE, and
`Group` takes the options of another dataclass. `make` calls the dataclass with what was typed:

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

tyro 1.0.17 was tried in place of this module: a message of 6 to 11 lines where this prints one,
``{None}|FLOAT`` in place of ``X``, and 0.14 s more for each command.
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

Made = TypeVar("Made")

# The type of a field that is a `Group`.
Typed = Mapping[str, Any]


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviated options, and says what is wrong in one line.

    Attributes:
        names: what is typed for an argument, by its name in Python.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.allow_abbrev, self.formatter_class = (
            False,
            argparse.RawDescriptionHelpFormatter,
        )
        self.names = dict[str, str]()

    def error(self, message: str) -> NoReturn:
        """Print the message and end with status 2."""
        self.exit(
            BAD_INPUT,
            f"fl-epe: error: {on_one_line(message)} (see {self.prog} --help)\n",
        )


@dataclasses.dataclass(frozen=True)
class Group:
    """Marks a field that holds what was typed of another dataclass's options, by name.

    Attributes:
        settings: that dataclass; or a function of the parser and what was typed that returns one.
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
        parser: of the command. Names of options that are not the field's are in its ``names``.
        settings: a dataclass, whose docstring has a section "Attributes:".
        words: what was typed.
        group: of the parser's options, where the new ones are not for the parser itself.
        without: names of fields that get no option.
        prefix: before the names of the parser's attributes, which are the fields' names.
    """
    texts, kinds = (
        texts_of(settings),
        typing.get_type_hints(settings, include_extras=True),
    )
    for field in dataclasses.fields(settings):
        kind, mark = kinds[field.name], None
        if typing.get_origin(kind) is Annotated:
            kind, mark = typing.get_args(kind)
        text = texts.get(field.name)
        if isinstance(mark, Group):
            inner = mark.settings
            inner = inner if isinstance(inner, type) else inner(parser, words)
            inside = parser.add_argument_group((text or field.name).removesuffix("."))
            add_options(
                parser,
                inner,
                group=inside,
                without=mark.without,
                prefix=f"{field.name} ",
            )
        elif field.name not in without and (how := _how_to_read(kind, field.default)):
            how["help"] = _help(text, field.default)
            needed = field.default is field.default_factory is dataclasses.MISSING
            if mark is None:
                option = parser.names.setdefault(
                    field.name, "--" + field.name.replace("_", "-")
                )
                how |= {"dest": prefix + field.name, "required": needed and not prefix}
                (group or parser).add_argument(option, default=None, **how)
            else:
                parser.names[field.name] = mark
                nargs = {} if needed else {"nargs": "?"}
                parser.add_argument(field.name, **how | nargs | {"metavar": mark})


def make(settings: Callable[..., Made], arguments: argparse.Namespace) -> Made:
    """A dataclass of what was typed; the values of a `Group` become a dictionary by name."""
    values: dict[str, Any] = {}
    for dest, value in vars(arguments).items():
        if value is None:
            continue
        if isinstance(value, list):
            value = dict(value) if isinstance(value[0], tuple) else tuple(value)
        name, _, inner = dest.partition(" ")
        if inner:
            values.setdefault(name, {})[inner] = value
        else:
            values[name] = value
    names = inspect.signature(settings).parameters
    made = settings(**{name: value for name, value in values.items() if name in names})
    check_types(made)
    return made


def description_of(settings: type) -> tuple[str, str]:
    """What a docstring says before its sections, and its examples, for a terminal."""
    about, *sections = _SECTIONS.split(
        "\n\n" + inspect.cleandoc(settings.__doc__ or "")
    )
    paragraphs = [
        textwrap.fill(_plain(part), 79) for part in about.split("\n\n") if part
    ]
    examples = dict(zip(sections[::2], sections[1::2], strict=True)).get("Examples")
    shown = (
        f"examples:\n{textwrap.indent(textwrap.dedent(examples), '  ')}\n"
        if examples
        else ""
    )
    return "\n\n".join(paragraphs), shown


def texts_of(settings: Callable[..., Any]) -> dict[str, str]:
    """What docstrings say of each attribute or option; nothing where docstrings are stripped."""
    texts: dict[str, str] = {}
    for each in reversed(
        inspect.getmro(settings) if isinstance(settings, type) else (settings,)
    ):
        text = inspect.cleandoc(each.__doc__ or "")
        section = (*re.split(r"(?:Attributes|Args|Options):\n", text, maxsplit=1), "")[
            1
        ]
        found = re.findall(r"^(?: {4})?(\w+): (.+(?:\n {5,}.+)*)", section, re.M)
        texts |= {name: _plain(text) for name, text in found}
    return texts


def _plain(text: str) -> str:
    return " ".join(text.replace("`", "").split())


def _how_to_read(kind: Any, default: Any = None) -> dict[str, Any]:
    """How argparse reads a value of this type; empty if it cannot be typed as an option."""
    kinds = [part for part in parts_of(kind) if part is not types.NoneType]
    kind, words = kinds[0], tuple(part for part in kinds if isinstance(part, str))
    if kind is bool:
        both = default is True or default is None
        return {"action": argparse.BooleanOptionalAction if both else "store_true"}
    if typing.get_origin(kind) is Mapping:
        return {"action": "append", "type": name_and_value, "metavar": "NAME=VALUE"}
    if typing.get_origin(kind) is tuple:
        how = _how_to_read(typing.get_args(kind)[0])
        return how and how | {"nargs": "+", "action": "extend"}
    if words and float in kinds:
        return {"type": _number(float, words), "metavar": "|".join(("X", *words))}
    if words:
        return {"choices": words}
    return dict(zip(("type", "metavar"), _READERS.get(kind, ()), strict=False))


def _number(kind: type, words: Collection[str] = ()) -> Callable[[str], Any]:
    """What makes a finite number of what somebody typed, unless it is one of the words."""

    def number(text: str) -> Any:
        if text in words:
            return text
        value = kind(text)
        if not abs(value) <= sys.float_info.max:  # also of nan
            raise ValueError
        return value

    number.__name__ = kind.__name__  # for argparse's message
    return number


def _text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return text


def name_and_value(text: str) -> tuple[str, Any]:
    """The two parts of "NAME=VALUE", where the value is in JSON or else text as it is."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    with contextlib.suppress(json.JSONDecodeError):
        value = json.loads(value)
    return name.replace("-", "_"), value


# What makes a value of each type from a word of the command line, and how help shows it.
_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (_number(int), "N"),
    float: (_number(float), "X"),
    str: (_text, "TEXT"),
    Path: (lambda text: Path(_text(text)), "PATH"),
}


def _help(text: str | None, default: Any) -> str | None:
    """The text for a terminal, with the default unless the text says it."""
    if text is None:
        return None
    plain = text.replace("%", "%%").removesuffix(".")
    if (
        "(default: " in plain
        or default is False
        or default in (None, (), dataclasses.MISSING)
    ):
        return plain
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{plain} (default: {shown})"
