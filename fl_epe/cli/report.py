"""``fl-epe report``, ``export`` and ``estimate``: commands that read records and scores."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from fl_epe.auditing import (
    AuditRecord,
    NotMeasured,
    bare_scores,
    read_scores,
    summarize_scores,
)
from fl_epe.checks import ArgumentError, check_not_negative, raise_invalid
from fl_epe.cli.console import (
    NOT_MEASURED,
    print_json,
    print_whole,
    terminal,
    waiting,
)
from fl_epe.cli.guards import import_matplotlib
from fl_epe.files import RECORD, inside, on_one_line, record_in

if TYPE_CHECKING:
    from fl_epe.reporting import Summary

_FIGURES = "figures"  # folder of a run's figures for publication


@dataclasses.dataclass(frozen=True)
class Report:
    """Write report.json, report.html and the pictures again, from record.npz alone.

    With two or more directories, compare the runs: a table, comparison.html, comparison.json and
    comparison.csv, with the settings that differ and which differences of ε are larger than chance.
    Exits with 3 if a run's status is not "ok": unreliable, faulty, diverged or not measured.

    Examples:
        fl-epe report runs/half
        fl-epe report runs/half --figures svg png
        fl-epe report runs/half runs/quarter runs/eighth --output side-by-side

    Attributes:
        run_dirs: holds record.npz, or is such a file by another name, beside which the report is
            written; several are compared.
        figures: also write every figure in the style of a paper into RUN_DIR/figures, as svg, png
            or both, beside it what it draws as CSV, and scores.csv.
        clients: also write clients.csv into RUN_DIR: ε of each client in the log, for adversaries
            who know its rounds. It is personal data.
        delta: of several runs, compare at this target δ (default: that of the runs; if they
            differ, the smallest).
        output: of several runs, directory for comparison.html, .json and .csv (default: the
            current one).
        details: of one run, print all that report.html says in words, not only the answer and
            warnings.
    """

    NAMES: ClassVar = {"run_dir": "RUN_DIR"}

    run_dirs: Annotated[tuple[Path, ...], "RUN_DIR"]
    figures: tuple[Literal["svg", "png"], ...] = ()
    clients: bool = False
    delta: float | None = None
    output: Path | None = None
    details: bool = False

    @waiting("Computing what the record tells")
    def __call__(self, words: Sequence[str]) -> int:
        """Write the report of one run, or compare several."""
        if len(self.run_dirs) > 1:
            excluded = ["figures", "clients", "details"]
            purpose = "one run; report each of them on its own"
        else:
            excluded = ["delta", "output"]
            purpose = "two or more runs that are compared; one was named"
        for name in excluded:
            value = getattr(self, name)
            if value != getattr(Report, name):
                text = f"{{{name}}} is for {purpose}."
                raise ArgumentError(text, **{name: str(value)})
        if len(self.run_dirs) > 1:
            return self._compare()
        return self._report(self.run_dirs[0])

    def _report(self, directory: Path) -> int:
        """Write the report of one run; returns the exit status."""
        from fl_epe.reporting import write_clients, write_figures

        path = _record_of(directory)
        directory = path.parent
        record = AuditRecord.load(path)
        if self.figures:
            inside(directory, directory / _FIGURES)
        summary = print_and_write(record, directory, details=self.details)
        if self.clients:
            path = write_clients(summary, directory / "clients.csv")
            print_whole(
                f"Clients: {path} (personal data: keep it to those who need it)"
            )
        if self.figures:
            written = write_figures(summary, directory / _FIGURES, self.figures)
            print_whole(
                f"Figures: {directory / _FIGURES} ({len(written)} files)"
            )
        return summary.exit_status

    def _compare(self) -> int:
        """Compare several runs; returns the exit status."""
        from fl_epe.reporting import (
            compare_runs,
            print_runs_compared,
            write_runs_compared,
        )

        places = [directory.resolve() for directory in self.run_dirs]
        for directory, place in zip(self.run_dirs, places, strict=True):
            if places.count(place) > 1:
                raise_invalid("run_dir", str(directory), "to be named once")
        records = {
            str(run): AuditRecord.load(_record_of(run)) for run in self.run_dirs
        }
        compared = compare_runs(records, self.delta)
        print()
        print_runs_compared(terminal(), compared)
        import_matplotlib()
        pages = write_runs_compared(compared, self.output or Path())
        print_whole(f"Comparison: {pages[0]}")
        if compared.all_ok:
            return 0
        return NOT_MEASURED


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a copy of record.npz without its seeds, which others may read.

    Whoever has the canary seed can take the canaries out of the model. Every estimate and every
    report of the copy is the same. It still says which clients took part when, as far as the
    record knows; then it is written for you alone, until you give it to somebody.

    Attributes:
        source: folder of a run, or its record.npz.
        destination: file to write, or a folder in which it becomes record.npz.
    """

    source: Annotated[Path, "SOURCE"]
    destination: Annotated[Path, "DEST"]

    def __call__(self, words: Sequence[str]) -> int:
        """Write the copy."""
        source = _record_of(self.source)
        target = self.destination
        if target.is_dir():
            target = target / RECORD
        if target.exists():
            raise_invalid(
                "destination", str(target), "not to exist: name another file"
            )
        record = AuditRecord.load(source).with_values(seeds={})
        names_clients = record.clients.ids is not None
        record.save(target, private=names_clients)
        print_whole(f"{target}: a copy of {source} without seeds")
        if names_clients:
            print_whole(
                "It says which client took part when: personal data, readable by you alone"
            )
        return 0


