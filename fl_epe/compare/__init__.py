"""Compares participation schedules: how much each gives away, and to whom.

Write a `Plan`, measure its cells with `carry_out`, gather them with `rows_of` and write tables,
pictures and a page with `write_comparison`. The command ``fl-epe compare`` does all four.

Examples:
    >>> from fl_epe.compare import Plan
    >>> plan = Plan(schedules=("epochs", "poisson"), noise_multipliers=(0.2, 0.4))
    >>> len(list(plan.cells()))
    12
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_epe.compare.like import CHECKPOINT, RECORD, load_run, rounds_like, server_like
from fl_epe.compare.plan import CLIENTS, DEFAULT_SCHEDULES, ROUNDS, Cell, Plan, read_plan, with_log
from fl_epe.lazy import lazy_names

if TYPE_CHECKING:
    from fl_epe.compare.measure import Machine, record_path
    from fl_epe.compare.page import failed_of, finding_of, notes_of, table_of, write_comparison
    from fl_epe.compare.rows import Epsilon, Row, rows_of
    from fl_epe.compare.runner import carry_out

__all__ = [
    "CHECKPOINT",
    "CLIENTS",
    "DEFAULT_SCHEDULES",
    "RECORD",
    "ROUNDS",
    "Cell",
    "Epsilon",
    "Machine",
    "Plan",
    "Row",
    "carry_out",
    "failed_of",
    "finding_of",
    "load_run",
    "notes_of",
    "read_plan",
    "record_path",
    "rounds_like",
    "rows_of",
    "server_like",
    "table_of",
    "with_log",
    "write_comparison",
]

__getattr__, __dir__ = lazy_names(  # what measures and draws, so that the command line is quick
    __name__,
    {
        "fl_epe.compare.measure": ("Machine", "record_path"),
        "fl_epe.compare.page": (
            "failed_of",
            "finding_of",
            "notes_of",
            "table_of",
            "write_comparison",
        ),
        "fl_epe.compare.rows": ("Epsilon", "Row", "rows_of"),
        "fl_epe.compare.runner": ("carry_out",),
    },
)
