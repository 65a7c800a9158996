"""What a person reads: the summary of a record, tables, notes, figures and pages.

A report is made from an `AuditRecord` alone, so it can be made again at any time.

Examples:
    >>> from fl_epe.reporting import number
    >>> number(17.2841), number(float("inf"))
    ('17.3', '∞')
"""

from fl_epe.reporting.figures import plain_ticks
from fl_epe.reporting.noise_and_exposure import advice_lines, exposure_lines, exposure_tables
from fl_epe.reporting.notes import finding, notes, number
from fl_epe.reporting.report import as_text, epsilon_table, score_tables, write_report
from fl_epe.reporting.summary import summarize
from fl_epe.reporting.summary_types import StatisticSummary

__all__ = [
    "StatisticSummary",
    "advice_lines",
    "as_text",
    "epsilon_table",
    "exposure_lines",
    "exposure_tables",
    "finding",
    "notes",
    "number",
    "plain_ticks",
    "score_tables",
    "summarize",
    "write_report",
]
