"""``fl-epe report``: write the report of a run again, its figures, or several runs side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fl_epe.auditing import AuditRecord
from fl_epe.checks import ArgumentError
from fl_epe.cli.console import EXIT_STATUS, STATUS_NOT_MEASURED, print_report_path, terminal
from fl_epe.cli.options import a_path, add_command, real_number
from fl_epe.compare import RECORD

if TYPE_CHECKING:
    from fl_epe.reporting import RunSummary

_FORMATS = ("pdf", "svg", "png")
FIGURES = "figures"
"""The folder of a run's figures to publish."""

_EXAMPLES = """examples:
  fl-epe report runs/half
  fl-epe report runs/half --figures pdf svg
  fl-epe report runs/half runs/quarter runs/eighth --output side-by-side
"""


def add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``report`` to the subcommands."""
    report = add_command(
        commands,
        "report",
        _report,
        summary="write the report of a run again, or compare several runs",
        description=f"Write report.json, report.html and the pictures again, from {RECORD} alone. "
        "With two or more directories, compare the runs: a table, comparison.html, "
        "comparison.json and comparison.csv, with the settings that differ and which differences "
        "of ε are larger than chance. " + EXIT_STATUS,
        examples=_EXAMPLES,
        spell={"run_dir": "RUN_DIR"}.get,
    )
    report.add_argument(
        "run_dirs",
        type=a_path,
        nargs="+",
        metavar="RUN_DIR",
        help=f"holds {RECORD}; several are compared",
    )
    report.add_argument(
        "--simultaneous",
        action="store_true",
        help="also all valid lower bounds at once, corrected for their number (Bonferroni)",
    )
    report.add_argument(
        "--figures",
        nargs="+",
        choices=_FORMATS,
        metavar="FORMAT",
        help=f"also write every figure in the style of a paper into RUN_DIR/{FIGURES}, as any of "
        "pdf, svg and png, beside it what it draws as CSV, scores.csv and the table for LaTeX",
    )
    several = report.add_argument_group("several runs")
    several.add_argument(
        "--delta",
        type=real_number,
        metavar="X",
        help="compare at this target δ (default: that of the runs; if they differ, the smallest)",
    )
    several.add_argument(
        "--output",
        type=a_path,
        metavar="PATH",
        help="directory for comparison.html, .json and .csv (default: the current one)",
    )


def _report(arguments: argparse.Namespace) -> int:
    if len(arguments.run_dirs) > 1:
        return _compare(arguments)
    for name in ("delta", "output"):
        if (value := getattr(arguments, name)) is not None:
            raise ArgumentError(
                f"{{{name}}} is for two or more runs that are compared; one was named.",
                **{name: str(value)},
            )
    directory = arguments.run_dirs[0]
    record = AuditRecord.load(directory / RECORD)
    if arguments.figures and (directory / FIGURES).is_symlink():
        raise ValueError(f"Expected {directory / FIGURES} to be a folder: it is a link.")
    console = terminal()
    summary = print_and_write(console, record, directory, simultaneous=arguments.simultaneous)
    if arguments.figures:
        from fl_epe.reporting import write_figures

        written = write_figures(record, directory / FIGURES, arguments.figures, summary=summary)
        text = f"Figures: {directory / FIGURES} ({len(written)} files)"
        console.print(text, soft_wrap=True, highlight=False)
    return exit_status_of(summary)


def _compare(arguments: argparse.Namespace) -> int:
    for name in ("simultaneous", "figures"):
        if value := getattr(arguments, name):
            raise ArgumentError(
                f"{{{name}}} is for one run; report each of them on its own.", **{name: value}
            )
    from fl_epe.reporting import compare_runs, print_runs_compared, write_runs_compared

    found = compare_runs(_records(arguments.run_dirs), arguments.delta)
    console, output = terminal(), arguments.output or Path()
    console.print()
    print_runs_compared(console, found)
    pages = write_runs_compared(found, output)
    console.print(f"Comparison: {pages[0]}", soft_wrap=True, highlight=False)
    return 0 if found.measured else STATUS_NOT_MEASURED


def _records(directories: list[Path]) -> dict[str, AuditRecord]:
    """The records by the directories as they were typed.

    Raises:
        ArgumentError: if a directory is typed twice, or holds no record that can be read.
    """
    records: dict[str, AuditRecord] = {}
    seen: dict[Path, Path] = {}
    for directory in directories:
        place = directory.resolve()
        if place in seen:
            raise ArgumentError(
                f"Expected {{run_dir}} to be another run than {str(seen[place])!r}: a run cannot "
                "be compared with itself.",
                run_dir=str(directory),
            )
        seen[place] = directory
        try:
            records[str(directory)] = AuditRecord.load(directory / RECORD)
        except FileNotFoundError as error:
            raise ArgumentError(
                f"Expected {{run_dir}} to hold {RECORD}, the record of a finished run.",
                run_dir=str(directory),
            ) from error
    return records


def print_and_write(
    console: Console, record: AuditRecord, directory: Path, *, simultaneous: bool = False
) -> RunSummary:
    """Write the report of a record into a directory and print its table and notes."""
    from fl_epe.reporting import print_report, write_report

    summary = write_report(record, directory, simultaneous=simultaneous)
    console.print()
    print_report(console, summary)
    for name, value in summary.metrics.held_out():
        console.print(f"The model's {name} on held-out data: {value}", markup=False)
    print_report_path(console, directory / "report.html")
    return summary


def exit_status_of(summary: RunSummary) -> int:
    """`STATUS_NOT_MEASURED` unless the summary's status is "ok"."""
    return 0 if summary.status == "ok" else STATUS_NOT_MEASURED
