"""The entry point of ``fl-epe``. Each command is a dataclass in a module of `fl_epe.cli`."""

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import fl_epe
from fl_epe.checks import did_you_mean
from fl_epe.cli import console
from fl_epe.cli.guards import (
    SIGNALLED,
    exit_despite_threads,
    exit_status,
    stop_on_signals,
)
from fl_epe.cli.options import Parser, add_options, command_from, description_of

# Environment variables that switch off telemetry of Flower and Ray, unless the user set them.
SILENCE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# For each command, "module:class" in `fl_epe.cli`, and a summary. A group of commands has "" in
# place of the class; its commands come after it, with the group's name before their own.
COMMANDS = {
    "run": ("run:Run", "train a task with DP-FedAvg and audit it"),
    "resume": ("run:Resume", "continue a run that was stopped"),
    "report": (
        "report:Report",
        "write the report of a run again, or compare several runs",
    ),
    "export": (
        "report:Export",
        "write a copy of a record without its seeds, to share",
    ),
    "compare": (
        "compare:Compare",
        "compare participation schedules, in the limit or by training",
    ),
    "advise": (
        "",
        "noise for a target ε; numbers of canaries; the worst-case clients of a log",
    ),
    "advise noise": (
        "advise:Noise",
        "the noise at which canaries are expected to measure a target ε",
    ),
    "advise canaries": (
        "advise:Canaries",
        "how many canaries fit, and how narrow the interval of ε is then",
    ),
    "advise log": (
        "advise:Log",
        "the worst-case clients of a real deployment, and caps on participations",
    ),
    "estimate": (
        "report:Estimate",
        "estimate ε from a file of scores, with bounds",
    ),
    "conform": (
        "conform:Conform",
        "check a mechanism against its privacy claim",
    ),
    "schedules": (
        "compare:Schedules",
        "the kinds of schedules, with their options",
    ),
    "new": (
        "data:New",
        "write a Python file with a task of your own",
    ),
    "data": ("", "prepare published data sets"),
    "data convert": (
        "data:Convert",
        "convert a data set into files that are mapped into memory",
    ),
}

_EXIT_STATUS = """exit status:
  0  all went well
  1  a failure that should not happen
  2  bad input
  3  ε was not measured or the model diverged; ε is unreliable or the run faulty
     (the report says why); a claim is refuted or undecided; or a check fails
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status.

    The status is one of those in `fl_epe.cli.console`, or 128 + n after signal n. `argparse`
    exits by itself for options that do not exist (2) and for help (0).
    """
    # Flower reads these only when it is imported, which is later.
    for name, value in SILENCE.items():
        os.environ.setdefault(name, value)
    # Letters that the terminal's encoding lacks, such as ε, are spelled out.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=console.SPELLED_OUT)
    words = sys.argv[1:] if argv is None else argv
    try:
        with stop_on_signals():
            status = _execute(list(words))
    except KeyboardInterrupt as stop:
        print("Stopped.", file=sys.stderr)
        status = exit_status(stop)
    # Threads of Flower may outlive the command after a signal. With ``argv``, the process is not
    # ended, as it is the caller's.
    if argv is None and status > SIGNALLED:
        exit_despite_threads(status)
    return status


def _execute(words: list[str]) -> int:
    """Carry out the command; returns the exit status."""
    parser = Parser(prog="fl-epe")
    try:
        with console.waiting("Loading the command"):
            arguments = _parse(words)
        parser = arguments.parser
        command = command_from(arguments.command, arguments)
        status: int = command(words)
        sys.stdout.flush()
    except BrokenPipeError:
        console.close_stdout()
        return console.NO_READER
    except Exception as error:  # noqa: BLE001 - any error is printed on one line
        status = console.report_error(
            error, parser.prog, parser.names, debug="--debug" in words
        )
        try:
            sys.stdout.flush()
        except OSError:
            # The disk is full, or the pipe was closed.
            console.close_stdout()
    return status


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """The parsed arguments; for an unknown word, the error has a hint."""
    parser = parser_for(words)
    is_word = bool(words and words[0]) and not words[0].startswith("-")
    if is_word and words[0] not in COMMANDS:
        hint = did_you_mean(words[0], list(COMMANDS))
        parser.error(f"there is no command {words[0]!r}{hint}")
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        option = unknown[0].partition("=")[0]
        hint = " (a value with a space needs quotes)"
        if option.startswith("-"):
            names = arguments.parser.names.values()
            hint = did_you_mean(
                option, [name for name in names if name.startswith("-")]
            )
        arguments.parser.error(
            f"unrecognized arguments: {' '.join(unknown)}{hint}"
        )
    return arguments


def parser_for(words: Sequence[str]) -> Parser:
    """The parser of all commands, with the options of the command that was typed.

    Only the module of this command is imported, because the imports of some take seconds.

    Args:
        words: the typed words; if a task is among them, its options are added.
    """
    parser = Parser(
        prog="fl-epe",
        description="Measure the privacy leakage of a federated training run: random canary "
        "clients take part,\nand ε is estimated from how much the model depends on them.",
        epilog=_EXIT_STATUS,
    )
    parser.add_argument(
        "--version", action="version", version=f"fl-epe {fl_epe.__version__}"
    )
    subparsers_of_group: dict[str, Any] = {
        "": parser.add_subparsers(required=True, metavar="COMMAND")
    }
    typed = [word for word in words if not word.startswith("-")]
    for name, (target, summary) in COMMANDS.items():
        group, _, own_name = name.rpartition(" ")
        command = subparsers_of_group[group].add_parser(own_name, help=summary)
        words_of_name = name.split()
        if not target:
            subparsers_of_group[name] = command.add_subparsers(
                required=True, metavar="WHAT"
            )
        elif typed[: len(words_of_name)] == words_of_name:
            _add_command(command, target, words)
    return parser


def _add_command(parser: Parser, target: str, words: Sequence[str]) -> None:
    """Add description, examples and options of a command, given as "module:class"."""
    module, _, name = target.partition(":")
    command = getattr(importlib.import_module(f"fl_epe.cli.{module}"), name)
    parser.description, examples = description_of(command)
    parser.epilog = f"{examples}\n{_EXIT_STATUS}" if examples else _EXIT_STATUS
    parser.names |= {"debug": "--debug", **getattr(command, "NAMES", {})}
    parser.add_argument(
        "--debug",
        action="store_true",
        help="if the command fails, show the traceback",
    )
    parser.set_defaults(command=command, parser=parser)
    add_options(parser, command, words)
