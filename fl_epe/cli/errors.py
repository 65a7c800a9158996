"""What the command line says when something goes wrong, and with which exit status.

An error about an argument names the option that was typed; `option_names` knows how. Whatever else
is raised becomes one line, and its traceback goes into a file where ``--debug`` asks for one.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable

from fl_epe.checks import ArgumentError
from fl_epe.files import printable

BAD_INPUT, FAILED, NO_READER = 2, 1, 141
"""Exit statuses: something typed or read is wrong; anything else; a closed pipe."""

ISSUES = "https://github.com/fl-epe/fl-epe/issues"
"""Where to report what should not have happened."""

_EXTRAS = {"torch": "sim", "sklearn": "sim"} | dict.fromkeys(
    ("PIL", "datasets", "flwr_datasets", "h5py"), "data"
)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")


def status_and_text(
    error: Exception, parser: argparse.ArgumentParser, spell: Callable[[str], str]
) -> tuple[int, str]:
    """The exit status for an error, and the line that says what is wrong.

    Args:
        error: what was raised.
        parser: of the command.
        spell: how the command writes the name of an argument.
    """
    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
        extra = _EXTRAS[error.name]
        text = f"This needs {error.name}, which is not installed: pip install 'fl-epe[{extra}]'."
    elif isinstance(error, ArgumentError):
        text = error.said(spell)
    elif isinstance(error, MemoryError):
        text = f"There is not enough memory{_reason(error)}. Use smaller numbers."
    elif isinstance(error, OSError) and error.strerror:
        text = _of_the_system(error, parser)
    elif isinstance(error, ValueError | OSError | ImportError) or type(error) is RuntimeError:
        text = _with_options(str(error), spell) or type(error).__name__
    else:
        name = f"{type(error).__name__}{_reason(error)}"
        return (
            FAILED,
            f"{parser.prog} failed, which it should not: {name}. Please report it: {ISSUES}",
        )
    return BAD_INPUT, text


def _reason(error: Exception) -> str:
    return f" ({error})" if str(error) else ""


def _of_the_system(error: OSError, parser: argparse.ArgumentParser) -> str:
    """What the operating system refused, with the file and, for a full disk, a way out."""
    place = f": {str(error.filename)!r}" if error.filename is not None else ""
    text = f"{error.strerror}{place}."
    if error.errno in _FULL:
        elsewhere = " or write elsewhere with --output" if "output" in options_of(parser) else ""
        return f"{text} Free some space{elsewhere}."
    return text


def options_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """What a command's arguments are called where they are typed, by their names in Python."""
    return {
        action.dest: action.option_strings[-1] if action.option_strings else str(action.metavar)
        for action in parser._actions
    }


def option_names(
    parser: argparse.ArgumentParser, others: Callable[[str], str | None]
) -> Callable[[str], str]:
    """How a command writes the name of an argument: as its option, if it has one.

    Args:
        parser: of the command.
        others: names that the command's own code gives to what the options say, e.g. "--top" for
            "count"; ``None`` for a name that no option stands for.
    """
    options = options_of(parser)
    return lambda name: others(name) or options.get(name, name)


def _with_options(text: str, spell: Callable[[str], str]) -> str:
    """The text of an error that does not say which words are arguments.

    Errors read "Expected NAME=VALUE …": outside of quotes, a name before "=" is an argument's.
    """

    def replaced(part: str) -> str:
        return re.sub(r"(?<![\w.-])([a-z]\w*)(?==)", lambda name: spell(name[1]), part)

    parts, start = [], 0
    for quoted in _QUOTED.finditer(text):
        parts += [replaced(text[start : quoted.start()]), quoted[0]]
        start = quoted.end()
    return "".join([*parts, replaced(text[start:])])


def on_one_line(text: str) -> str:
    """The text as `printable` writes it, without line breaks."""
    return " ".join(printable(text).splitlines())


def say(text: str, prefix: str = "fl-epe: error: ") -> None:
    """Print one line of error."""
    red, plain = ("\x1b[31m", "\x1b[0m") if _has_colours() else ("", "")
    print(f"{red}{prefix}{on_one_line(text)}{plain}", file=sys.stderr)


def _has_colours() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ


def keep_traceback(error: BaseException) -> str:
    """Write the traceback into a new file that only its owner may read; where it is, in words."""
    lines = "".join(traceback.format_exception(error))
    try:
        handle, path = tempfile.mkstemp(prefix="fl-epe-", suffix="-traceback.txt")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(lines)
    except OSError:
        print(lines, file=sys.stderr)
        return "The traceback is above, as no file could be written."
    return f"The traceback is in {path}"


def close_stdout() -> None:
    """Nobody reads what this program prints: let what is still to be written go nowhere."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # stdout is no file, or closed
        return
