"""The output of commands: text, progress and errors.

The message of an `ArgumentError` names the option that was typed. Any other error becomes one
line; its traceback is shown with ``--debug``.
"""

import codecs
import contextlib
import errno
import json
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from fl_epe.checks import ArgumentError, raise_invalid
from fl_epe.files import on_one_line, printable, run_folder

# Name of the error handler for letters that an encoding lacks.
SPELLED_OUT = "fl-epe-spelled-out"

# Letters of reports in ASCII.
_PLAIN = {
    "≥": ">=",
    "≤": "<=",
    "≈": "~",
    "ε": "epsilon",
    "δ": "delta",
    "κ": "kappa",
    "μ": "mu",
    "θ": "theta",
    "∞": "inf",
    "–": "-",
    "−": "-",
    "…": "...",
    "•": "*",
    "×": "x",
    "·": "*",
    "†": "+",
    "─": "-",
}


def _spelled_out(error: UnicodeError) -> tuple[str, int]:
    """The ASCII form of letters that an encoding lacks, or "?" for letters that no report has."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter, "?") for letter in lacking), error.end


codecs.register_error(SPELLED_OUT, _spelled_out)


def terminal() -> Console:
    """Standard output, on which text is printed without markup, emoji codes or escapes."""
    from fl_epe.reporting import Terminal

    return Terminal(highlight=False)


def output_directory(chosen: Path | None, name: str) -> Path:
    """The chosen folder, or ``runs/NAME-DATE-TIME``, which is not created yet.

    Raises:
        ValueError: if the chosen folder is a file.
    """
    output = chosen or run_folder(name)
    if output.exists() and not output.is_dir():
        raise_invalid(
            "output", str(output), "to be a directory, but it is a file"
        )
    return output


def print_lines(lines: Iterable[str]) -> None:
    """Print lines; lines that start with a bullet are dim."""
    console = terminal()
    for line in lines:
        console.print(line, style="dim" if line.startswith("•") else None)


def print_whole(*lines: str) -> None:
    """Print lines that must not be wrapped, such as paths and commands."""
    print(printable("\n".join(lines)))


def print_json(values: dict[str, Any]) -> None:
    """Print JSON for another program; a number that is infinite or unknown is ``null``."""
    from fl_epe.reporting import as_json

    text = json.dumps(
        as_json(values), indent=2, ensure_ascii=False, allow_nan=False
    )
    print(printable(text))


PATIENCE = 1.5
"""Seconds after which a command prints what it is waiting for."""


@contextlib.contextmanager
def waiting(doing: str) -> Iterator[None]:
    """Print on a terminal what the command does, if it takes longer than `PATIENCE`.

    Nothing is printed elsewhere, so that a log or a notebook does not depend on speed.
    """
    options = {"prefix": "", "alarm": False}
    timer = threading.Timer(PATIENCE, say, [f"{doing} …"], options)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


class ProgressLine:
    """The progress of a command: a bar on a terminal, elsewhere a line every ten seconds.

    Args:
        time_left: whether to show the remaining time, for texts that do not include it.
    """

    def __init__(self, *, time_left: bool = False) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        self._console = terminal()
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            MofNCompleteColumn(),
            BarColumn(bar_width=8),
            TextColumn("{task.fields[text]}", markup=False),
            *([TimeRemainingColumn()] if time_left else []),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None, text="")
        self._printed = -math.inf

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(
        self,
        doing: str,
        done: int,
        total: int | None,
        text: str = "",
        *,
        last: bool = False,
    ) -> None:
        """Show that ``done`` of ``total`` items are done; ``last`` if the total is not known."""
        if self._console.is_terminal:
            self._bar.update(
                self._task,
                description=doing,
                completed=done,
                total=total,
                text=text,
            )
        elif time.monotonic() - self._printed > 10 or done == total or last:
            self._printed = time.monotonic()
            of = "" if total is None else f"/{total}"
            print(printable(f"{doing} {done}{of}  {text}".rstrip()), flush=True)


# Exit statuses.
FAILED = 1  # a failure that should not happen
BAD_INPUT = 2  # something that was typed or read is wrong
NOT_MEASURED = 3  # ε was not measured, or a report's status is not "ok"
NO_READER = 141  # standard output is a pipe that was closed

ISSUES = "https://github.com/fl-epe/fl-epe/issues"

# The extra of this package that installs a module.
_EXTRAS = {"torch": "sim", "sklearn": "sim"} | dict.fromkeys(
    ("PIL", "datasets", "flwr_datasets", "h5py", "pyarrow"), "data"
)
# Error numbers of a full disk, and of missing permissions.
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)


def report_error(
    error: Exception, prog: str, names: Mapping[str, str], *, debug: bool
) -> int:
    """Print an error on one line; returns the exit status.

    Args:
        error: the error.
        prog: the command.
        names: the typed form of an argument, by its name in Python.
        debug: whether to print the traceback before the line.
    """
    from fl_epe.auditing import NotMeasured

    if isinstance(error, NotMeasured):
        say(f"Not measured: {error}.", prefix="")
        return NOT_MEASURED
    if debug:
        traceback.print_exception(error)
    text = _text(error, names)
    if text is not None:
        say(text)
        return BAD_INPUT
    name = f"{type(error).__name__}{_reason(error)}"
    hint = "" if debug else " (--debug shows the traceback)"
    say(
        f"{prog} failed, which it should not: {name}. Please report it: {ISSUES}{hint}"
    )
    return FAILED


def _text(error: Exception, names: Mapping[str, str]) -> str | None:
    """The text of an error of the input; ``None`` for a defect of this package."""
    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
        extra = _EXTRAS[error.name]
        return f"This needs {error.name}, which is not installed: pip install 'fl-epe[{extra}]'."
    if isinstance(error, ArgumentError):
        return error.said(lambda name: names.get(name, name))
    if isinstance(error, MemoryError):
        return (
            f"There is not enough memory{_reason(error)}. End other programs, or ask for less: "
            "fewer rounds, canaries or workers, or a smaller file."
        )
    if isinstance(error, OSError) and error.strerror:
        if error.filename is not None:
            place = f": {str(error.filename)!r}"
        else:
            place = ""
        return f"{error.strerror}{place}. {remedy(error)}".rstrip()
    if (
        isinstance(error, ValueError | OSError | ImportError)
        or type(error) is RuntimeError
    ):
        return str(error) or type(error).__name__
    return None


def remedy(error: OSError) -> str:
    """Advice for an error of a file, as a sentence; empty if there is none."""
    if error.errno in _FULL:
        return "Free some space."
    if error.errno in _CLOSED:
        return "Change the permissions there."
    return ""


def _reason(error: Exception) -> str:
    """The text of an error in brackets after a space; empty if it has none."""
    if str(error):
        return f" ({error})"
    return ""


def say(
    text: str, prefix: str = "fl-epe: error: ", *, alarm: bool = True
) -> None:
    """Print one line on standard error, in red on a terminal if it is an ``alarm``."""
    line = f"{prefix}{on_one_line(text)}"
    if alarm and sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        line = f"\x1b[31m{line}\x1b[0m"
    print(line, file=sys.stderr)


def close_stdout() -> None:
    """Discard all further output, as standard output has no reader."""
    with (
        # Standard output may be no file, or closed.
        contextlib.suppress(OSError, ValueError),
        open(os.devnull, "w") as nowhere,
    ):
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
