"""Damages files of every kind and hands each to the command that reads it.

What must hold for each: the command ends within ten seconds of computing and takes less than a
gibibyte more; it ends with status 0, 2 or 3; with 2 there is one line of error and no traceback;
and a file with checksums gives the numbers of the sound file or none. The long form, in two
processes; started again, it goes on after what the log holds:

    python tests/support/fuzz_files.py --files 100000 --processes 2 --log fuzz.log

A case is its number: ``--only 4711`` repeats one and shows what it printed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import gc
import io
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fuzz_damage
from fuzz_seeds import Seed, call, cheap_commands, seeds

SECONDS = 10
GROWTH = 1 << 30
_SILENCE = 400
"""Seconds without a line after which a process hangs where no timer reaches it, or asleep."""
_ERROR = r"fl-epe: error: .{3,}"
OPERATIONAL = ("refused", "same", "read")
"""Outcomes that are as they should be."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one damaged file.

    Attributes:
        kind: of the file.
        damage: what was done to it.
        what: "refused", "same" (numbers), "read" (a file without checksums gave other numbers), or
            what went wrong.
        detail: what was printed, where something went wrong.
        seconds: of computing.
        mebibytes: of memory that it took, beyond what was taken before.
    """

    kind: str
    damage: str
    what: str
    detail: str = ""
    seconds: float = 0.0
    mebibytes: int = 0

    @property
    def fine(self) -> bool:
        """Whether this is as it should be."""
        return self.what in OPERATIONAL


class _HangError(BaseException):
    pass


def _alarm(number: int, frame: types.FrameType | None) -> None:
    raise _HangError


@contextlib.contextmanager
def fuzzing(folder: Path) -> Iterator[Fuzzer]:
    """A fuzzer whose files are in ``folder``."""
    with cheap_commands():
        yield Fuzzer(folder)


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """Raise `_HangError` after `SECONDS` of this process's own time, whatever else runs."""
    handler = signal.signal(signal.SIGPROF, _alarm)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)


class Fuzzer:
    """Sound files, their numbers, and cases by number."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        (folder / "seeds").mkdir()
        self.seeds = seeds(folder / "seeds")
        self._sound: dict[str, Any] = {}
        for seed in self.seeds:
            status, printed, errors = self._call(seed, seed.content)
            if status and errors:  # a run in doubt has a status of its own
                raise RuntimeError(f"{seed.name}: {errors}")
            self._sound[seed.name] = seed.result(folder / "case", printed)

    def damaged(self, number: int, entropy: int) -> tuple[Seed, str, bytes]:
        """The file of a case, and what was done to it."""
        chance = random.Random(f"{entropy} {number}")  # noqa: S311 - it repeats
        seed = self.seeds[number % len(self.seeds)]
        damage = chance.choice(fuzz_damage.damages(seed.path, seed.checked))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                content = damage(seed.content, chance)
            except (
                ValueError,
                TypeError,
                OverflowError,
                OSError,
                MemoryError,
            ):  # no such array
                damage, content = (
                    fuzz_damage.raw,
                    fuzz_damage.raw(seed.content, chance),
                )
        return seed, damage.__name__, content

    def run(self, number: int, entropy: int) -> Outcome:
        """One case: damage a file, read it, judge."""
        seed, damage, content = self.damaged(number, entropy)
        Path("/proc/self/clear_refs").write_text(
            "5"
        )  # forget the largest size so far
        before = _kibibytes("VmRSS")
        start = time.process_time()
        try:
            status, printed, errors = self._call(seed, content)
            what = self._judged(seed, damage, status, printed, errors)
        except _HangError:
            what, errors = "hang", traceback.format_exc()
        except Exception as error:  # noqa: BLE001 - a command must not raise anything
            what, errors = (
                f"raised {type(error).__name__}",
                traceback.format_exc(),
            )
        seconds = time.process_time() - start
        taken = _kibibytes("VmHWM") - before
        if taken << 10 > GROWTH:
            what = "memory"
        errors = "" if what in OPERATIONAL else errors
        return Outcome(seed.name, damage, what, errors, seconds, taken >> 10)

    def _judged(
        self, seed: Seed, damage: str, status: int, printed: str, errors: str
    ) -> str:
        if "Traceback" in errors + printed:
            return "traceback"
        if status == 2:
            *logged, last = errors.splitlines() or [""]
            if any("error: " in line for line in logged) or not re.match(
                _ERROR, last
            ):
                return "not one line"
            return "refused" if len(last) < 2000 else "long line"
        if status not in (0, 3):
            return f"status {status}"
        if (
            seed.result(self._folder / "case", printed)
            == self._sound[seed.name]
        ):
            return "same"
        return "CHANGED" if seed.checked and damage != "signed" else "read"

    def _call(self, seed: Seed, content: bytes) -> tuple[int, str, str]:
        case = self._folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        case.mkdir()
        path = case / seed.path
        path.write_bytes(content)
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
            _in_time(),
        ):
            warnings.simplefilter("ignore")
            status = call(seed.command(path, case))
        return status, out.getvalue(), err.getvalue()


def _kibibytes(name: str) -> int:
    """One of this process's sizes now."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{name}:\s*(\d+) kB", status, re.MULTILINE)[1])  # type: ignore[index]


