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
from collections.abc import Callable, Mapping, Sequence
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

    Nothing is written before `open`, so that a command that is refused leaves no file behind.

    Args:
        directory: of the run.
        warn: told once, in a sentence, if the log cannot be written.
    """

    def __init__(self, directory: Path, warn: Callable[[str], None]) -> None:
        self._path, self._warn = directory / RUN_LOG, warn
        self._open, self._lost, self._waiting = False, False, list[str]()
        self._seen: dict[str, Any] = {"round": None, "evaluated": None, "kept": None, "faults": {}}
        self._texts = 0

    def open(self) -> None:
        """Write what was noted so far, and from now on at once."""
        if not self._open:
            self._open = True
            self._write("".join(self._waiting))

    def note(self, event: str, **values: Any) -> None:
        """Add a line; numbers that are infinite or unknown become ``null``."""
        known = {name: _plain(value) for name, value in values.items()}
        line = (
            json.dumps({"time": now(), "event": event, **known}, allow_nan=False, default=str)
            + "\n"
        )
        if self._open:
            self._write(line)
        else:
            self._waiting.append(line)

    def _write(self, text: str) -> None:
        if self._lost:
            return
        try:
            with open(self._path, "a", encoding="utf-8", opener=no_link) as file:
                file.write(text)
        except OSError as error:
            self._lost = True
            self._warn(f"{self._path} cannot be written ({error}); the run goes on without a log.")

    def progress(self, done: Progress) -> None:
        """Note what happened since the last call: a round, an evaluation, a checkpoint, faults."""
        before, self._seen = self._seen, self._state(done)
        again = before["round"] is None  # rounds before this process are in the log already
        if done.round and not again:
            self.note("round", **_round(done))
        if done.evaluated != before["evaluated"] and not (again and done.round):
            self.note("evaluated", round=done.evaluated, loss=done.eval_loss, metric=done.accuracy)
        if done.kept != before["kept"] and not again:
            self.note("checkpoint", round=done.kept)
        self._faults(done, before["faults"], again=again)
        self.open()

    def _faults(self, done: Progress, before: Mapping[str, int], *, again: bool) -> None:
        texts = list(done.faults[self._texts :])
        self._texts = len(done.faults)
        more = {
            kind: count - before.get(kind, 0)
            for kind, count in done.fault_counts.items()
            if count > before.get(kind, 0)
        }
        if more and not again:
            self.note("fault", round=done.round, counts=more, texts=texts)

    @staticmethod
    def _state(done: Progress) -> dict[str, Any]:
        return {
            "round": done.round,
            "evaluated": done.evaluated,
            "kept": done.kept,
            "faults": dict(done.fault_counts),
        }

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


def _round(done: Progress) -> dict[str, Any]:
    found = done.estimate
    return {
        "round": done.round,
        "rounds": done.rounds,
        "loss": done.loss,
        "metric": done.accuracy,
        "clip_norm": done.clip_norm,
        "canaries_seen": done.canaries_seen,
        "epsilon": None if found is None else found.epsilon,
        "epsilon_low": None if found is None else found.low,
        "epsilon_high": None if found is None else found.high,
        "seconds_left": round(done.seconds_left, 1),
    }


def _plain(value: Any) -> Any:
    return finite(value) if isinstance(value, float) else value


def earlier_lines(directory: Path, event: str) -> list[dict[str, Any]]:
    """Lines of an event in the log of a run, as far as they can be read."""
    found, path = [], directory / RUN_LOG
    if not path.is_file():  # a pipe may have no end
        return []
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                values = json.loads(line)
                if isinstance(values, dict) and values.get("event") == event:
                    found.append(values)
    return found


def run_facts(directory: Path, command: str, started: str) -> dict[str, Any]:
    """What a record keeps of when and how its run was made: ``started``, ``ended``, ``commands``.

    Args:
        directory: of the run, whose log says what came before.
        command: that is ending the run now.
        started: when that command started.
    """
    before = earlier_lines(directory, "started")
    known = [line for line in before if isinstance(line.get("command"), str)]
    begun = [at for at, line in enumerate(known) if not line["command"].startswith(_RESUME)]
    known = known[begun[-1] :] if begun else known  # an earlier run in the folder is another one
    commands = [str(line["command"]) for line in known] or [command]
    if commands[-1] != command:
        commands.append(command)
    first = str(known[0].get("time", started)) if known else started
    return {"started": first, "ended": now(), "commands": commands}
