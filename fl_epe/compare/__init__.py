"""Compares participation schedules: which gives away how much, to whom."""

from fl_epe.compare.measure import Machine
from fl_epe.compare.page import write_comparison
from fl_epe.compare.plan import DEFAULT_SCHEDULES, Cell, Plan, read_plan
from fl_epe.compare.rows import Epsilon, Row, rows_of
from fl_epe.compare.runner import carry_out

__all__ = [
    "DEFAULT_SCHEDULES",
    "Cell",
    "Epsilon",
    "Machine",
    "Plan",
    "Row",
    "carry_out",
    "read_plan",
    "rows_of",
    "write_comparison",
]
