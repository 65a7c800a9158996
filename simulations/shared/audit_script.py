"""What the audits of papers share: settings, results, and a command line.

An audit is a function from `Settings` to a `Result`; `run` makes a script of it::

    python simulations/nasr_2023/step_audit.py --quick --seed 2
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable, Sequence

Cell = str | int | float | bool | None


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of an audit.

    Attributes:
        observations: of each of the two worlds (default: the audit's own).
        seed: of all random numbers.
        quick: a smaller audit, to see that it works; its numbers are coarse.
        delta: target δ.
        confidence: of each lower bound, one-sided.
    """

    observations: int | None = None
    seed: int = 1
    quick: bool = False
    delta: float = 1e-5
    confidence: float = 0.95

    def count(self, usual: int, quick: int) -> int:
        """Number of observations: as asked for, or the audit's ``usual`` or ``quick`` one."""
        return self.observations or (quick if self.quick else usual)


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of cells under headings; ``None`` for what was not measured."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[Cell, ...]]

    def __str__(self) -> str:
        """The table in plain text, numbers to the right."""
        shown = [
            self.columns,
            *([_shown(cell) for cell in row] for row in self.rows),
        ]
        widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
        words = [
            any(isinstance(row[i], str) for row in self.rows)
            for i in range(len(widths))
        ]
        lines = [
            "  ".join(
                cell.ljust(width) if is_word else cell.rjust(width)
                for cell, width, is_word in zip(row, widths, words, strict=True)
            ).rstrip()
            for row in shown
        ]
        return "\n".join([*([self.title] if self.title else []), *lines])


@dataclasses.dataclass(frozen=True)
class Result:
    """What an audit measured.

    Attributes:
        summary: in one sentence.
        tables: all numbers.
        notes: assumptions, and what differs from the paper.
        passed: whether every valid bound is within what theory allows; ``None`` if undecided.
    """

    summary: str
    tables: Sequence[Table]
    notes: Sequence[str] = ()
    passed: bool | None = True

    def __str__(self) -> str:
        """Summary, tables and notes in plain text."""
        parts = [
            self.summary,
            *map(str, self.tables),
            *(f"Note: {note}" for note in self.notes),
        ]
        return "\n\n".join(parts)


def run(audit: Callable[[Settings], Result], doc: str) -> None:
    """Run an audit from the command line; status 1 if it did not pass.

    Args:
        audit: to run.
        doc: docstring of the script.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="smaller, to see that it works"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--observations", type=int, help="of each of the two worlds"
    )
    result = audit(Settings(**vars(parser.parse_args())))
    print(result)
    if result.passed is False:
        raise SystemExit(1)


def _shown(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return "∞" if math.isinf(cell) else f"{cell:.4g}"
    return str(cell)