def _record_of(run: Path) -> Path:
    """The record in a run's folder, or a copy that 'fl-epe export' wrote, under any name."""
    if run.is_file():
        return run
    return record_in(run)


def print_and_write(
    record: AuditRecord, directory: Path, *, details: bool = False
) -> Summary:
    """Write the report of a record into a directory and print it."""
    from fl_epe.reporting import (
        ADVISE,
        print_report,
        summarize,
        what_to_do,
        write_report,
    )

    summary = summarize(record)
    import_matplotlib()
    write_report(summary, directory)
    print()
    print_report(terminal(), summary, details=details)
    lines = summary.performance()
    # The last line is the loss, which is printed only if there is no metric.
    for line in lines[:-1] or lines:
        print_whole(on_one_line(line))
    hint = "" if details else "  (--details prints the rest)"
    print_whole(f"Report: {directory / 'report.html'}{hint}")
    if ADVISE in what_to_do(summary):
        folder = shlex.quote(str(directory))
        print_whole(f"Noise: {ADVISE} --like {folder} --target-epsilon 3")
    return summary


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The answer of a file of scores: ε of one canary, its interval, and what is proved.

    FILE is CSV, TSV, JSON lines, NPZ, JSON or Parquet with columns (or keys) 'observed' and, unless
    --dim is given, 'unobserved'; or 'score' and 'member' (1 took part, 0 did not); or NPY with
    observed scores alone. Larger scores say that a canary took part. Exits with 3 if nothing could
    be measured, if the estimate is unreliable, or if the claim is refuted or could not be decided.

    Attributes:
        file: the scores.
        claim: an ε that is claimed, to be tested as by `assert_private`.
        delta: target δ.
        dim: the scores are cosines in that many dimensions: their null is then exact.
        confidence: of the interval, two-sided, and of the proof, one-sided.
        coins: each canary took part by an independent fair coin: show the one-run bound too.
        details: also print the other estimates and bounds, and tests of normality.
        json: print JSON instead.
    """

    NAMES: ClassVar = {"path": "FILE"}

    file: Annotated[Path, "FILE"]
    claim: float | None = None
    delta: float = 1e-5
    dim: int | None = None
    confidence: float = 0.95
    coins: bool = False
    details: bool = False
    json: bool = False

    def __call__(self, words: Sequence[str]) -> int:
        """Print the estimate."""
        from fl_epe.reporting import print_scores, score_values

        if self.claim is not None:
            check_not_negative("claim", self.claim)
        try:
            with waiting("Computing estimates and bounds"):
                scores = summarize_scores(
                    bare_scores(*read_scores(self.file), self.dim),
                    self.delta,
                    confidence=self.confidence,
                    coins=self.coins,
                    claim=self.claim,
                )
        except NotMeasured as error:
            if not self.json:
                raise
            warning = {"code": "not-measured", "text": str(error)}
            print_json(
                {
                    "status": "not measured",
                    "warnings": [warning],
                    "answer": None,
                    "details": {},
                }
            )
            return NOT_MEASURED
        values = score_values(scores)
        if self.json:
            print_json(values)
        else:
            print_scores(terminal(), scores, details=self.details)
        passed = (
            scores.evidence is None or scores.evidence.verdict == "not violated"
        )
        if values["status"] == "ok" and passed:
            return 0
        return NOT_MEASURED
