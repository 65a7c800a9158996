"""Compares participation schedules: which gives away how much, to whom.

Example:
    >>> from fl_epe.compare import Plan
    >>> plan = Plan(schedules=("epochs", "poisson"), noise_multipliers=(0.2, 0.4))
    >>> len(list(plan.cells()))
    12
"""

from fl_epe.compare.charts import (
    plain_ticks,
)
from fl_epe.compare.measure import (
    Machine,
    record_path,
)
from fl_epe.compare.page import (
    notes_of,
    table_of,
    write_comparison,
)
from fl_epe.compare.plan import (
    DEFAULT_SCHEDULES,
    Cell,
    Plan,
    read_plan,
)
from fl_epe.compare.rows import (
    Epsilon,
    Row,
    rows_of,
)
from fl_epe.compare.runner import (
    carry_out,
)

__all__ = [
    "DEFAULT_SCHEDULES",
    "Cell",
    "Epsilon",
    "Machine",
    "Plan",
    "Row",
    "carry_out",
    "notes_of",
    "plain_ticks",
    "read_plan",
    "record_path",
    "rows_of",
    "table_of",
    "write_comparison",
]
