"""What a person reads: the summary of a record, tables, notes, figures and pages.

A report is made from an `AuditRecord` alone, so it can be made again at any time.

Examples:
    >>> from fl_epe.reporting import number
    >>> number(17.2841), number(float("inf"))
    ('17.3', '∞')
"""

from fl_epe.reporting.advice import (
    advice_lines,
    canary_lines,
    canary_table,
    exposure_lines,
    exposure_tables,
)
from fl_epe.reporting.headline import NOT_MEASURED
from fl_epe.reporting.numbers import as_json, number
from fl_epe.reporting.publish import write_figures
from fl_epe.reporting.report import (
    as_text,
    print_report,
    render_page,
    score_notes,
    score_tables,
    write_report,
    write_unmeasured,
)
from fl_epe.reporting.runs_compared import compare_runs
from fl_epe.reporting.runs_page import print_runs_compared, write_runs_compared
from fl_epe.reporting.still import plain_ticks, render
from fl_epe.reporting.summary import summarize, summarize_unmeasured
from fl_epe.reporting.summary_types import RunSummary
from fl_epe.reporting.tables import Terminal, plain_table
from fl_epe.reporting.verdict import most_text

__all__ = [
    "NOT_MEASURED",
    "RunSummary",
    "Terminal",
    "advice_lines",
    "as_json",
    "as_text",
    "canary_lines",
    "canary_table",
    "compare_runs",
    "exposure_lines",
    "exposure_tables",
    "most_text",
    "number",
    "plain_table",
    "plain_ticks",
    "print_report",
    "print_runs_compared",
    "render",
    "render_page",
    "score_notes",
    "score_tables",
    "summarize",
    "summarize_unmeasured",
    "write_figures",
    "write_report",
    "write_runs_compared",
    "write_unmeasured",
]
