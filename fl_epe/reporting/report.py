"""The report of a run: a table in the terminal, pictures, one HTML page and one JSON file.

Use `write_report` for the files and `as_text` for plain text; both need the audit record only. The
page is one file that asks for nothing from anywhere: charts are drawn by plotly, whose script is in
it, compressed (2.0 MB of 4.8 MB). A browser that cannot unpack it, or runs no scripts, shows the
still pictures.
"""

import base64
import datetime
import functools
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fl_epe.auditing import AuditRecord, ScoreSummary
from fl_epe.auditing.bounds import bound_rows
from fl_epe.files import write_bytes, write_text
from fl_epe.reporting.chart_rounds import run_charts
from fl_epe.reporting.charts import Chart
from fl_epe.reporting.headline import (
    FIRST_FAULTS,
    NOT_MEASURED,
    fault_lines,
    fault_rows,
    headline,
    meaning,
    run_again,
    status_line,
)
from fl_epe.reporting.notes import notes_by_weight
from fl_epe.reporting.numbers import JSON, number
from fl_epe.reporting.still import picture, still
from fl_epe.reporting.summary import summarize
from fl_epe.reporting.summary_types import RunSummary, Unmeasured
from fl_epe.reporting.tables import (
    Terminal,
    analytical_text,
    bound_cells,
    interval,
    plain_table,
    table_rows,
)
from fl_epe.reporting.verdict import statement_cells, verdict_details, verdict_text

_LARGE_OVERLAP = 0.02  # one canary alone then has a shift that is larger by half of it


def write_report(
    record: AuditRecord, directory: Path, summary: RunSummary | None = None
) -> RunSummary:
    """Write ``report.json``, ``report.html`` and ``epsilon.png``; returns the summary.

    Without an ε there is no picture, and one of an earlier report is removed.

    Args:
        record: the audit record of a run.
        directory: where to write; created if it is missing.
        summary: of the record, if it is at hand.
    """
    record = record.in_order()
    summary = summary or summarize(record)
    return _write(directory, summary, run_charts(record, None, summary.delta, summary.confidence))


def _day_of(path: Path) -> str | None:
    try:
        seconds = path.stat().st_mtime
    except OSError:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).date().isoformat()


def write_unmeasured(summary: RunSummary, directory: Path) -> RunSummary:
    """Write ``report.json`` and ``report.html`` of a run that left no record; returns the summary.

    Args:
        summary: from `summarize_unmeasured`.
        directory: where to write; created if it is missing.
    """
    return _write(directory, summary, ())


def _write(directory: Path, summary: RunSummary, charts: Sequence[Chart]) -> RunSummary:
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summary.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    write_text(directory / "report.json", text + "\n")
    (directory / "epsilon.png").unlink(missing_ok=True)
    for chart in charts:
        if chart.name == "epsilon":
            write_bytes(directory / "epsilon.png", picture(chart, "png"))
    written = None if summary.rounds is None else _day_of(directory / "record.npz")
    write_text(directory / "report.html", _report_page(summary, charts, written))
    return summary


def _epsilon_table(summary: RunSummary, details: bool) -> Table:
    interval = f"{summary.confidence:.0%} interval"
    headings = ("sees", "statistic", "ε", interval, "lower bound", "analytical")
    title = f"Empirical ε at δ = {summary.delta:.2g}, by what an adversary sees"
    table = plain_table(title, headings, left=2)
    for column, width in zip(table.columns[2:5], (5, 13, 6), strict=True):
        column.min_width = width
    for row, cells in zip(summary.rows(), table_rows(summary), strict=True):
        if details or not row.paper:
            table.add_row(*cells, style="dim" if row.paper else "")
    return table


def _fault_table(summary: RunSummary) -> Table:
    total = sum(summary.fault_counts.values())
    table = plain_table(f"Faults by kind, {total} in all", ("kind", "count"))
    for kind, count, _ in fault_rows(summary):
        table.add_row(kind, str(count))
    return table


def as_text(summary: RunSummary, width: int = 100, *, details: bool = False) -> str:
    """What `print_report` prints, as plain text."""
    console = Terminal(file=io.StringIO(), width=width, color_system=None)
    print_report(console, summary, bullet="-", details=details)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def print_report(
    console: Console, summary: RunSummary, bullet: str = "•", *, details: bool = False
) -> None:
    """Print what was found, the table and the warnings; red at the top if the run is no success.

    Args:
        console: where to print.
        summary: of the run.
        bullet: before each warning, fault and note.
        details: also the plan, the paper's statistics, what each row states, and all notes.
    """

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False)

    if (line := status_line(summary)) is not None:
        say(line, "bold red")
    say(headline(summary))
    if command := run_again(summary):
        console.print(command, style="bold", markup=False, highlight=False, soft_wrap=True)
    if verdict := verdict_text(summary):
        say(f"{verdict} {verdict_details(summary)}".strip() if details else verdict, "bold")
    for heading, lines in (
        ("Faults", fault_lines(summary)),
        ("Plan", summary.plan if details else []),
    ):
        if lines:
            say(f"{heading}:")
        for text in lines:
            say(f"{bullet} {text}")
    if fault_rows(summary):
        console.print(_fault_table(summary))
    console.print(_epsilon_table(summary, details))
    if details:
        for name, cells in statement_cells(summary):
            say(f"{bullet} {name}: {'; '.join(f'{key} {value}' for key, value in cells)}.")
    first, rest = notes_by_weight(summary)
    for note in (*first, *rest) if details else first:
        say(f"{bullet} {note}", "dim")


