"""Tables for the terminal, in one style."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.table import Table


def plain_table(title: str, headings: Sequence[str], left: int = 1) -> Table:
    """An empty table; the first ``left`` columns hold text, the others numbers."""
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < left else "right", no_wrap=True)
    return table
