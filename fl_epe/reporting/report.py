"""The report of a run: a table in the terminal, pictures, one HTML page and one JSON file.

Use `write_report` for the files and `as_text` for plain text; both need the audit record only.
"""

from __future__ import annotations

import base64
import importlib.resources
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fl_epe.auditing import LARGE_OVERLAP, AuditRecord, EpsilonEstimate, ScoreSummary
from fl_epe.reporting.calibration import (
    calibration_alternative,
    calibration_line,
    calibration_notes,
    calibration_table,
)
from fl_epe.reporting.figures import FIGURES, render, shown
from fl_epe.reporting.notes import analytical_text, finding, notes
from fl_epe.reporting.numbers import number
from fl_epe.reporting.status import FIRST_FAULTS, NOT_MEASURED, fault_lines, fault_rows, status_line
from fl_epe.reporting.summary import summarize, summarize_unmeasured
from fl_epe.reporting.summary_types import Part, RunSummary, Unmeasured
from fl_epe.reporting.tables import plain_table
from fl_epe.reporting.verdict import (
    simultaneous_lines,
    statement_cells,
    statement_lines,
    verdict_text,
)


def write_report(record: AuditRecord, directory: Path, *, simultaneous: bool = False) -> RunSummary:
    """Write ``report.json``, ``report.html`` and its pictures as PNG files; returns the summary.

    A picture that would show nothing is left out, and one of an earlier report is removed.

    Args:
        record: the audit record of a run.
        directory: where to write; created if it is missing.
        simultaneous: also compute all valid bounds at once, corrected for their number.
    """
    summary = summarize(record, simultaneous=simultaneous)
    images = {}
    for name in shown(record, summary):
        draw = FIGURES[name][1]
        images[name] = render(lambda figure, draw=draw: draw(figure, record, summary))  # type: ignore[misc]
    _write(directory, summary, images, record.provenance.config)
    return summary


def write_unmeasured(
    directory: Path,
    reason: str,
    *,
    delta: float,
    config: Mapping[str, Any] | None = None,
    faults: Sequence[str] = (),
    fault_counts: Mapping[str, int] | None = None,
) -> RunSummary:
    """Write ``report.json`` and ``report.html`` of a run that left no record; returns the summary.

    Args:
        directory: where to write; created if it is missing.
        reason: why nothing was measured, in a sentence.
        delta: target δ.
        config: settings of the run, as JSON values; a ``plan`` among them is shown.
        faults: what went wrong, in sentences.
        fault_counts: how often each kind of fault happened.
    """
    summary = summarize_unmeasured(
        reason, delta=delta, config=config, faults=faults, fault_counts=fault_counts
    )
    _write(directory, summary, {}, config or {})
    return summary


