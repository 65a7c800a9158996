"""What stands at the top of a report: whether the run was measured or diverged, and its faults."""

from __future__ import annotations

from fl_epe.auditing import FaultKind
from fl_epe.reporting.summary_types import RunSummary, StatisticSummary, Unmeasured

NOT_MEASURED = "not measured"
"""What stands in place of a number."""

FIRST_FAULTS = 5
"""How many faults stand at the top of a report."""


def status_line(summary: RunSummary) -> str | None:
    """What stands at the top, in red, if the run diverged or was not measured; else ``None``."""
    if summary.status == "ok":
        return None
    why = sentence("; ".join(summary.reasons))
    if summary.status == "not measured":
        return f"Not measured: {why}"
    if summary.status == "faulty":
        return f"Faulty: {why} ε is not that of the mechanism whose privacy is accounted for."
    if summary.status == "doubtful":
        return f"Doubtful: {why}"
    return f"Diverged: {why} No result below is that of a model that learned."


def sentence(reason: str) -> str:
    """A reason with its full stop, unless it is a question."""
    return reason if reason.endswith(("?", "!")) else f"{reason}."


def fault_lines(summary: RunSummary) -> list[str]:
    """The first faults of a run; empty if nothing went wrong."""
    lines = list(summary.faults[:FIRST_FAULTS])
    if (more := len(summary.faults) - FIRST_FAULTS) > 0:
        lines.append(f"… and {more} more; report.json has all.")
    return lines


def fault_rows(summary: RunSummary) -> list[tuple[str, int, str]]:
    """Each kind of fault that happened: its name, how often, and what was done about it."""
    known = {str(kind): kind.meaning for kind in FaultKind}
    counts = sorted(summary.fault_counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [(kind, count, known.get(kind, "")) for kind, count in counts if count]


def measured_parts(summary: RunSummary) -> list[StatisticSummary]:
    """The results behind the table's rows, of those that were measured."""
    return [row.part for row in summary.rows() if isinstance(row.part, StatisticSummary)]


def unmeasured_notes(summary: RunSummary) -> list[str]:
    """Why rows of the table have no number, where the line at the top does not say it."""
    return [
        f"“{row.sees}, {row.name}” was not measured: {sentence(row.part.reason)}"
        for row in summary.rows()
        if isinstance(row.part, Unmeasured) and row.part.reason not in summary.reasons
    ]
