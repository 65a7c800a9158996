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

import importlib
from typing import TYPE_CHECKING, Any

from fl_epe.compare.like import CHECKPOINT, RECORD, load_run, rounds_like, server_like
from fl_epe.compare.plan import DEFAULT_SCHEDULES, Cell, Plan, read_plan

if TYPE_CHECKING:
    from fl_epe.compare.measure import Machine, record_path
    from fl_epe.compare.page import finding_of, notes_of, table_of, write_comparison
    from fl_epe.compare.rows import Epsilon, Row, rows_of
    from fl_epe.compare.runner import carry_out
    from fl_epe.reporting import plain_ticks

__all__ = [
    "CHECKPOINT",
    "DEFAULT_SCHEDULES",
    "RECORD",
    "Cell",
    "Epsilon",
    "Machine",
    "Plan",
    "Row",
    "carry_out",
    "finding_of",
    "load_run",
    "notes_of",
    "plain_ticks",
    "read_plan",
    "record_path",
    "rounds_like",
    "rows_of",
    "server_like",
    "table_of",
    "write_comparison",
]

_LATER = {
    "charts": ("plain_ticks",),
    "measure": ("Machine", "record_path"),
    "page": ("finding_of", "notes_of", "table_of", "write_comparison"),
    "rows": ("Epsilon", "Row", "rows_of"),
    "runner": ("carry_out",),
}


def __getattr__(name: str) -> Any:
    """Import what measures and draws when it is first used, so that the command line is quick."""
    for module, names in _LATER.items():
        if name in names:
            return getattr(importlib.import_module(f"fl_epe.compare.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
