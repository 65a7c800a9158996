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

# Name of the error handler of the terminal's encoding, which writes ε as "epsilon".
SPELLED_OUT = "fl-epe-spelled-out"

# The ASCII form of the letters in reports.
_ASCII = {
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
    """The ASCII form of letters that an encoding lacks, "?" if there is none; where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ASCII.get(letter, "?") for letter in missing), error.end


codecs.register_error(SPELLED_OUT, _spelled_out)


def terminal() -> Console:
    """Standard output, on which text is printed without markup, emoji codes or escapes."""
    from fl_epe.reporting import Terminal

    return Terminal(highlight=False)


def output_directory(chosen: Path | None, name: str) -> Path:
    """The chosen folder, or by default ``runs/NAME-DATE-TIME``, which this does not create.

    Raises:
        ValueError: if the chosen folder is a file.
    """
    output = chosen or run_folder(name)
    if output.exists() and not output.is_dir():
        raise_invalid("output", output, "to be a directory, but it is a file")
    return output


def print_lines(lines: Iterable[str]) -> None:
    """Print lines; lines that start with a bullet are dim."""
    console = terminal()
    for line in lines:
        console.print(line, style="dim" if line.startswith("•") else None)


def print_unwrapped(*lines: str) -> None:
    """Print lines that must not be wrapped, such as paths and commands."""
    print(printable("\n".join(lines)))


def print_json(values: dict[str, Any]) -> None:
    """Print JSON for another program; a number that is infinite or unknown is ``null``."""
    from fl_epe.reporting import as_json

    text = json.dumps(
        as_json(values), indent=2, ensure_ascii=False, allow_nan=False
    )
    print(printable(text))


MAX_SILENT_SECONDS = 1.5
"""Seconds after which a command prints what it is waiting for."""


@contextlib.contextmanager
def waiting(activity: str) -> Iterator[None]:
    """Print the activity if this context takes longer than `MAX_SILENT_SECONDS`.

    It is printed on a terminal only, so that a log or a notebook does not depend on speed.
    """
    line = on_one_line(f"{activity} …")
    timer = threading.Timer(
        MAX_SILENT_SECONDS, print, [line], {"file": sys.stderr}
    )
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


# Seconds between two lines of progress that is not shown on a terminal.
_SECONDS_PER_LINE = 10.0


class ProgressLine:
    """The progress of a command: a bar on a terminal, elsewhere a line now and then.

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
        columns = [
            TextColumn("{task.description}", markup=False),
            MofNCompleteColumn(),
            BarColumn(bar_width=8),
            TextColumn("{task.fields[text]}", markup=False),
        ]
        if time_left:
            columns.append(TimeRemainingColumn())
        self._bar = Bar(
            *columns,
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
        activity: str,
        completed: int,
        total: int | None,
        text: str = "",
        *,
        last: bool = False,
    ) -> None:
        """Show the progress.

        Args:
            activity: what the command does, such as "round".
            completed: the number of completed items.
            total: the number of all items, if it is known.
            text: a text for the end of the line.
            last: whether this is the last call although ``completed`` is not ``total``.
        """
        if self._console.is_terminal:
            self._bar.update(
                self._task,
                description=activity,
                completed=completed,
                total=total,
                text=text,
            )
            return
        is_due = time.monotonic() - self._printed > _SECONDS_PER_LINE
        if is_due or completed == total or last:
            self._printed = time.monotonic()
            of_total = "" if total is None else f"/{total}"
            line = f"{activity} {completed}{of_total}  {text}"
            print(printable(line.rstrip()), flush=True)


# Exit statuses.
FAILED = 1  # a failure that should not happen
BAD_INPUT = 2  # something that was typed or read is wrong
NOT_OK = 3  # not measured, unreliable or faulty, or a claim or a check failed
NO_READER = 141  # standard output is a pipe that was closed

ISSUES = "https://github.com/fl-epe/fl-epe/issues"

# The extra of this package that installs a module.
_EXTRAS = {"torch": "sim", "sklearn": "sim"} | dict.fromkeys(
    ("PIL", "datasets", "flwr_datasets", "h5py", "pyarrow"), "data"
)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)


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
        print_alarm(f"Not measured: {error}.", prefix="")
        return NOT_OK
    if debug:
        traceback.print_exception(error)
    text = _bad_input(error, names)
    if text is not None:
        print_alarm(text)
        return BAD_INPUT
    hint = "" if debug else " (--debug shows the traceback)"
    print_alarm(
        f"{prog} failed, which it should not: {type(error).__name__}{_in_brackets(error)}. "
        f"Please report it: {ISSUES}{hint}"
    )
    return FAILED


def _bad_input(error: Exception, names: Mapping[str, str]) -> str | None:
    """What is wrong with the input; ``None`` if the error is a defect of this package."""
    match error:
        case ModuleNotFoundError() if error.name in _EXTRAS:
            extra = _EXTRAS[error.name]
            return (
                f"This needs {error.name}, which is not installed: "
                f"pip install 'fl-epe[{extra}]'."
            )
        case ArgumentError():
            return error.message(names)
        case MemoryError():
            return (
                f"There is not enough memory{_in_brackets(error)}. End other programs, or ask for "
                "less: fewer rounds, canaries or workers, or a smaller file."
            )
        case OSError() if error.strerror:
            place = ""
            if error.filename is not None:
                place = f": {str(error.filename)!r}"
            return f"{error.strerror}{place}. {remedy(error)}".rstrip()
        case ValueError() | OSError() | ImportError():
            return str(error) or type(error).__name__
    # A subclass such as `NotImplementedError` is a defect.
    if type(error) is RuntimeError:
        return str(error) or "RuntimeError"
    return None


def remedy(error: OSError) -> str:
    """Advice for an error of a file, as a sentence; empty if there is none."""
    if error.errno in _DISK_FULL:
        return "Free some space."
    if error.errno in _NOT_PERMITTED:
        return "Change the permissions there."
    return ""


def _in_brackets(error: Exception) -> str:
    """The text of an error in brackets after a space; empty if it has none."""
    if str(error):
        return f" ({error})"
    return ""


def print_alarm(text: str, prefix: str = "fl-epe: error: ") -> None:
    """Print an error or a warning as one line on standard error, in red on a terminal."""
    line = f"{prefix}{on_one_line(text)}"
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        line = f"\x1b[31m{line}\x1b[0m"
    print(line, file=sys.stderr)


def close_stdout() -> None:
    """Discard all further output, as standard output has no reader."""
    with (
        # Standard output may be no file, or closed.
        contextlib.suppress(OSError, ValueError),
        open(os.devnull, "w") as discarded,
    ):
        os.dup2(discarded.fileno(), sys.stdout.fileno())
