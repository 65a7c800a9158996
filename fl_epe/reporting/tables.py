"""The terminal, on which text from outside is only text, tables for it, and a report's cells."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from fl_epe.auditing import EpsilonEstimate
from fl_epe.auditing.bounds import BOUNDS
from fl_epe.files import printable
from fl_epe.reporting.headline import NOT_MEASURED
from fl_epe.reporting.numbers import number
from fl_epe.reporting.summary_types import Part, RunSummary, Unmeasured


class Terminal(Console):
    """Standard output, or a file, without markup, emoji codes, or escapes that others wrote.

    Args:
        options: of `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Every text on its way out passes here, and `printable`; rich's own escapes do not."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def on_broken_pipe(self) -> None:
        """Leave it to whoever prints; called where the error is being handled."""
        raise


def plain_table(title: str, headings: Sequence[str], left: int = 1) -> Table:
    """An empty table; the first ``left`` columns hold text, the others numbers."""
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < left else "right", no_wrap=True)
    return table


def analytical_text(summary: RunSummary) -> str:
    """The analytical ε; "∞" without noise, "none known" if no theorem applies."""
    epsilon = summary.analytical.epsilon
    return "none known" if epsilon is None else number(epsilon)


def table_rows(summary: RunSummary) -> list[tuple[str, ...]]:
    """The cells of the table, as text."""
    return [
        (row.sees, row.name, *part_cells(row.part), analytical_text(summary))
        for row in summary.rows()
    ]


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
    verdict, roles = summary.verdict, dict[str | None, str]()
    if verdict is not None:
        seen = "final model" if verdict.adversary == "final" else "every round"
        roles[verdict.method] = f"; verdict for {seen}"
    return [
        (
            method,
            number(final[method]) if method in final else "",
            number(every[method]) if method in every else "",
            ("exploratory" if BOUNDS[method].valid else "not valid") + roles.get(method, ""),
            BOUNDS[method].assumption,
        )
        for method in final | every
    ]
