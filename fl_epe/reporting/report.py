"""The report of a run: one screen in the terminal, one HTML page and one JSON file.

Use `write_report` for the files and `as_text` for plain text; both take a summary. Beside the page,
the chart of ε is written as a picture. The page is self-contained: charts are drawn by plotly,
whose script of 4.8 MB is in it, compressed to 2.0 MB. A browser that cannot unpack it, or runs no
scripts, shows the still pictures.
"""

import base64
import functools
import gzip
import io
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fl_epe.files import write_bytes, write_json, write_text
from fl_epe.reporting import sentences
from fl_epe.reporting.chart_rounds import run_charts
from fl_epe.reporting.charts import Chart
from fl_epe.reporting.details import details as details_of
from fl_epe.reporting.pages import render_page
from fl_epe.reporting.report_json import as_report
from fl_epe.reporting.still import picture, still
from fl_epe.reporting.summary import Summary, in_words, settings_of
from fl_epe.reporting.tables import Terminal, plain_table
from fl_epe.wording import counted

# A report has at most 200 words, and fits on a screen of 24 lines of 80 letters. A command prints
# up to 14 words on 4 lines after it.
_MAX_WORDS = 200 - 14
_MAX_LINES = 24 - 4
_WIDTH = 80

# The lines of the table besides its rows: the title, the headings and a rule.
_TABLE_HEAD_LINES = 3


def write_report(summary: Summary, directory: Path) -> None:
    """Write ``report.json``, ``report.html`` and ``epsilon.png``.

    If no ε was measured, there is no picture, and that of an earlier report is removed. If the
    report cannot be made, the files of an earlier report stay as they are.

    Args:
        summary: the summary of a record, from `summarize`, or from `summarize_unmeasured`.
        directory: where to write; created if it is missing.
    """
    charts = run_charts(summary)
    values = as_report(summary)
    page = _report_page(summary, charts)
    epsilon_picture = None
    for chart in charts:
        if chart.name == "epsilon":
            epsilon_picture = picture(chart, "png")
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "report.json", values)
    epsilon_png = directory / "epsilon.png"
    if epsilon_picture is None:
        epsilon_png.unlink(missing_ok=True)
    else:
        write_bytes(epsilon_png, epsilon_picture)
    write_text(directory / "report.html", page)


def as_text(summary: Summary, *, details: bool = False) -> str:
    """The text that `print_report` prints, without colors."""
    console = Terminal(file=io.StringIO(), width=_WIDTH, color_system=None)
    print_report(console, summary, bullet="-", details=details)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def print_report(
    console: Console,
    summary: Summary,
    bullet: str = "•",
    *,
    details: bool = False,
) -> None:
    """Print the answer on one screen; its first sentence is red if the status is not "ok".

    Args:
        console: where to print.
        summary: the summary of the run.
        bullet: the sign before each warning.
        details: whether to print the details of the page too, under their questions.
    """

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False)

    first = sentences.first_sentence(summary)
    advice = sentences.what_to_do(summary)
    rows = sentences.table_rows(summary)
    note = sentences.table_note(summary)
    say(first, None if summary.status == "ok" else "bold red")
    say(advice)
    title = sentences.table_title(summary)
    console.print(plain_table(title, sentences.HEADINGS, rows=rows))
    if note:
        say(note, "dim")
    warnings = [
        *sentences.more_warnings(summary),
        *sentences.fault_lines(summary),
    ]
    if not details:
        warnings = _fitting(warnings, [first, advice, note], title, rows)
    for text in warnings:
        say(f"{bullet} {text}")
    if details:
        for question, lines in details_of(summary):
            say(question, "bold")
            for text in lines:
                say(f"{bullet} {text}", "dim")


def _fitting(
    warnings: list[str],
    paragraphs: Sequence[str],
    title: str,
    rows: Sequence[Sequence[str]],
) -> list[str]:
    """The warnings that fit on the screen, and a note on how many do not.

    Args:
        warnings: all warnings.
        paragraphs: the text above the warnings, without the table.
        title: the title of the table.
        rows: the cells of the table.
    """
    cells = [cell for row in [sentences.HEADINGS, *rows] for cell in row]
    words = sum(len(text.split()) for text in [*paragraphs, title, *cells])
    lines = _TABLE_HEAD_LINES + len(rows)
    lines += sum(len(textwrap.wrap(text, _WIDTH)) for text in paragraphs)
    for index, text in enumerate(warnings):
        line = f"• {text}"
        words += len(line.split())
        lines += len(textwrap.wrap(line, _WIDTH))
        if words > _MAX_WORDS or lines > _MAX_LINES:
            hidden = counted(len(warnings) - index, "more warning")
            return [*warnings[:index], f"{hidden} in the details."]
    return warnings


def _report_page(summary: Summary, charts: Sequence[Chart]) -> str:
    """The page, with the charts as still pictures and as data for plotly."""
    record = summary.record
    plotly_charts = {
        chart.name: {"data": chart.traces, "layout": chart.layout}
        for chart in charts
    }
    charts_json = json.dumps(
        plotly_charts,
        ensure_ascii=False,
        allow_nan=False,
        separators=(",", ":"),
    )
    return render_page(
        "report.html.j2",
        summary=summary,
        sentences=sentences,
        questions=details_of(summary),
        provenance=record.provenance if record else None,
        charts=[(chart, still(chart)) for chart in charts],
        # Escaped, the JSON cannot end the tag that it is in.
        charts_json=charts_json.replace("<", "\\u003c").replace("&", "\\u0026"),
        plotly=plotly_script() if charts else "",
        config=in_words(summary.settings)
        if record is None
        else settings_of(record),
    )


@functools.cache
def plotly_script() -> str:
    """The script of the installed plotly, compressed with gzip and in base64."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(
        gzip.compress(get_plotlyjs().encode(), 9, mtime=0)
    ).decode()
