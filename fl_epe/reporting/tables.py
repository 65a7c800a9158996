"""The terminal, on which text from outside is only text, and tables for it."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Column, Table

from fl_epe.files import on_one_line, printable

_GAP = 2


class Terminal(Console):
    """Standard output, or a file, without markup, emoji codes, or escapes that others wrote.

    Args:
        options: of `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        # A notebook's stream claims to be a terminal: rich would write HTML past any file.
        if type(sys.stdout).__module__.startswith("ipykernel"):
            options.setdefault("force_terminal", False)
        super().__init__(
            markup=False, emoji=False, force_jupyter=False, **options
        )

    def print(self, *objects: Any, **options: Any) -> None:
        """Each text is one line, folded where it is long: text cannot begin a line of its own."""
        super().print(*map(_one_line, objects), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Every text on its way out passes here, and `printable`; rich's own escapes do not."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def on_broken_pipe(self) -> None:
        """Leave the error, which is being handled when this is called, to the caller."""
        raise


def _one_line(value: Any) -> Any:
    if isinstance(value, str):
        return on_one_line(value)
    return value


class PlainTable(Table):
    """A table; where it does not fit its width, each row is a list with a line for each value."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Each cell is one line, unless it is folded."""
        super().add_row(*map(_one_line, cells), **options)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """No number is ever cut."""
        if sum(map(_width, self.columns)) <= options.max_width + 1:
            yield from super().__rich_console__(console, options)
            return
        yield self.title or ""
        rows = zip(*(column.cells for column in self.columns), strict=True)
        for first, *values in rows:
            yield first
            for column, value in zip(self.columns[1:], values, strict=True):
                yield f"  {column.header}: {value}"


def _width(column: Column) -> int:
    """The width of a column with the gap to the next; only the gap where it may be folded."""
    if not column.no_wrap:
        return _GAP
    widest = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
    return min(widest, column.max_width or widest) + _GAP


def plain_table(
    title: str,
    headings: Sequence[str],
    left: int = 1,
    rows: Iterable[Sequence[str]] = (),
) -> Table:
    """A table; the first ``left`` columns hold text, all others numbers."""
    table = PlainTable(
        title=on_one_line(title),
        title_justify="left",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    for place, heading in enumerate(headings):
        table.add_column(
            heading, justify="left" if place < left else "right", no_wrap=True
        )
    for row in rows:
        table.add_row(*row)
    return table
