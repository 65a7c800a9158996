"""``fl-epe report``, ``export`` and ``estimate``: commands that read records and scores."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Sequence
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
    NOT_OK,
    print_json,
    print_unwrapped,
    terminal,
    waiting,
)
from fl_epe.cli.guards import import_matplotlib
from fl_epe.files import RECORD, inside, on_one_line, record_in

if TYPE_CHECKING:
    from fl_epe.reporting import Summary


@dataclasses.dataclass(frozen=True)
class Report:
    """Write report.json, report.html and the figures of a run again, from its record.npz alone.

    With two or more runs, compare them: a table, comparison.html, comparison.json and
    comparison.csv show the settings that differ, and which differences of ε are significant.
    Exits with 3 if a run's status is not "ok": unreliable, faulty, diverged or not measured.

    Examples:
        fl-epe report runs/half
        fl-epe report runs/half --figures svg png
        fl-epe report runs/half runs/quarter runs/eighth --output side-by-side

    Attributes:
        run_dirs: folder with record.npz, or a record file under any name; the report is written
            into the same folder. Several runs are compared.
        figures: also write every figure for a paper into RUN_DIR/figures, as svg, png or both,
            each with its data as CSV, and scores.csv. For one run only.
        clients: also write clients.csv into RUN_DIR: ε of each client in the participation log,
            for adversaries who know the client's rounds. It is personal data. For one run only.
        delta: target δ at which several runs are compared (default: that of the runs; if they
            differ, the smallest).
        output: folder for the comparison of several runs (default: the current folder).
        details: print everything that report.html says in words, not only the answer and the
            warnings. For one run only.
    """

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
            self._refuse(
                ("figures", "clients", "details"),
                "is for one run: report each of them separately",
            )
            return self._compare()
        self._refuse(
            ("delta", "output"), "is for two or more runs, but one was named"
        )
        return self._report(self.run_dirs[0])

    def _refuse(self, names: Collection[str], reason: str) -> None:
        """Raise an `ArgumentError` if one of these options was typed."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in names and value != field.default:
                raise ArgumentError(
                    f"{{{field.name}}} {reason}.", **{field.name: value}
                )

    def _report(self, run: Path) -> int:
        """Write the report of one run; returns the exit status."""
        from fl_epe.reporting import write_clients, write_figures

        path = _record_of(run)
        folder = path.parent
        record = AuditRecord.load(path)
        figures = folder / "figures"
        if self.figures:
            # A link that leads out of the folder is refused before anything is written.
            figures = inside(folder, figures)
        summary = print_and_write(record, folder, details=self.details)
        if self.clients:
            path = write_clients(summary, folder / "clients.csv")
            print_unwrapped(
                f"Clients: {path} (personal data: keep it to those who need it)"
            )
        if self.figures:
            written = write_figures(summary, figures, self.figures)
            print_unwrapped(f"Figures: {figures} ({len(written)} files)")
        return summary.exit_status

    def _compare(self) -> int:
        """Compare several runs; returns the exit status."""
        from fl_epe.reporting import (
            compare_runs,
            print_runs_compared,
            write_runs_compared,
        )

        folders = [run.resolve() for run in self.run_dirs]
        for run, folder in zip(self.run_dirs, folders, strict=True):
            if folders.count(folder) > 1:
                raise_invalid("run_dirs", run, "to be named once")
        records = {
            str(run): AuditRecord.load(_record_of(run)) for run in self.run_dirs
        }
        compared = compare_runs(records, self.delta)
        print()
        print_runs_compared(terminal(), compared)
        import_matplotlib()
        pages = write_runs_compared(compared, self.output or Path())
        print_unwrapped(f"Comparison: {pages[0]}")
        if compared.all_ok:
            return 0
        return NOT_OK


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a copy of record.npz without its seeds, to share with others.

    Whoever has the canary seed can project the canaries out of the model. All estimates and reports
    of the copy are the same as those of the record. The copy keeps the participation pattern of the
    clients, if the record has it. That is personal data, so only you can read the file.

    Attributes:
        source: folder of a run, or its record.npz.
        destination: file to write, or a folder, in which the copy is named record.npz.
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
                "destination", target, "not to exist: name another file"
            )
        record = AuditRecord.load(source).with_values(seeds={})
        names_clients = record.clients.ids is not None
        record.save(target, private=names_clients)
        print_unwrapped(f"{target}: a copy of {source} without seeds")
        if names_clients:
            print_unwrapped(
                "It has the rounds of each client, which are personal data: only you can read it"
            )
        return 0


def _record_of(run: Path) -> Path:
    """The path of the record in a run's folder; a path of a file is that of the record."""
    if run.is_file():
        return run
    return record_in(run)


def print_and_write(
    record: AuditRecord, folder: Path, *, details: bool = False
) -> Summary:
    """Write the report of a record into a folder and print it."""
    from fl_epe.reporting import (
        ADVISE,
        print_report,
        summarize,
        what_to_do,
        write_report,
    )

    summary = summarize(record)
    import_matplotlib()
    write_report(summary, folder)
    print()
    print_report(terminal(), summary, details=details)
    lines = summary.performance()
    # The last line is the loss, which is left out beside a metric such as accuracy.
    for line in lines[:-1] or lines:
        print_unwrapped(on_one_line(line))
    hint = "" if details else "  (--details prints the rest)"
    print_unwrapped(f"Report: {folder / 'report.html'}{hint}")
    # The advice has the name of this command if more noise would help.
    if ADVISE in what_to_do(summary):
        like = shlex.quote(str(folder))
        print_unwrapped(f"Noise: {ADVISE} --like {like} --target-epsilon 3")
    return summary


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Estimate ε of a canary from a file of scores, with a confidence interval and a lower bound.

    FILE is CSV, TSV, JSON lines, NPZ, JSON or Parquet with columns (or keys) 'observed' and, unless
    --dim is given, 'unobserved'; or 'score' and 'member' (1 took part, 0 did not); or NPY with
    observed scores alone. Larger scores indicate that a canary took part. Exits with 3 if ε could
    not be measured, if the estimate is unreliable, or if the claim is refuted or undecided.

    Attributes:
        file: file of the scores.
        claim: a claimed ε, which is tested as by `assert_private`.
        delta: target δ.
        dim: dimension, if the scores are cosines: then the exact null distribution is used.
        confidence: confidence level of the interval (two-sided) and of the lower bound
            (one-sided).
        coins: also show the one-run bound, which needs that an independent fair coin decided for
            each canary whether it took part.
        details: also print the other estimates and bounds, and tests of normality.
        json: print JSON instead of text.
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
            return NOT_OK
        values = score_values(scores)
        if self.json:
            print_json(values)
        else:
            print_scores(terminal(), scores, details=self.details)
        evidence = scores.evidence
        claim_holds = evidence is None or evidence.verdict == "not violated"
        if values["status"] == "ok" and claim_holds:
            return 0
        return NOT_OK
