"""``run.log``: what happens in a run, one JSON object a line, for programs that watch it.

    tail -f runs/half/run.log | jq -c 'select(.event == "round") | [.round, .epsilon]'

Each line has ``time`` (UTC) and ``event``; what else it has is listed in docs/guides/run.md. It
has no seed. A log that cannot be written is said once, and the run goes on.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_epe.auditing import finite
from fl_epe.files import no_link

if TYPE_CHECKING:
    from fl_epe.flower import Progress
    from fl_epe.reporting import RunSummary

RUN_LOG = "run.log"
"""The log's file in a run's folder."""

_SECRET = ("--seed",)
_HIDDEN = "…"
_RESUME = "fl-epe resume"


def now() -> str:
    """The time, UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def command_line(words: Sequence[str]) -> str:
    """What was typed, as a shell takes it, without the values of secret options.

    Examples:
        >>> command_line(["run", "digits", "--seed", "17", "--output", "my runs"])
        "fl-epe run digits --seed … --output 'my runs'"
        >>> command_line(["run", "digits", "--seed=17"])
        'fl-epe run digits --seed=…'
    """
    shown: list[str] = []
    hide = False
    for word in words:
        option, equals, _ = word.partition("=")
        if hide:
            shown.append(_HIDDEN)
        elif option in _SECRET and equals:
            shown.append(f"{option}={_HIDDEN}")
        else:
            shown.append(shlex.quote(word))
        hide = not hide and word in _SECRET
    return " ".join(["fl-epe", *shown])


class RunLog:
    """The log of one run; lines of a run that went on are added to those before.

    Nothing is written before the first `progress`: a command that is refused leaves no file behind.

    Args:
        directory: of the run.
        warn: told once, in a sentence, if the log cannot be written.
    """

    def __init__(self, directory: Path, warn: Callable[[str], None]) -> None:
        self._path, self._warn = directory / RUN_LOG, warn
        self._open, self._lost, self._waiting = False, False, list[str]()
        self._seen: Progress | None = None

    def note(self, event: str, **values: Any) -> None:
        """Add a line; numbers that are infinite or unknown become ``null``."""
        known = {n: finite(v) if isinstance(v, float) else v for n, v in values.items()}
        known = {"time": now(), "event": event, **known}
        self._waiting.append(json.dumps(known, allow_nan=False, default=str) + "\n")
        if self._open:
            self._write()

    def failed(self, error: Exception) -> None:
        """Note what ended the command."""
        self.note("failed", error=type(error).__name__, text=str(error))

    def _write(self) -> None:
        lines, self._waiting = self._waiting, []
        if self._lost:
            return
        try:
            with open(self._path, "a", encoding="utf-8", opener=no_link) as file:
                file.writelines(lines)
        except OSError as error:
            self._lost = True
            self._warn(f"{self._path} cannot be written ({error}); the run goes on without a log.")

    def progress(self, done: Progress) -> None:
        """Note what happened since the last call: a round, an evaluation, a checkpoint, faults.

        The first call opens the log. Rounds before this process are in it already.
        """
        before, self._seen = self._seen, done
        if before is None:
            if not done.round:
                self._evaluated(done)
            self._open = True
            self._write()
            return
        if done.round:
            found = done.estimate
            self.note(
                "round",
                round=done.round,
                rounds=done.rounds,
                loss=done.loss,
                metric=done.accuracy,
                clip_norm=done.clip_norm,
                canaries_seen=done.canaries_seen,
                epsilon=found and found.epsilon,
                epsilon_low=found and found.low,
                epsilon_high=found and found.high,
                seconds_left=round(done.seconds_left, 1),
            )
        if done.evaluated != before.evaluated:
            self._evaluated(done)
        if done.kept != before.kept:
            self.note("checkpoint", round=done.kept)
        if more := Counter(done.fault_counts) - Counter(before.fault_counts):
            self.note(
                "fault", round=done.round, counts=more, texts=done.faults[len(before.faults) :]
            )

    def _evaluated(self, done: Progress) -> None:
        self.note("evaluated", round=done.evaluated, loss=done.eval_loss, metric=done.accuracy)

    def report(self, summary: RunSummary, page: Path) -> None:
        """Note the report's status and its headlines."""
        values = summary.to_dict()
        self.note(
            "report",
            status=summary.status,
            exit_status=values["exit_status"],
            delta=summary.delta,
            epsilon_final=values["final"]["epsilon"],
            epsilon_all=values["all"]["epsilon"],
            analytical=values["analytical"]["epsilon"],
            page=str(page),
        )


def run_facts(directory: Path, command: str, started: str) -> dict[str, Any]:
    """What a record keeps of when and how its run was made: ``started``, ``ended``, ``commands``.

    Args:
        directory: of the run, whose log says what came before, as far as it can be read.
        command: that is ending the run now.
        started: when that command started.
    """
    path, known = directory / RUN_LOG, list[dict[str, Any]]()
    if path.is_file():  # a pipe may have no end
        with contextlib.suppress(OSError, UnicodeDecodeError):
            for line in path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):
                    known.append(_started(json.loads(line)))
    begun = [at for at, line in enumerate(known) if not line["command"].startswith(_RESUME)]
    known = known[begun[-1] :] if begun else known  # an earlier run in the folder is another one
    commands = [line["command"] for line in known] or [command]
    commands += [command] * (commands[-1] != command)
    first = str(known[0].get("time", started)) if known else started
    return {"started": first, "ended": now(), "commands": tuple(commands)}


def _started(line: Any) -> dict[str, Any]:
    """A line of a run's start; `ValueError` for any other."""
    start = isinstance(line, dict) and line.get("event") == "started"
    if start and isinstance(line.get("command"), str):
        return dict(line)
    raise ValueError
