"""The HTML page of a run: one file that asks for nothing from anywhere.

Charts are drawn by plotly, whose script is in the page, compressed: 2.0 MB where the script as it
is has 4.8 MB. A browser that cannot unpack it, or runs no scripts, shows the still pictures.
"""

import base64
import functools
import gzip
import json
from collections.abc import Sequence
from typing import Any

from fl_epe.reporting.charts import JSON, Chart
from fl_epe.reporting.headline import headline, meaning
from fl_epe.reporting.notes import notes_by_weight
from fl_epe.reporting.numbers import number
from fl_epe.reporting.status import (
    FIRST_FAULTS,
    NOT_MEASURED,
    fault_lines,
    fault_rows,
    finding,
    status_line,
)
from fl_epe.reporting.still import still
from fl_epe.reporting.summary_types import RunSummary, Unmeasured
from fl_epe.reporting.tables import analytical_text, bound_cells, interval, table_rows
from fl_epe.reporting.verdict import statement_cells, verdict_text


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


def report_page(summary: RunSummary, charts: Sequence[Chart], *, written: str | None = None) -> str:
    """The page of a run.

    Args:
        summary: of the run.
        charts: from `fl_epe.reporting.chart_rounds.run_charts`.
        written: day of the run's record; ``None`` if there is none.
    """
    first_notes, more_notes = notes_by_weight(summary)
    return render_page(
        "report.html.j2",
        summary=summary,
        status_line=status_line(summary),
        fault_lines=fault_lines(summary),
        fault_rows=fault_rows(summary),
        more_faults=len(summary.faults) > FIRST_FAULTS,
        top=headline(summary),
        meaning=meaning(summary),
        finding=finding(summary),
        verdict=verdict_text(summary),
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