def _write(
    directory: Path, summary: RunSummary, images: Mapping[str, bytes], config: Mapping[str, Any]
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summary.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    (directory / "report.json").write_text(text + "\n", encoding="utf-8")
    for name in FIGURES:
        path = directory / f"{name}.png"
        if name in images:
            path.write_bytes(images[name])
        else:
            path.unlink(missing_ok=True)
    pictures = [
        (FIGURES[name][0], base64.b64encode(image).decode())
        for name, image in images.items()
        if name != "calibration"  # stands beside its table
    ]
    page = _page(summary, pictures, config, _calibration(summary, images.get("calibration")))
    (directory / "report.html").write_text(page, encoding="utf-8")


def epsilon_table(summary: RunSummary) -> Table:
    """The summary as a table for the terminal."""
    interval = f"{summary.confidence:.0%} interval"
    headings = ("sees", "statistic", "ε", interval, "lower bound", "analytical")
    title = f"Empirical ε at δ = {summary.delta:.2g}, by what an adversary sees"
    table = plain_table(title, headings, left=2)
    for column, width in zip(table.columns[2:5], (5, 13, 6), strict=True):
        column.min_width = width
    for row, cells in zip(summary.rows(), table_rows(summary), strict=True):
        table.add_row(*cells, style="dim" if row.paper else "")
    return table


def fault_table(summary: RunSummary) -> Table:
    """How often each kind of fault happened, as a table for the terminal."""
    total = sum(summary.fault_counts.values())
    table = plain_table(f"Faults by kind, {total} in all", ("kind", "count"))
    for kind, count, _ in fault_rows(summary):
        table.add_row(kind, str(count))
    return table


def as_text(summary: RunSummary, width: int = 100) -> str:
    """The finding in a sentence, the table and the notes, as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, markup=False, emoji=False)
    print_report(console, summary, bullet="-")
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def print_report(console: Console, summary: RunSummary, bullet: str = "•") -> None:
    """Print the finding, the table and the notes; red at the top if the run is no success."""

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False)

    if (line := status_line(summary)) is not None:
        say(line, "bold red")
    say(finding(summary))
    if verdict := verdict_text(summary):
        say(verdict, "bold")
    for heading, lines in _lists(summary):
        say(f"{heading}:")
        for text in lines:
            say(f"{bullet} {text}")
    if fault_rows(summary):
        console.print(fault_table(summary))
    console.print(epsilon_table(summary))
    if calibration := calibration_line(summary.null, summary.least_deviations):
        say(f"{bullet} {calibration}")
    for text in (*statement_lines(summary), *simultaneous_lines(summary)):
        say(f"{bullet} {text}")
    for note in notes(summary):
        say(f"{bullet} {note}", "dim")


def _lists(summary: RunSummary) -> Iterator[tuple[str, Sequence[str]]]:
    """What is told before the numbers: headings and lines."""
    if summary.faults:
        yield "Faults", fault_lines(summary)
    if summary.plan:
        yield "Plan", summary.plan


def table_rows(summary: RunSummary) -> list[tuple[str, ...]]:
    """The cells of the table, as text."""
    rows: list[tuple[str, ...]] = []
    for row in summary.rows():
        cells = (row.sees, row.name, *_part_cells(row.part), analytical_text(summary))
        rows.append(cells)
    return rows


def _part_cells(part: Part) -> tuple[str, str, str]:
    """ε, interval and lower bound as text."""
    if isinstance(part, Unmeasured):
        return NOT_MEASURED, "–", "–"
    found, bound = part.estimate, part.lower_bound
    return number(found.epsilon), _interval(found), "–" if bound is None else number(bound)


def _interval(estimate: EpsilonEstimate) -> str:
    return f"{number(estimate.low)} – {number(estimate.high)}"


def score_tables(result: ScoreSummary) -> list[Table]:
    """What `fl_epe.auditing.summarize_scores` returns, as tables for the terminal."""
    confidence = f"{result.confidence:.0%}"
    estimates = plain_table(
        f"ε at δ = {result.delta:.2g} from {result.observed} + {result.unobserved} scores",
        ("estimate", "ε", f"{confidence} interval"),
    )
    for found in result.estimates:
        estimates.add_row(found.method, number(found.epsilon), _interval(found))
    bounds = plain_table(f"Lower bounds, {confidence} one-sided", ("bound", "ε ≥"))
    bounds.add_column("role", no_wrap=True)
    bounds.add_column("assumes")
    for row in result.bounds:
        bounds.add_row(row.method, number(row.epsilon), result.role(row), row.assumption)
    headings = ("scores", "Anderson–Darling A²", "p-value")
    gaussian = plain_table("Are the scores Gaussian?", headings, left=3)
    for scores, test in result.gaussian.items():
        gaussian.add_row(scores, f"{test.statistic:.3f}", f"{test.p_value:.3g}")
    return [estimates, bounds, gaussian] if result.gaussian else [estimates, bounds]


def score_notes(result: ScoreSummary) -> list[str]:
    """Whether bare scores are of canaries that may hide each other."""
    share = result.overlap
    if share is None or share < LARGE_OVERLAP:
        return []
    if not result.together:
        if share > 1.2:  # more than all of it: they cannot share a release
            return []
        return [
            f"Warning: if all {result.observed} canaries took part in the same release, they are "
            f"{min(share, 1):.0%} of its energy and hide each other; ε of one alone is larger. "
            "Say so with --together (in Python together=True)."
        ]
    lines = [
        f"The canaries are {min(share, 1):.0%} of the energy of their release. The first estimate "
        "takes the others out of what hides one; the other rows, and the lower bounds, leave them "
        "in."
    ]
    if math.isinf(result.estimates[0].high):
        lines.append(
            "Warning: bare cosines do not tell how little else there is, so that its interval has "
            "no upper end. Give the length of the sum of the canaries' directions (--sum-norm, in "
            "Python sum_norm=), or use fewer canaries."
        )
    return lines


def _calibration(summary: RunSummary, image: bytes | None) -> dict[str, Any] | None:
    """What the calibration panel shows; ``None`` without a measured null."""
    null, least = summary.null, summary.least_deviations
    if image is None:
        return None
    names, rows = calibration_table(null, least)
    return {
        "line": calibration_line(null, least),
        "names": names,
        "rows": rows,
        "about": calibration_notes(null, least),
        "image": base64.b64encode(image).decode(),
        "alternative": calibration_alternative(null),
        "caption": FIGURES["calibration"][0],
    }


def _page(
    summary: RunSummary,
    pictures: list[tuple[str, str]],
    config: Mapping[str, Any],
    calibration: Mapping[str, Any] | None,
) -> str:
    import jinja2

    source = importlib.resources.files("fl_epe") / "reporting" / "templates" / "report.html.j2"
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(
        source.read_text(encoding="utf-8")
    )
    return template.render(
        summary=summary,
        status_line=status_line(summary),
        fault_lines=fault_lines(summary),
        fault_rows=fault_rows(summary),
        more_faults=len(summary.faults) > FIRST_FAULTS,
        finding=finding(summary),
        verdict=verdict_text(summary),
        statements=statement_cells(summary),
        at_once=simultaneous_lines(summary),
        headlines=_headlines(summary),
        rows=list(zip(summary.rows(), table_rows(summary), strict=True)),
        bounds=_bound_cells(summary),
        notes=notes(summary),
        calibration=calibration,
        pictures=pictures,
        config={name: value for name, value in config.items() if name != "plan"},
        versions=summary.versions,
    )


def _headlines(summary: RunSummary) -> list[tuple[str, str, str]]:
    """The numbers at the top of the page: value, meaning and interval."""
    cards = []
    for part, words in (
        (summary.final.displacement, "ε for an adversary who sees the final model"),
        (summary.every_round.matched_filter, "ε for an adversary who sees every round"),
    ):
        if isinstance(part, Unmeasured):
            cards.append((NOT_MEASURED, words, part.reason))
        else:
            cards.append((number(part.estimate.epsilon), words, _interval(part.estimate)))
    cards.append((analytical_text(summary), "analytical ε, an upper bound", ""))
    accuracy = summary.metrics.accuracy
    if accuracy is not None and math.isfinite(accuracy):
        cards.append((f"{accuracy:.1%}", "accuracy on held-out data", ""))
    return cards


def _bound_cells(summary: RunSummary) -> list[tuple[str, ...]]:
    """Every lower bound: its name, its ε for both adversaries, its role and its assumption."""
    verdict = summary.claims.verdict
    named = verdict.statement.method if verdict and verdict.statement else None
    of = {"final": "final model", "all": "every round"}
    sides = (summary.final.bounds, summary.every_round.bounds)
    final, every_round = ({row.method: number(row.epsilon) for row in rows} for rows in sides)
    return [
        (
            row.method,
            final.get(row.method, ""),
            every_round.get(row.method, ""),
            ("exploratory" if row.valid else "not valid")
            + (f"; verdict for {of[verdict.threat]}" if verdict and row.method == named else ""),
            row.assumption,
        )
        for row in {row.method: row for rows in sides for row in rows}.values()
    ]
