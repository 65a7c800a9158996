"""The report of a run: a table in the terminal, pictures, one HTML page and one JSON file.

Use `write_report` for the files and `as_text` for plain text; both need the audit record only.
"""

from __future__ import annotations

import base64
import importlib.resources
import io
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fl_epe.auditing import AuditRecord, EpsilonEstimate, ScoreSummary
from fl_epe.reporting.figures import FIGURES, render
from fl_epe.reporting.notes import analytical_text, finding, notes, number
from fl_epe.reporting.summary import summarize
from fl_epe.reporting.summary_types import RunSummary
from fl_epe.reporting.tables import plain_table


def write_report(record: AuditRecord, directory: Path) -> RunSummary:
    """Write ``report.json``, ``report.html`` and its pictures as PNG files; returns the summary.

    Args:
        record: the audit record of a run.
        directory: where to write; created if it is missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    summary = summarize(record)
    text = json.dumps(summary.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    (directory / "report.json").write_text(text + "\n", encoding="utf-8")
    pictures = []
    for name, (caption, draw) in FIGURES.items():
        image = render(lambda figure, draw=draw: draw(figure, record, summary))  # type: ignore[misc]
        (directory / f"{name}.png").write_bytes(image)
        pictures.append((caption, base64.b64encode(image).decode()))
    page = _page(record, summary, pictures)
    (directory / "report.html").write_text(page, encoding="utf-8")
    return summary


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


def as_text(summary: RunSummary, width: int = 100) -> str:
    """The finding in a sentence, the table and the notes, as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, markup=False, emoji=False)
    console.print(finding(summary), highlight=False)
    console.print(epsilon_table(summary))
    for note in notes(summary):
        console.print(f"- {note}", highlight=False)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def table_rows(summary: RunSummary) -> list[tuple[str, ...]]:
    """The cells of the table, as text."""
    rows: list[tuple[str, ...]] = []
    for row in summary.rows():
        found, bound = row.part.estimate, row.part.lower_bound
        rows.append(
            (
                row.sees,
                row.name,
                number(found.epsilon),
                _interval(found),
                "–" if bound is None else number(bound),
                analytical_text(summary),
            )
        )
    return rows


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
    bounds.add_column("valid", no_wrap=True)
    bounds.add_column("assumes")
    for row in result.bounds:
        valid = "yes" if row.valid else "no"
        bounds.add_row(row.method, number(row.epsilon), valid, row.assumption)
    headings = ("scores", "Anderson–Darling A²", "p-value")
    gaussian = plain_table("Are the scores Gaussian?", headings, left=3)
    for scores, test in result.gaussian.items():
        gaussian.add_row(scores, f"{test.statistic:.3f}", f"{test.p_value:.3g}")
    return [estimates, bounds, gaussian] if result.gaussian else [estimates, bounds]


def _page(record: AuditRecord, summary: RunSummary, pictures: list[tuple[str, str]]) -> str:
    import jinja2

    source = importlib.resources.files("fl_epe") / "reporting" / "templates" / "report.html.j2"
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(
        source.read_text(encoding="utf-8")
    )
    return template.render(
        summary=summary,
        finding=finding(summary),
        headlines=_headlines(summary),
        rows=list(zip(summary.rows(), table_rows(summary), strict=True)),
        bounds=_bound_cells(summary),
        notes=notes(summary),
        pictures=pictures,
        config=record.provenance.config,
        versions=record.provenance.versions,
    )


def _headlines(summary: RunSummary) -> list[tuple[str, str, str]]:
    """The numbers at the top of the page: value, meaning and interval."""
    shown = []
    for part, words in (
        (summary.final.displacement, "ε for an adversary who sees the final model"),
        (summary.every_round.matched_filter, "ε for an adversary who sees every round"),
    ):
        if part is not None:
            shown.append((number(part.estimate.epsilon), words, _interval(part.estimate)))
    shown.append((analytical_text(summary), "analytical ε, an upper bound", ""))
    if (accuracy := summary.metrics.accuracy) is not None:
        shown.append((f"{accuracy:.1%}", "accuracy on held-out data", ""))
    return shown


def _bound_cells(summary: RunSummary) -> list[tuple[str, ...]]:
    """Every lower bound: its name, its ε for both adversaries, its validity and its assumption."""
    others = {row.method: number(row.epsilon) for row in summary.every_round.bounds}
    return [
        (
            row.method,
            number(row.epsilon),
            others.get(row.method, ""),
            "yes" if row.valid else "no",
            row.assumption,
        )
        for row in summary.final.bounds
    ]
