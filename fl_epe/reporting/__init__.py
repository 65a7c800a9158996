"""Reports: the answer of a record on one screen, on a page, and as figures and JSON.

A report is made from an `AuditRecord` alone, so it can be made again at any time.

Examples:
    >>> from fl_epe.reporting import number
    >>> number(17.2841), number(float("inf"))
    ('17.3', '∞')
"""

from fl_epe.reporting.clients import write_clients
from fl_epe.reporting.numbers import as_json
from fl_epe.reporting.pages import render_page
from fl_epe.reporting.publish import write_figures
from fl_epe.reporting.reliability import SEES
from fl_epe.reporting.report import as_text, print_report, write_report
from fl_epe.reporting.report_json import as_report
from fl_epe.reporting.runs_compared import compare_runs
from fl_epe.reporting.runs_page import print_runs_compared, write_runs_compared
from fl_epe.reporting.score_report import print_scores, score_values
from fl_epe.reporting.sentences import ADVISE, what_to_do
from fl_epe.reporting.silos import (
    silo_metrics,
    silos_json,
    silos_text,
    write_silos_report,
)
from fl_epe.reporting.still import plain_ticks
from fl_epe.reporting.summary import Summary, summarize, summarize_unmeasured
from fl_epe.reporting.tables import Terminal, plain_table
from fl_epe.wording import number

NOT_MEASURED = "not measured"
"""The text in place of a number that was not measured."""

__all__ = [
    "ADVISE",
    "NOT_MEASURED",
    "SEES",
    "Summary",
    "Terminal",
    "as_json",
    "as_report",
    "as_text",
    "compare_runs",
    "number",
    "plain_table",
    "plain_ticks",
    "print_report",
    "print_runs_compared",
    "print_scores",
    "render_page",
    "score_values",
    "silo_metrics",
    "silos_json",
    "silos_text",
    "summarize",
    "summarize_unmeasured",
    "what_to_do",
    "write_clients",
    "write_figures",
    "write_report",
    "write_runs_compared",
    "write_silos_report",
]
