"""``fl-epe report``: write the report of a run again, its figures, or several runs side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rich.console import Console

from fl_epe.auditing import AuditRecord
from fl_epe.checks import ArgumentError, raise_invalid
from fl_epe.cli.console import print_whole, terminal
from fl_epe.cli.errors import NOT_MEASURED
from fl_epe.files import RECORD

if TYPE_CHECKING:
    from fl_epe.reporting import RunSummary

FIGURES = "figures"
"""The folder of a run's figures to publish."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Write report.json, report.html and the pictures again, from record.npz alone.

    With two or more directories, compare the runs: a table, comparison.html, comparison.json and
    comparison.csv, with the settings that differ and which differences of ε are larger than chance.

    Examples:
        fl-epe report runs/half
        fl-epe report runs/half --figures pdf svg
        fl-epe report runs/half runs/quarter runs/eighth --output side-by-side

    Attributes:
        run_dirs: holds record.npz; several are compared.
        figures: also write every figure in the style of a paper into RUN_DIR/figures, as any of
            pdf, svg and png, beside it what it draws as CSV, scores.csv and the table for LaTeX.
        delta: of several runs, compare at this target δ (default: that of the runs; if they
            differ, the smallest).
        output: of several runs, directory for comparison.html, .json and .csv (default: the
            current one).
    """

    NAMES: ClassVar = {"run_dir": "RUN_DIR"}

    run_dirs: Annotated[tuple[Path, ...], "RUN_DIR"]
    figures: tuple[Literal["pdf", "svg", "png"], ...] = ()
    delta: float | None = None
    output: Path | None = None

    def __call__(self, words: Sequence[str]) -> int:
        """Write the report of one run, or compare several."""
        several = len(self.run_dirs) > 1
        for name in ("figures",) if several else ("delta", "output"):
            if (value := getattr(self, name)) not in (None, ()):
                why = "one run; report each of them on its own"
                why = why if several else "two or more runs that are compared; one was named"
                raise ArgumentError(f"{{{name}}} is for {why}.", **{name: str(value)})
        return self._compare() if several else self._report(self.run_dirs[0])

    def _report(self, directory: Path) -> int:
        record = AuditRecord.load(directory / RECORD)
        if self.figures and (directory / FIGURES).is_symlink():
            raise ValueError(f"Expected {directory / FIGURES} to be a folder: it is a link.")
        console = terminal()
        summary = print_and_write(console, record, directory)
        if self.figures:
            from fl_epe.reporting import write_figures

            written = write_figures(record, directory / FIGURES, self.figures, summary=summary)
            print_whole(console, f"Figures: {directory / FIGURES} ({len(written)} files)")
        return exit_status_of(summary)

    def _compare(self) -> int:
        from fl_epe.reporting import compare_runs, print_runs_compared, write_runs_compared

        places = [directory.resolve() for directory in self.run_dirs]
        for directory, place in zip(self.run_dirs, places, strict=True):
            if places.count(place) > 1:
                raise_invalid("run_dir", str(directory), "to be named once")
        records = {str(run): AuditRecord.load(run / RECORD) for run in self.run_dirs}
        found = compare_runs(records, self.delta)
        console = terminal()
        console.print()
        print_runs_compared(console, found)
        pages = write_runs_compared(found, self.output or Path())
        print_whole(console, f"Comparison: {pages[0]}")
        return 0 if found.measured else NOT_MEASURED


def print_and_write(console: Console, record: AuditRecord, directory: Path) -> RunSummary:
    """Write the report of a record into a directory and print its table and notes."""
    from fl_epe.reporting import print_report, write_report

    summary = write_report(record, directory)
    console.print()
    print_report(console, summary)
    for name, value in summary.metrics.held_out():
        console.print(f"The model's {name} on held-out data: {value}", markup=False)
    print_whole(console, f"Report: {directory / 'report.html'}")
    return summary


def exit_status_of(summary: RunSummary) -> int:
    """`NOT_MEASURED` unless the summary's status is "ok"."""
    return 0 if summary.status == "ok" else NOT_MEASURED
