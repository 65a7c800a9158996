"""The entry point of ``fl-epe``: every command is in a file of its own in this room."""

from __future__ import annotations

import argparse
import difflib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import fl_epe
from fl_epe.auditing import NotMeasured
from fl_epe.cli import errors
from fl_epe.cli.advise import add_advise
from fl_epe.cli.audit import add_audit
from fl_epe.cli.compare import add_compare
from fl_epe.cli.completion import add_completion
from fl_epe.cli.console import STATUS_NOT_MEASURED
from fl_epe.cli.data import add_data
from fl_epe.cli.estimate import add_estimate
from fl_epe.cli.export import add_export
from fl_epe.cli.new import add_new
from fl_epe.cli.options import DEBUG, Parser
from fl_epe.cli.report import add_report
from fl_epe.cli.run import add_resume, add_run
from fl_epe.cli.schedules import add_schedules
from fl_epe.cli.stopping import exit_status, signals_as_interrupts
from fl_epe.old_names import OLD_NAMES

SILENCE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Environment variables that keep Flower and Ray from calling home, unless the user set them."""

_ADD: dict[str, Callable[[Any], None]] = {
    "resume": add_resume,
    "report": add_report,
    "export": add_export,
    "compare": add_compare,
    "advise": add_advise,
    "audit": add_audit,
    "estimate": add_estimate,
    "schedules": add_schedules,
    "new": add_new,
    "data": add_data,
}
"""What adds each command; ``run`` also needs the words after it, ``completion`` all others."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status.

    0 if all went well, 2 for bad input, 3 if what was asked for was not measured, 1 for a failure
    that should not happen, 128 + n when stopped by signal n and 141 when nobody reads the output
    any more. `argparse` exits by itself for options that do not exist (2) and for help (0).
    """
    for name, value in SILENCE.items():  # before Flower is imported: it reads them only then
        os.environ.setdefault(name, value)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # ε and θ, whatever the terminal's encoding
            stream.reconfigure(errors="replace")
    try:
        with signals_as_interrupts():
            return _carried_out(_parsed(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt as stop:
        print("Stopped.", file=sys.stderr)
        return exit_status(stop)


def _carried_out(arguments: argparse.Namespace) -> int:
    try:
        status = int(arguments.command(arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        errors.close_stdout()
        return errors.NO_READER
    except NotMeasured as error:
        errors.say(f"Not measured: {error}.", prefix="")
        return STATUS_NOT_MEASURED
    except Exception as error:  # noqa: BLE001 (the last one: nothing is left to handle it)
        return _failed(error, arguments)
    return status


def _failed(error: Exception, arguments: argparse.Namespace) -> int:
    spell = errors.option_names(arguments.parser, arguments.spell)
    status, text = errors.status_and_text(error, arguments.parser, spell)
    if arguments.debug:
        text = f"{text} {errors.keep_traceback(error)}"
    elif status == errors.FAILED:
        text += " (with --debug, the traceback is kept in a file)"
    errors.say(text)
    try:
        sys.stdout.flush()
    except OSError:  # a full disk, or a pipe that was closed
        errors.close_stdout()
    return status


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    words = [_with_new_name(word) for word in words]
    after_run = tuple(words[words.index("run") + 1 :]) if "run" in words[:2] else ()
    command = next(iter(words[1:] if words[:1] == ["--debug"] else words), None)
    arguments, unknown = _parser(after_run, command).parse_known_args(words)
    if unknown and getattr(arguments, "task_error", None) is None:  # whose options are not known
        option = unknown[0].partition("=")[0]
        close = difflib.get_close_matches(option, arguments.parser._option_string_actions, n=1)
        hint = f"; did you mean {close[0]}?" if close and option.startswith("-") else ""
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    arguments.words = list(words)
    return arguments


def _with_new_name(word: str) -> str:
    """An option of version 0.1 under its present name; any other word as it is."""
    option, equals, value = word.partition("=")
    if not option.startswith("--"):
        return word
    name = option[2:].replace("-", "_")
    if name not in OLD_NAMES:
        return word
    return "--" + OLD_NAMES[name].replace("_", "-") + equals + value


def _parser(after_run: tuple[str, ...] = (), only: str | None = None) -> argparse.ArgumentParser:
    """The parser, with the options of the task that stands in the words after ``run``.

    Args:
        after_run: those words.
        only: the command that was typed, if it is known: the others need not be made then.
    """
    parser: argparse.ArgumentParser = Parser(
        prog="fl-epe",
        description="Measure how much privacy a federated training run really gives away: random "
        "canary clients take part, and how well the model remembers them becomes an empirical ε.",
    )
    parser.add_argument("--version", action="version", version=f"fl-epe {fl_epe.__version__}")
    parser.add_argument("--debug", action="store_true", help=DEBUG)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    if only in _ADD:
        _ADD[only](commands)
        return parser
    add_run(commands, after_run)
    if only == "run":
        return parser
    for add_command in _ADD.values():
        add_command(commands)
    add_completion(commands, parser)
    return parser
