"""What several commands print, and where they write."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from fl_epe.checks import ArgumentError
from fl_epe.files import printable


def terminal() -> Console:
    """Standard output, on which text is text: no markup, no emoji codes, no escapes."""
    from fl_epe.reporting import Terminal

    return Terminal(highlight=False)


def output_directory(chosen: Path | None, name: str) -> Path:
    """The folder that was chosen, or ``runs/NAME-DATE-TIME``; it is not made yet.

    Raises:
        ValueError: if it is a file.
    """
    output = chosen or Path("runs", time.strftime(f"{name}-%Y%m%d-%H%M%S"))
    if output.exists() and not output.is_dir():
        raise ArgumentError(
            "Expected {output} to be a directory, but it is a file.", output=str(output)
        )
    return output


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines as they are; those that start with a bullet are dim."""
    for line in lines:
        console.print(line, style="dim" if line.startswith("•") else None)


def print_whole(*lines: str) -> None:
    """Print lines that are not wrapped, such as paths and commands, however long they are."""
    print(printable("\n".join(lines)))


def print_json(values: dict[str, Any]) -> None:
    """Print JSON for another program; ``null`` is a number that is infinite or unknown."""
    from fl_epe.reporting import as_json

    print(printable(json.dumps(as_json(values), indent=2, ensure_ascii=False, allow_nan=False)))


class ProgressLine:
    """How far a command is: a bar on a terminal, elsewhere a line every ten seconds."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._console = terminal()
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            MofNCompleteColumn(),
            BarColumn(bar_width=8),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None, text="")
        self._printed = -math.inf

    def __enter__(self) -> ProgressLine:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, doing: str, done: int, total: int | None, text: str = "") -> None:
        """Show that ``done`` of ``total`` (or of an unknown number) are done."""
        if self._console.is_terminal:
            self._bar.update(self._task, description=doing, completed=done, total=total, text=text)
        elif time.monotonic() - self._printed > 10 or done == total:
            self._printed = time.monotonic()
            of = "" if total is None else f"/{total}"
            print(printable(f"{doing} {done}{of}  {text}".rstrip()), flush=True)
