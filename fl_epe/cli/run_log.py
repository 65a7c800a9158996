"""``run.log``: the events of a run, one JSON object per line, for programs that watch it.

    tail -f runs/half/run.log | jq -c 'select(.event == "round") | [.round, ."epsilon-all"]'

Each line has ``time`` (UTC) and ``event``; docs/guides/run.md lists its other values. No line
contains a seed. If the log cannot be written, there is one warning, and the run continues.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_epe.checks import finite
from fl_epe.files import open_no_link

if TYPE_CHECKING:
    from fl_epe.simulation import Progress

RUN_LOG = "run.log"  # in a run's folder


def now() -> str:
    """The current time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def command_line(words: Sequence[str]) -> str:
    """The typed command as a shell reads it, without the value of --seed.

    Examples:
        >>> command_line(["run", "digits", "--seed", "17", "--output", "my runs"])
        "fl-epe run digits --seed … --output 'my runs'"
        >>> command_line(["run", "digits", "--seed= 17"])
        'fl-epe run digits --seed=…'
    """
    shown = ["fl-epe"]
    hides_next = False
    for word in words:
        if hides_next:
            shown.append("…")
        elif word.startswith("--seed="):
            shown.append("--seed=…")
        else:
            shown.append(shlex.quote(word))
        hides_next = word == "--seed" and not hides_next
    return " ".join(shown)


class RunLog:
    """The log of one run. A resumed run adds lines to the log of the earlier process.

    Args:
        directory: the directory of the run.
        warn: a function that is called once, with a sentence, if the log cannot be written.
    """

    def __init__(self, directory: Path, warn: Callable[[str], None]) -> None:
        self._path = directory / RUN_LOG
        self._warn = warn
        self._has_failed = False
        self._noted_faults = 0

    def note(self, event: str, **values: Any) -> None:
        """Add a line; numbers that are infinite or unknown become ``null``."""
        if self._has_failed:
            return
        line: dict[str, Any] = {"time": now(), "event": event}
        for name, value in values.items():
            line[name] = finite(value) if isinstance(value, float) else value
        try:
            with open(
                self._path, "a", encoding="utf-8", opener=open_no_link
            ) as file:
                file.write(
                    json.dumps(line, allow_nan=False, default=str) + "\n"
                )
        except OSError as error:
            self._has_failed = True
            self._warn(
                f"{self._path} cannot be written ({error}); the run continues without a log."
            )

    def progress(self, progress: Progress) -> None:
        """Log the progress after a round, or before the first round of this process."""
        new_faults = progress.faults[self._noted_faults :]
        self._noted_faults = len(progress.faults)
        self.note(
            "round",
            round=progress.round,
            **progress.metrics(),
            faults=new_faults,
            rounds=progress.rounds,
            seconds_left=progress.seconds_left,
            fault_counts=progress.fault_counts,
        )


def run_facts(directory: Path, command: str, started: str) -> dict[str, Any]:
    """The facts about a run for its record: ``started``, ``ended`` and ``commands``.

    Args:
        directory: the directory of the run. Its log has the earlier commands; if it cannot be
            read, there are none.
        command: the command that ends the run.
        started: the time when that command started.
    """
    starts: list[tuple[str, str]] = []  # commands with their times
    with (
        contextlib.suppress(OSError, ValueError, LookupError, TypeError),
        open(
            directory / RUN_LOG, encoding="utf-8", opener=open_no_link
        ) as file,
    ):
        for text in file:
            line = json.loads(text)
            if line["event"] == "started":
                start = (str(line["command"]), str(line["time"]))
                if not start[0].startswith("fl-epe resume"):
                    # A new run began here: the lines before belong to another one.
                    starts.clear()
                starts.append(start)
    if not starts or starts[-1][0] != command:
        starts.append((command, started))
    commands = tuple(typed for typed, _ in starts)
    return {"started": starts[0][1], "ended": now(), "commands": commands}
