"""What the commands print while they work."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from fl_epe.flower import Progress


class ProgressLine:
    """One line that moves with the rounds; a line now and then where there is no terminal."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        self._console = console
        self._bar = Bar(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=8),
            TextColumn("{task.fields[text]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: Any = None
        self._printed = 0.0

    def __enter__(self) -> ProgressLine:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, progress: Progress) -> None:
        """Show where the run stands."""
        text = _progress_text(progress)
        if self._console.is_terminal:
            if self._task is None:
                self._task = self._bar.add_task("", total=progress.rounds, text="")
            self._bar.update(self._task, completed=progress.round, text=text)
        elif time.monotonic() - self._printed > 10 or progress.round == progress.rounds:
            self._printed = time.monotonic()
            print(f"round {progress.round}/{progress.rounds}  {text}", flush=True)


def _progress_text(progress: Progress) -> str:
    if progress.round == progress.rounds:
        left = "scoring"
    else:
        left = f"{progress.seconds_left:.0f} s left" if progress.round else "starting"
    loss = f"loss {progress.loss:.4g}  " if progress.round else ""
    return (
        f"{loss}acc {progress.accuracy:.1%}  "
        f"clip {progress.clip_norm:.3g}  canaries {progress.canaries_seen}  {left}"
    )
