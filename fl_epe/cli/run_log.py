"""``run.log``: what happens in a run, one JSON object a line, for programs that watch it.

    tail -f runs/half/run.log | jq -c 'select(.event == "round") | [.round, ."epsilon-all"]'

Each line has ``time`` (UTC) and ``event``; what else it has is listed in docs/guides/run.md. It
has no seed. A log that cannot be written is said once, and the run goes on.
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
from fl_epe.files import no_link

if TYPE_CHECKING:
    from fl_epe.simulation import Progress

RUN_LOG = "run.log"  # in a run's folder


def now() -> str:
    """The time, UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def command_line(words: Sequence[str]) -> str:
    """What was typed, as a shell takes it, without the value of --seed.

    Examples:
        >>> command_line(["run", "digits", "--seed", "17", "--output", "my runs"])
        "fl-epe run digits --seed … --output 'my runs'"
        >>> command_line(["run", "digits", "--seed= 17"])
        'fl-epe run digits --seed=…'
    """
    shown, before = ["fl-epe"], ""
    for word in words:
        option, equals, _ = word.partition("=")
        if before == "--seed":
            shown.append("…")
            before = ""
        else:
            shown.append(
                "--seed=…" if option == "--seed" and equals else shlex.quote(word)
            )
            before = word
    return " ".join(shown)


class RunLog:
    """The log of one run; lines of a run that went on are added to those before.

    Args:
        directory: of the run.
        warn: told once, in a sentence, if the log cannot be written.
    """

    def __init__(self, directory: Path, warn: Callable[[str], None]) -> None:
        self._path, self._warn, self._lost = directory / RUN_LOG, warn, False
        self._faults = 0  # that were noted

    def note(self, event: str, **values: Any) -> None:
        """Add a line; numbers that are infinite or unknown become ``null``."""
        if self._lost:
            return
        told = {n: finite(v) if isinstance(v, float) else v for n, v in values.items()}
        line = {"time": now(), "event": event, **told}
        try:
            with open(self._path, "a", encoding="utf-8", opener=no_link) as file:
                file.write(json.dumps(line, allow_nan=False, default=str) + "\n")
        except OSError as error:
            self._lost = True
            self._warn(
                f"{self._path} cannot be written ({error}); the run goes on without a log."
            )

    def progress(self, done: Progress) -> None:
        """Note where the run stands after a round, or before the first one of this process."""
        more = {
            name: getattr(done, name)
            for name in ("rounds", "seconds_left", "fault_counts")
        }
        texts, self._faults = done.faults[self._faults :], len(done.faults)
        self.note("round", round=done.round, **done.metrics(), faults=texts, **more)


def run_facts(directory: Path, command: str, started: str) -> dict[str, Any]:
    """What a record keeps of when and how its run was made: ``started``, ``ended``, ``commands``.

    Args:
        directory: of the run, whose log says what came before, as far as it can be read.
        command: that is ending the run now.
        started: when that command started.
    """
    known = list[tuple[str, str]]()
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        with open(directory / RUN_LOG, encoding="utf-8", opener=no_link) as file:
            texts = file.read().splitlines()
        for text in texts:
            line = json.loads(text)
            if line["event"] == "started":
                words, time = str(line["command"]), str(line["time"])
                before = (
                    known if words.startswith("fl-epe resume") else []
                )  # of another run
                known = [*before, (words, time)]
    if not known or known[-1][0] != command:
        known.append((command, started))
    commands = tuple(words for words, _ in known)
    return {"started": known[0][1], "ended": now(), "commands": commands}
