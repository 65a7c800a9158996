"""Numbers as reports show them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fl_epe.auditing import AuditRecord


def metric_of(record: AuditRecord) -> str:
    """The name of what a task measures beside its loss, which "eval_accuracy" holds; "" if none."""
    return record.design.metric


def number(value: float | None) -> str:
    """At least three significant digits; "∞" for ``None`` and infinity."""
    if value is None or math.isinf(value):
        return "∞"
    if value == 0:
        return "0"
    if value >= 1e6:
        return f"{value:.2e}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"
