"""The entry point of ``fl-epe``: every command is in a file of its own in this room."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence

from rich.console import Console

import fl_epe
from fl_epe.auditing import NotMeasured
from fl_epe.cli.advise import add_advise
from fl_epe.cli.compare import add_compare
from fl_epe.cli.console import STATUS_NOT_MEASURED
from fl_epe.cli.data import add_data
from fl_epe.cli.estimate import add_estimate
from fl_epe.cli.export import add_export
from fl_epe.cli.report import add_report
from fl_epe.cli.run import add_resume, add_run
from fl_epe.cli.stopping import exit_status, signals_as_interrupts
from fl_epe.old_names import OLD_NAMES

_TRAIN_WITH = ("torch", "sklearn")  # the extra "sim"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status.

    0, 2 for bad input, 3 if what was asked for was not measured, 128 + n after signal n.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # ε and θ, whatever the terminal's encoding
            stream.reconfigure(errors="replace")
    given = sys.argv[1:] if argv is None else argv
    arguments = _parser().parse_args([_with_new_name(word) for word in given])
    errors = Console(stderr=True)
    try:
        with signals_as_interrupts():
            return int(arguments.command(arguments))
    except KeyboardInterrupt as stop:
        errors.print("Stopped.")
        return exit_status(stop)
    except ModuleNotFoundError as error:
        if error.name not in _TRAIN_WITH:
            raise
        text = f"Training needs {error.name}, which is not installed: pip install 'fl-epe[sim]'."
    except NotMeasured as error:
        text = f"Not measured: {error}."
        errors.print(text, style="bold red", markup=False, highlight=False, soft_wrap=True)
        return STATUS_NOT_MEASURED
    except (ValueError, OSError, RuntimeError) as error:
        text = str(error)
    errors.print(f"fl-epe: error: {text}", style="red", markup=False, soft_wrap=True)
    return 2


def _with_new_name(word: str) -> str:
    """An option of version 0.1 under its present name; any other word as it is."""
    option, equals, value = word.partition("=")
    if not option.startswith("--"):
        return word
    name = option[2:].replace("-", "_")
    if name not in OLD_NAMES:
        return word
    return "--" + OLD_NAMES[name].replace("_", "-") + equals + value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fl-epe",
        description="Measure how much privacy a federated training run really gives away: random "
        "canary clients take part, and how well the model remembers them becomes an empirical ε.",
    )
    parser.add_argument("--version", action="version", version=f"fl-epe {fl_epe.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_commands = (
        add_run,
        add_resume,
        add_report,
        add_export,
        add_compare,
        add_advise,
        add_estimate,
        add_data,
    )
    for add_command in add_commands:
        add_command(commands)
    return parser
