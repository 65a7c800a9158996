"""What the command line says when something goes wrong, and with which exit status.

An `ArgumentError` names the option that was typed. Whatever else is raised becomes one line, and
its traceback is shown where ``--debug`` asks for it.
"""

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Mapping

from fl_epe.checks import ArgumentError
from fl_epe.files import printable

# Exit statuses: a failure that should not happen; something typed or read is wrong; ε was not
# measured, or the model diverged; a closed pipe.
FAILED, BAD_INPUT, NOT_MEASURED, NO_READER = 1, 2, 3, 141
ISSUES = "https://github.com/fl-epe/fl-epe/issues"
_EXTRAS = {"torch": "sim", "sklearn": "sim"} | dict.fromkeys(
    ("PIL", "datasets", "flwr_datasets", "h5py"), "data"
)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def report(error: Exception, prog: str, names: Mapping[str, str], *, debug: bool) -> int:
    """Print the line that says what is wrong; returns the exit status.

    Args:
        error: what was raised.
        prog: the command.
        names: what is typed for an argument, by its name in Python.
        debug: whether to print the traceback before it.
    """
    from fl_epe.auditing import NotMeasured

    if isinstance(error, NotMeasured):
        say(f"Not measured: {error}.", prefix="")
        return NOT_MEASURED
    if debug:
        traceback.print_exception(error)
    if (text := _text(error, names)) is not None:
        say(text)
        return BAD_INPUT
    name = f"{type(error).__name__}{_reason(error)}"
    shows = "" if debug else " (--debug shows the traceback)"
    say(f"{prog} failed, which it should not: {name}. Please report it: {ISSUES}{shows}")
    return FAILED


def _text(error: Exception, names: Mapping[str, str]) -> str | None:
    """What is wrong with what was typed or read; ``None`` where the fault is ours."""
    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
        extra = _EXTRAS[error.name]
        return f"This needs {error.name}, which is not installed: pip install 'fl-epe[{extra}]'."
    if isinstance(error, ArgumentError):
        return error.said(lambda name: names.get(name, name))
    if isinstance(error, MemoryError):
        return f"There is not enough memory{_reason(error)}. Use smaller numbers."
    if isinstance(error, OSError) and error.strerror:
        place = f": {str(error.filename)!r}" if error.filename is not None else ""
        return f"{error.strerror}{place}." + " Free some space." * (error.errno in _FULL)
    if isinstance(error, ValueError | OSError | ImportError) or type(error) is RuntimeError:
        return str(error) or type(error).__name__
    return None


def _reason(error: Exception) -> str:
    return f" ({error})" if str(error) else ""


def on_one_line(text: str) -> str:
    """The text as `printable` writes it, without line breaks."""
    return " ".join(printable(text).splitlines())


def say(text: str, prefix: str = "fl-epe: error: ") -> None:
    """Print one line of error, in red on a terminal."""
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    red, plain = ("\x1b[31m", "\x1b[0m") if coloured else ("", "")
    print(f"{red}{prefix}{on_one_line(text)}{plain}", file=sys.stderr)


def close_stdout() -> None:
    """Nobody reads what this program prints: let what is still to be written go nowhere."""
    with (
        contextlib.suppress(OSError, ValueError),  # stdout is no file, or closed
        open(os.devnull, "w") as nowhere,
    ):
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
