"""What an audit of a mechanism found: a table, pictures of lines, and what to make of it.

Every audit of ``fl-epe audit`` gives the same things, so that they print, draw and save alike.

Examples:
    >>> table = AuditTable(("bound", "ε ≥"), [("gdp", 0.75), ("mean", None)])
    >>> print(table.text())
    bound   ε ≥
    gdp    0.75
    mean      –
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_epe.auditing import finite
from fl_epe.files import write_text
from fl_epe.reporting.drawing import legend
from fl_epe.table_file import csv_cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cell = str | int | float | bool | None
_NONE = "–"
_MARKERS = "osD^vPX"  # so that lines differ not by colour alone
_FEW = 40  # points that are marked


@dataclasses.dataclass(frozen=True)
class AuditTable:
    """Rows of cells under headings.

    Attributes:
        columns: the headings.
        rows: of as many cells as there are columns; ``None`` for what was not measured.
        title: a line above, or "".
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    title: str = ""

    def text(self) -> str:
        """The table in plain text, numbers to the right."""
        shown = [self.columns, *(tuple(_shown(cell) for cell in row) for row in self.rows)]
        widths = [max(len(row[i]) for row in shown) for i in range(len(self.columns))]
        words = [any(isinstance(row[i], str) for row in self.rows) for i in range(len(widths))]
        lines = [
            "  ".join(
                cell.ljust(width) if left else cell.rjust(width)
                for cell, width, left in zip(row, widths, words, strict=True)
            ).rstrip()
            for row in shown
        ]
        return "\n".join([self.title, *lines] if self.title else lines)

    def csv(self) -> str:
        """The table as CSV, numbers in full."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([csv_cell(name) for name in self.columns])
        for row in self.rows:
            writer.writerow([csv_cell(cell) if isinstance(cell, str) else cell for cell in row])
        return buffer.getvalue()


@dataclasses.dataclass(frozen=True)
class Line:
    """One line, or the points, of a picture.

    Attributes:
        label: for the legend; "" for none.
        x: positions, shape (n,).
        y: values, shape (n,); NaN where there is none.
        low: lower end of a band or of error bars around ``y``, shape (n,), or ``None``.
        high: its upper end.
        style: "-", "--", ":" or "o" for points.
        colour: a Matplotlib colour, or ``None`` for the next one.
        fill: shade what is below the line, as a region that a claim rules out.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: str = "-"
    colour: str | None = None
    fill: bool = False


@dataclasses.dataclass(frozen=True)
class Picture:
    """One panel of lines.

    Attributes:
        name: of its file, without an ending.
        title: above it.
        x: label of the x-axis.
        y: label of the y-axis.
        lines: what it shows.
        log: which axes are logarithmic: "", "x", "y" or "xy".
        text: what it shows, in a sentence with its numbers, for who cannot see it.
        rows: names of y = 1, 2, … from the top, where these are things and not values.
    """

    name: str
    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log: str = ""
    text: str = ""
    rows: Sequence[str] = ()

    def draw(self, figure: Figure) -> None:
        """Fill a Matplotlib figure."""
        axes = figure.subplots()
        for line, marker in zip(self.lines, itertools.cycle(_MARKERS)):
            _draw(axes, line, marker)
        if "x" in self.log:
            axes.set_xscale("log")
        if "y" in self.log:
            axes.set_yscale("log")
        axes.set(title=self.title, xlabel=self.x, ylabel=self.y)
        if self.rows:
            axes.set_yticks(range(1, len(self.rows) + 1), self.rows)
            axes.set_ylim(len(self.rows) + 0.7, 0.3)
        if any(line.label for line in self.lines):
            legend(axes, loc="center left", bbox_to_anchor=(1.0, 0.5), ncols=1)


@dataclasses.dataclass(frozen=True)
class AuditResult:
    """What an audit found.

    Attributes:
        name: of the audit.
        finding: in one sentence, for somebody who is no expert.
        tables: with all numbers; the first is the one to read.
        notes: assumptions, and what differs from the paper.
        pictures: of the same numbers.
        settings: by name, to repeat it.
        passed: whether all went as theory says; ``None`` where there is nothing to expect.
    """

    name: str
    finding: str
    tables: Sequence[AuditTable]
    notes: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    passed: bool | None = None

    def text(self) -> str:
        """The finding, the tables and the notes, in plain text."""
        parts = [self.finding, *(table.text() for table in self.tables)]
        return "\n\n".join([*parts, *(f"Note: {note}" for note in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """All of it but the pictures, for JSON; a value that is not finite is ``None``."""
        tables = [
            {
                "title": table.title,
                "columns": list(table.columns),
                "rows": [
                    [finite(cell) if isinstance(cell, float) else cell for cell in row]
                    for row in table.rows
                ],
            }
            for table in self.tables
        ]
        return {
            "audit": self.name,
            "finding": self.finding,
            "passed": self.passed,
            "settings": self.settings,
            "tables": tables,
            "notes": list(self.notes),
        }


def write_audit(result: AuditResult, directory: Path) -> list[Path]:
    """Write ``audit.json``, a CSV file for each table and an SVG file for each picture.

    Args:
        result: of an audit.
        directory: is made if it does not exist.

    Returns:
        The files, in order.
    """
    directory.mkdir(parents=True, exist_ok=True)
    texts = {"audit.json": json.dumps(result.to_dict(), indent=1, ensure_ascii=False) + "\n"}
    for number, table in enumerate(result.tables, 1):
        texts[f"table-{number}.csv"] = table.csv()
    for picture in result.pictures:
        texts[f"{picture.name}.svg"] = _svg(picture)
    return [write_text(directory / name, text) for name, text in texts.items()]


def _shown(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return _NONE
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return "∞" if math.isinf(cell) else f"{cell:.4g}"
    return str(cell)


def _draw(axes: Axes, line: Line, marker: str) -> None:
    joined = line.style != "o"
    how: dict[str, Any] = {"linestyle": line.style if joined else "", "markersize": 4}
    if not joined or (len(line.x) <= _FEW and line.style == "-"):
        how["marker"] = marker
    (drawn,) = axes.plot(line.x, line.y, label=line.label, color=line.colour, **how)
    if line.fill:
        axes.fill_between(line.x, line.y, color=drawn.get_color(), alpha=0.15, linewidth=0)
    if line.low is not None and line.high is not None:
        if joined:
            axes.fill_between(line.x, line.low, line.high, color=drawn.get_color(), alpha=0.2)
        else:
            axes.vlines(line.x, line.low, line.high, color=drawn.get_color(), linewidth=1)


def _svg(picture: Picture) -> str:
    """The picture, with its text for a screen reader."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "fl-epe", "svg.fonttype": "path"}):
        figure = Figure(figsize=(7.2, 4.0), layout="constrained")
        picture.draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    spoken = f"<title>{escape(picture.title)}</title>\n <desc>{escape(picture.text)}</desc>\n "
    return buffer.getvalue().replace("<metadata>", f"{spoken}<metadata>", 1)
