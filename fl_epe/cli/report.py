"""``fl-epe report``: write the report of a run again, from its record alone."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from rich.console import Console

from fl_epe.auditing import AuditRecord
from fl_epe.cli.console import EXIT_STATUS, STATUS_NOT_MEASURED, print_report_path, terminal
from fl_epe.cli.options import a_path, add_command
from fl_epe.compare import RECORD


def add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``report`` to the subcommands."""
    report = add_command(
        commands,
        "report",
        _report,
        summary="write the report of a run again, from its record alone",
        description=f"Write report.json, report.html and the pictures again, from {RECORD} alone. "
        + EXIT_STATUS,
    )
    report.add_argument("run_dir", type=a_path, metavar="RUN_DIR", help=f"holds {RECORD}")
    report.add_argument(
        "--simultaneous",
        action="store_true",
        help="also all valid lower bounds at once, corrected for their number (Bonferroni)",
    )


def _report(arguments: argparse.Namespace) -> int:
    record = AuditRecord.load(arguments.run_dir / RECORD)
    return show_report(terminal(), record, arguments.run_dir, simultaneous=arguments.simultaneous)


def show_report(
    console: Console, record: AuditRecord, directory: Path, *, simultaneous: bool = False
) -> int:
    """Write the report of a record into a directory and print its table and notes.

    Returns:
        The exit status: `STATUS_NOT_MEASURED` unless the summary's status is "ok".
    """
    from fl_epe.reporting import print_report, write_report

    summary = write_report(record, directory, simultaneous=simultaneous)
    console.print()
    print_report(console, summary)
    accuracy = summary.metrics.accuracy
    if accuracy is not None and math.isfinite(accuracy):
        console.print(f"Accuracy on held-out data: {accuracy:.1%}")
    print_report_path(console, directory / "report.html")
    return 0 if summary.status == "ok" else STATUS_NOT_MEASURED