def _limit_growth() -> None:
    size = (
        int(Path("/proc/self/statm").read_text().split()[0])
        * resource.getpagesize()
    )
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (size + GROWTH + GROWTH // 2, hard))


def work(start: int, stop: int, step: int, entropy: int, log: Path) -> None:
    """Run cases in this process, a line of the log for each."""
    with (
        tempfile.TemporaryDirectory() as folder,
        fuzzing(Path(folder)) as fuzzer,
        log.open("a", buffering=1, encoding="utf-8") as file,
    ):
        for done, number in enumerate(range(start, stop, step)):
            if done % 100 == 0:
                gc.collect()
                _limit_growth()
            outcome = fuzzer.run(number, entropy)
            told = "" if outcome.fine else outcome.detail.replace("\n", "\\n")
            cost = f"{outcome.seconds:.2f}", outcome.mebibytes
            print(
                number,
                outcome.kind,
                outcome.damage,
                outcome.what,
                *cost,
                told,
                sep="\t",
                file=file,
            )


def supervise(files: int, processes: int, entropy: int, log: Path) -> None:
    """Run all cases in child processes; one that dies or stops is replaced after its last case."""
    workers: dict[int, tuple[subprocess.Popen[bytes], Path]] = {}
    for which in range(processes):
        start = _after(log, which, processes)
        workers[which] = _spawn(which, start, files, processes, entropy, log)
    while workers:
        time.sleep(1)
        for which, (process, part) in list(workers.items()):
            stuck = (
                part.exists() and time.time() - part.stat().st_mtime > _SILENCE
            )
            if process.poll() == 0:
                del workers[which]
            elif process.returncode is not None or stuck:
                process.kill()
                number = _after(log, which, processes)
                with part.open("a") as file:
                    why = "stuck" if stuck else f"died {process.returncode}"
                    print(number, "?", "?", why, 0, 0, "", sep="\t", file=file)
                workers[which] = _spawn(
                    which, number + processes, files, processes, entropy, log
                )


def _after(log: Path, which: int, step: int) -> int:
    """The first case of a process that its log does not hold."""
    part = log.with_name(f"{log.name}.{which}")
    lines = (
        part.read_text(encoding="utf-8").splitlines() if part.exists() else []
    )
    return int(lines[-1].split("\t")[0]) + step if lines else which


def _spawn(
    which: int, start: int, files: int, step: int, entropy: int, log: Path
) -> tuple[subprocess.Popen[bytes], Path]:
    part = log.with_name(f"{log.name}.{which}")
    words = ["--work", start, files, step, "--entropy", entropy, "--log", part]
    if part.exists():
        os.utime(part)
    return subprocess.Popen([sys.executable, __file__, *map(str, words)]), part


def show(log: Path) -> int:
    """Print how many cases had which outcome; returns how many were wrong."""
    lines = [
        line.split("\t")
        for part in sorted(log.parent.glob(f"{log.name}.*"))
        for line in part.read_text(encoding="utf-8").splitlines()
    ]
    counts = collections.Counter((line[1], line[3]) for line in lines)
    for (kind, what), count in sorted(counts.items()):
        print(f"{kind:24}{what:24}{count:8}")
    wrong = [line for line in lines if line[3] not in OPERATIONAL]
    for line in wrong[:20]:
        print(*line[:6], line[6].replace("\\n", "\n"))
    for at, unit in ((4, "s"), (5, "MiB")):
        worst = max(lines, key=lambda line: float(line[at]))
        print(f"at most {worst[at]} {unit}: case {' '.join(worst[:4])}")
    print(f"{len(lines)} files, {len(wrong)} wrong")
    return len(wrong)


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--entropy", type=int, default=1)
    parser.add_argument("--log", type=Path, default=Path("fuzz.log"))
    parser.add_argument("--only", type=int, help="repeat one case and show it")
    parser.add_argument(
        "--show", action="store_true", help="count what the log holds"
    )
    parser.add_argument("--work", type=int, nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        start, stop, step = asked.work
        work(start, stop, step, asked.entropy, asked.log)
        return 0
    if asked.only is not None:
        with (
            tempfile.TemporaryDirectory() as folder,
            fuzzing(Path(folder)) as fuzzer,
        ):
            outcome = fuzzer.run(asked.only, asked.entropy)
        print(outcome.kind, outcome.damage, outcome.what, outcome.detail)
        return 0
    if not asked.show:
        supervise(asked.files, asked.processes, asked.entropy, asked.log)
    return 1 if show(asked.log) else 0


if __name__ == "__main__":
    sys.exit(main())
