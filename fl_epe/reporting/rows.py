"""The table of a report as text: the cells of each row, and of every lower bound."""

from __future__ import annotations

from fl_epe.auditing import EpsilonEstimate
from fl_epe.auditing.bounds import BOUNDS
from fl_epe.reporting.numbers import number
from fl_epe.reporting.status import NOT_MEASURED
from fl_epe.reporting.summary_types import Part, RunSummary, Unmeasured


def analytical_text(summary: RunSummary) -> str:
    """The analytical ε; "∞" without noise, "none known" if no theorem applies."""
    epsilon = summary.analytical.epsilon
    return "none known" if epsilon is None else number(epsilon)


def table_rows(summary: RunSummary) -> list[tuple[str, ...]]:
    """The cells of the table, as text."""
    rows: list[tuple[str, ...]] = []
    for row in summary.rows():
        cells = (row.sees, row.name, *part_cells(row.part), analytical_text(summary))
        rows.append(cells)
    return rows


def part_cells(part: Part) -> tuple[str, str, str]:
    """ε, interval and lower bound as text."""
    if isinstance(part, Unmeasured):
        return NOT_MEASURED, "–", "–"
    found, bound = part.estimate, part.lower_bound
    return number(found.epsilon), interval(found), "–" if bound is None else number(bound)


def interval(estimate: EpsilonEstimate) -> str:
    """Both ends of an interval as text."""
    return f"{number(estimate.low)} – {number(estimate.high)}"


def bound_cells(summary: RunSummary) -> list[tuple[str, ...]]:
    """Every lower bound: its name, its ε for both adversaries, its role and its assumption."""
    final, every = summary.final.bounds, summary.every_round.bounds
    verdicts = {
        summary.claims.named("final"): "; verdict for final model",
        summary.claims.named("all"): "; verdict for every round",
    }
    return [
        (
            method,
            number(final[method]) if method in final else "",
            number(every[method]) if method in every else "",
            ("exploratory" if BOUNDS[method].valid else "not valid") + verdicts.get(method, ""),
            BOUNDS[method].assumption,
        )
        for method in final | every
    ]
