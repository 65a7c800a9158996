"""``fl-epe report`` and ``fl-epe export``: what is made of the records of finished runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from fl_epe.auditing import AuditRecord
from fl_epe.checks import ArgumentError, raise_invalid
from fl_epe.cli.console import print_whole, terminal
from fl_epe.cli.errors import NOT_MEASURED
from fl_epe.files import RECORD

if TYPE_CHECKING:
    from fl_epe.reporting import RunSummary

_FIGURES = "figures"  # the folder of a run's figures to publish


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
        if self.figures and (directory / _FIGURES).is_symlink():
            raise ValueError(f"Expected {directory / _FIGURES} to be a folder: it is a link.")
        summary = print_and_write(record, directory)
        if self.figures:
            from fl_epe.reporting import write_figures

            written = write_figures(record, directory / _FIGURES, self.figures, summary=summary)
            print_whole(f"Figures: {directory / _FIGURES} ({len(written)} files)")
        return exit_status_of(summary)

    def _compare(self) -> int:
        from fl_epe.reporting import compare_runs, print_runs_compared, write_runs_compared

        places = [directory.resolve() for directory in self.run_dirs]
        for directory, place in zip(self.run_dirs, places, strict=True):
            if places.count(place) > 1:
                raise_invalid("run_dir", str(directory), "to be named once")
        records = {str(run): AuditRecord.load(run / RECORD) for run in self.run_dirs}
        found = compare_runs(records, self.delta)
        print()
        print_runs_compared(terminal(), found)
        pages = write_runs_compared(found, self.output or Path())
        print_whole(f"Comparison: {pages[0]}")
        return 0 if found.measured else NOT_MEASURED


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a copy of record.npz without its seeds, which others may read.

    Whoever has the canary seed can take the canaries out of the model. Every estimate and every
    report of the copy is the same. It still says which clients took part when, as far as the
    record knows.

    Attributes:
        source: folder of a run, or its record.npz.
        destination: file to write, or a folder in which it becomes record.npz.
    """

    source: Annotated[Path, "SOURCE"]
    destination: Annotated[Path, "DEST"]

    def __call__(self, words: Sequence[str]) -> int:
        """Write the copy."""
        source, target = (
            path / RECORD if path.is_dir() else path for path in (self.source, self.destination)
        )
        if target.exists():
            raise_invalid("destination", str(target), "not to exist: name another file")
        AuditRecord.load(source).with_values(seeds={}).save(target, private=False)
        print_whole(f"{target}: a copy of {source} without seeds")
        return 0


def print_and_write(record: AuditRecord, directory: Path) -> RunSummary:
    """Write the report of a record into a directory and print its table and notes."""
    from fl_epe.reporting import print_report, write_report

    summary = write_report(record, directory)
    print()
    print_report(terminal(), summary)
    for name, value in summary.metrics.held_out():
        print_whole(f"The model's {name} on held-out data: {value}")
    print_whole(f"Report: {directory / 'report.html'}")
    return summary


def exit_status_of(summary: RunSummary) -> int:
    """`NOT_MEASURED` unless the summary's status is "ok"."""
    return 0 if summary.status == "ok" else NOT_MEASURED
