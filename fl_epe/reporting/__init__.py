"""What a person reads: the summary of a record, tables, notes, figures and pages.

A report is made from an `AuditRecord` alone, so it can be made again at any time.

Examples:
    >>> from fl_epe.reporting import number
    >>> number(17.2841), number(float("inf"))
    ('17.3', '∞')
"""

from fl_epe.reporting.canary_advice import canary_lines
from fl_epe.reporting.figures import plain_ticks
from fl_epe.reporting.noise_and_exposure import advice_lines, exposure_lines, exposure_tables
from fl_epe.reporting.notes import finding, notes
from fl_epe.reporting.numbers import number
from fl_epe.reporting.report import (
    as_text,
    epsilon_table,
    print_report,
    score_notes,
    score_tables,
    write_report,
    write_unmeasured,
)
from fl_epe.reporting.status import NOT_MEASURED
from fl_epe.reporting.summary import summarize, summarize_unmeasured
from fl_epe.reporting.summary_types import RunSummary, StatisticSummary, Unmeasured
from fl_epe.reporting.verdict import most_text
from fl_epe.reporting.verdict_types import Claims, Statement, Verdict

__all__ = [
    "NOT_MEASURED",
    "Claims",
    "RunSummary",
    "Statement",
    "StatisticSummary",
    "Unmeasured",
    "Verdict",
    "advice_lines",
    "as_text",
    "canary_lines",
    "epsilon_table",
    "exposure_lines",
    "exposure_tables",
    "finding",
    "most_text",
    "notes",
    "number",
    "plain_ticks",
    "print_report",
    "score_notes",
    "score_tables",
    "summarize",
    "summarize_unmeasured",
    "write_report",
    "write_unmeasured",
]
