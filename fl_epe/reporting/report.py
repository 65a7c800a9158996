"""What a person reads: the table in the terminal, the pictures, one HTML page, one JSON file."""

from __future__ import annotations

import base64
import importlib.resources
import io
import json
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from fl_epe.auditing import Assessment, AuditRecord, EpsilonEstimate
from fl_epe.reporting.figures import FIGURES, render
from fl_epe.reporting.notes import analytical_text, notes, number
from fl_epe.reporting.summary import summarize
from fl_epe.reporting.summary_types import RunSummary


def write_report(record: AuditRecord, directory: Path) -> RunSummary:
    """Write ``report.json``, ``report.html`` and its pictures as PNG files; returns the summary.

    Args:
        record: what a run left behind; nothing else is needed.
        directory: where to write; made if it is missing.
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
    confidence = f"{summary.confidence:.0%}"
    table = Table(
        title=f"Empirical ε at δ = {summary.delta:.2g}, by what an adversary sees",
        title_justify="left",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    for name in ("sees", "statistic"):
        table.add_column(name, no_wrap=True)
    for name, width in (("ε", 5), (f"{confidence} interval", 13), ("lower bound", 6)):
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    table.add_column("analytical", justify="right", no_wrap=True)
    for row, cells in zip(summary.rows(), table_rows(summary), strict=True):
        table.add_row(*cells, style="dim" if row.paper else "")
    return table


def as_text(summary: RunSummary, width: int = 100) -> str:
    """Table and notes as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
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


def assessment_tables(result: Assessment) -> list[Table]:
    """What `fl_epe.auditing.score_summary.assess_scores` returns, as tables for the terminal."""
    confidence = f"{result.confidence:.0%}"
    estimates = Table(
        title=f"ε at δ = {result.delta:.2g} from {result.observed} + {result.unobserved} scores",
        title_justify="left",
        box=SIMPLE,
    )
    for name, justify in (
        ("estimate", "left"),
        ("ε", "right"),
        (f"{confidence} interval", "right"),
    ):
        estimates.add_column(name, justify=justify)  # type: ignore[arg-type]
    for found in result.estimates:
        estimates.add_row(found.method, number(found.epsilon), _interval(found))
    bounds = Table(title=f"Lower bounds, {confidence} one-sided", title_justify="left", box=SIMPLE)
    for name, justify in (("bound", "left"), ("ε ≥", "right"), ("valid", "left")):
        bounds.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    bounds.add_column("assumes")
    for row in result.bounds:
        valid = "yes" if row.valid else "no"
        bounds.add_row(row.method, number(row.epsilon), valid, row.assumption)
    gaussian = Table(title="Are the scores Gaussian?", title_justify="left", box=SIMPLE)
    for name in ("scores", "Anderson–Darling A²", "p-value"):
        gaussian.add_column(name)
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
        headlines=_headlines(summary),
        rows=list(zip(summary.rows(), table_rows(summary), strict=True)),
        bounds=_bound_cells(summary),
        notes=notes(summary),
        pictures=pictures,
        config=record.provenance.config,
        versions=record.provenance.versions,
    )


def _headlines(summary: RunSummary) -> list[tuple[str, str, str]]:
    """The figures at the top of the page: a number, what it is, and its interval."""
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
    """Every lower bound: its name, its ε for either adversary, whether it is valid, and why."""
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