def score_tables(result: ScoreSummary) -> list[Table]:
    """What `fl_epe.auditing.summarize_scores` returns, as tables for the terminal."""
    confidence = f"{result.confidence:.0%}"
    estimates = plain_table(
        f"ε at δ = {result.delta:.2g} from {result.observed} + {result.unobserved} scores",
        ("estimate", "ε", f"{confidence} interval"),
    )
    for found in result.estimates:
        estimates.add_row(found.method, number(found.epsilon), interval(found))
    bounds = plain_table(f"Lower bounds, {confidence} one-sided", ("bound", "ε ≥"))
    bounds.add_column("role", no_wrap=True)
    bounds.add_column("assumes")
    for row in bound_rows(result.bounds, result.verdict):
        bounds.add_row(row["method"], number(row["epsilon"]), row["role"], row["assumption"])
    headings = ("scores", "Anderson–Darling A²", "p-value")
    gaussian = plain_table("Are the scores Gaussian?", headings, left=3)
    for scores, test in result.gaussian.items():
        gaussian.add_row(scores, f"{test.statistic:.3f}", f"{test.p_value:.3g}")
    return [estimates, bounds, gaussian] if result.gaussian else [estimates, bounds]


def score_notes(result: ScoreSummary) -> list[str]:
    """Whether bare scores are of canaries that may hide each other, or are unequal."""
    share = result.overlap
    if result.refused is not None:
        return [
            f"Warning: no estimate with known variance: {result.refused}. The other estimates take "
            "all canaries for equal too; the lower bounds do not, but for those that assume a "
            "Gaussian."
        ]
    if share is None or not _LARGE_OVERLAP <= share <= 1.2:  # more cannot be in one release
        return []
    return [
        f"Warning: if all {result.observed} canaries took part in the same release, they are "
        f"{min(share, 1):.0%} of its energy and hide each other; ε of one alone is larger."
    ]


def render_page(template: str, **values: Any) -> str:
    """A page from one of the templates of this room.

    Args:
        template: file name, such as "report.html.j2".
        values: what the template shows.
    """
    import jinja2

    loader = jinja2.PackageLoader("fl_epe", "reporting/templates")
    found = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    return found.get_template(template).render(**values)


def _report_page(summary: RunSummary, charts: Sequence[Chart], written: str | None) -> str:
    first_notes, more_notes = notes_by_weight(summary)
    return render_page(
        "report.html.j2",
        summary=summary,
        status_line=status_line(summary),
        fault_lines=fault_lines(summary),
        fault_rows=fault_rows(summary),
        more_faults=len(summary.faults) > FIRST_FAULTS,
        top=headline(summary),
        again=run_again(summary),
        meaning=meaning(summary),
        verdict=verdict_text(summary),
        verdict_details=verdict_details(summary),
        written=written,
        statements=statement_cells(summary),
        headlines=headlines(summary),
        rows=list(zip(summary.rows(), table_rows(summary), strict=True)),
        bounds=bound_cells(summary),
        first_notes=first_notes,
        more_notes=more_notes,
        charts=[(chart, still(chart)) for chart in charts],
        drawn=_drawn(charts),
        plotly=plotly_script() if charts else "",
        config={name: value for name, value in summary.settings.items() if name != "plan"},
    )


@functools.cache
def plotly_script() -> str:
    """The script of the installed plotly, compressed with gzip and in base64."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()


def _drawn(charts: Sequence[Chart]) -> str:
    """Traces and layouts as JSON that may stand between two tags."""
    values: JSON = {
        chart.name: {"data": chart.traces, "layout": chart.layout, "logs": dict(chart.logs)}
        for chart in charts
    }
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("&", "\\u0026")


def headlines(summary: RunSummary) -> list[tuple[str, str, str]]:
    """The numbers near the top of the page: value, meaning and interval."""
    cards = []
    for part, words in (
        (summary.final.headline, "ε for somebody who has only the finished model"),
        (summary.every_round.headline, "ε for somebody who has every round's model"),
    ):
        if isinstance(part, Unmeasured):
            cards.append((NOT_MEASURED, words, part.reason))
        else:
            cards.append((number(part.estimate.epsilon), words, interval(part.estimate)))
    cards.append((analytical_text(summary), "analytical ε, an upper bound", ""))
    for name, value in summary.metrics.held_out()[:1]:
        words = f"{name} of the model on held-out data: how well it learned, not privacy"
        cards.append((value, words, ""))
    return cards
