"""What a person reads: the summary of a record, tables, notes, figures and pages.

A report is made from an `AuditRecord` alone, so it can be made again at any time.

Examples:
    >>> from fl_epe.reporting import number
    >>> number(17.2841), number(float("inf"))
    ('17.3', '∞')
"""

from fl_epe.reporting.audit_result import AuditResult, AuditTable, Line, Picture, write_audit
from fl_epe.reporting.canary_advice import canary_lines
from fl_epe.reporting.drawing import plain_ticks
from fl_epe.reporting.noise_and_exposure import advice_lines, exposure_lines, exposure_tables
from fl_epe.reporting.notes import finding, notes
from fl_epe.reporting.numbers import number
from fl_epe.reporting.page import render_page
from fl_epe.reporting.publish import FIGURE_FORMATS, FigureFormat, write_figures
from fl_epe.reporting.report import (
    as_text,
    epsilon_table,
    print_report,
    score_notes,
    score_tables,
    write_report,
    write_unmeasured,
)
from fl_epe.reporting.runs_compared import RunsCompared, compare_runs
from fl_epe.reporting.runs_page import print_runs_compared, write_runs_compared
from fl_epe.reporting.status import NOT_MEASURED
from fl_epe.reporting.summary import summarize, summarize_unmeasured
from fl_epe.reporting.summary_types import RunSummary, StatisticSummary, Unmeasured
from fl_epe.reporting.tables import Terminal
from fl_epe.reporting.verdict import most_text
from fl_epe.reporting.verdict_types import Claims, Statement, Verdict

__all__ = [
    "FIGURE_FORMATS",
    "NOT_MEASURED",
    "AuditResult",
    "AuditTable",
    "Claims",
    "FigureFormat",
    "Line",
    "Picture",
    "RunSummary",
    "RunsCompared",
    "Statement",
    "StatisticSummary",
    "Terminal",
    "Unmeasured",
    "Verdict",
    "advice_lines",
    "as_text",
    "canary_lines",
    "compare_runs",
    "epsilon_table",
    "exposure_lines",
    "exposure_tables",
    "finding",
    "most_text",
    "notes",
    "number",
    "plain_ticks",
    "print_report",
    "print_runs_compared",
    "render_page",
    "score_notes",
    "score_tables",
    "summarize",
    "summarize_unmeasured",
    "write_audit",
    "write_figures",
    "write_report",
    "write_runs_compared",
    "write_unmeasured",
]
