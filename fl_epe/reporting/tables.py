"""A terminal that interprets nothing in the text it prints, and tables for it."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Column, Table

from fl_epe.files import on_one_line, printable

# The letters between two columns.
_GAP = 2


class Terminal(Console):
    """A console that prints markup, emoji codes and escape sequences as plain text.

    Args:
        options: arguments of `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        # A notebook's standard output says that it is a terminal, and rich would then write HTML,
        # even to a file.
        if type(sys.stdout).__module__.startswith("ipykernel"):
            options.setdefault("force_terminal", False)
        super().__init__(
            markup=False, emoji=False, force_jupyter=False, **options
        )

    def print(self, *objects: Any, **options: Any) -> None:
        """Print each text as one line, which is folded if it is long.

        Text from outside then cannot imitate a line of the output.
        """
        super().print(*map(_one_line, objects), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Pass all text through `printable`, except rich's own escape sequences."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled when rich calls this."""
        raise


def _one_line(value: Any) -> Any:
    if isinstance(value, str):
        return on_one_line(value)
    return value


class PlainTable(Table):
    """A table; if it is too wide, each row is printed as a list with a line for each cell."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row whose cells have no line breaks; a wide cell may still be folded."""
        super().add_row(*map(_one_line, cells), **options)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """Render the table, or lists if it is too wide, so that no number is cut."""
        # Two columns are divided by a space, which does not follow the last one.
        if sum(map(_width, self.columns)) - 1 <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        yield self.title or ""
        rows = zip(*(column.cells for column in self.columns), strict=True)
        for first, *values in rows:
            yield first
            for column, value in zip(self.columns[1:], values, strict=True):
                yield f"  {column.header}: {value}"


def _width(column: Column) -> int:
    """The least width of a column, which is 0 if it can be folded, and of the gap after it."""
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
    """A table whose first ``left`` columns are aligned left, as text, and the others right."""
    table = PlainTable(
        title=on_one_line(title),
        title_justify="left",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    for index, heading in enumerate(headings):
        table.add_column(
            heading, justify="left" if index < left else "right", no_wrap=True
        )
    for row in rows:
        table.add_row(*row)
    return table
