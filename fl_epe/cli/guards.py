"""What keeps a command from doing harm: signals, and a second process.

`signals_stop` makes Ctrl-C, SIGTERM and SIGHUP end a command alike, a run so that its rounds are
kept; `locked` keeps a second process out of a run's folder for as long as the first lives.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fl_epe.checks import ArgumentError

if TYPE_CHECKING:
    from fl_epe.simulation import StopRequest

# In a run's folder while a process works in it; it holds the number of the process.
LOCK = "fl-epe.lock"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_SIGNALS = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)]


class Stopped(KeyboardInterrupt):
    """A signal, by its name, that asks the command to stop."""


def exit_status(stop: KeyboardInterrupt) -> int:
    """128 and the number of the signal, which is SIGINT unless it was another."""
    return 128 + signal.Signals[stop.args[0] if isinstance(stop, Stopped) else "SIGINT"]


@contextlib.contextmanager
def signals_stop(stop: StopRequest | None = None) -> Iterator[list[int]]:
    """While it lasts, a signal raises `Stopped`, or the first one asks a run to stop.

    It raises at once where no run listens, or where the main thread waits for clients. A signal
    that is ignored, as SIGHUP under ``nohup``, stays ignored. Outside the main thread, where Python
    handles no signals, nothing changes.

    Args:
        stop: asks the run.

    Yields:
        The numbers of the signals that came.
    """
    came: list[int] = []

    def handle(number: int, frame: types.FrameType | None) -> None:
        came.append(number)
        if stop is None or len(came) > 1 or not stop.ask():
            raise Stopped(signal.Signals(number).name)

    in_main = threading.current_thread() is threading.main_thread()
    with contextlib.ExitStack() as afterwards:
        for number in _SIGNALS if in_main else ():
            known = signal.getsignal(number)
            if known not in (signal.SIG_IGN, None):
                signal.signal(number, handle)
                afterwards.callback(signal.signal, number, known)
        yield came


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Be the only process that works in ``directory``, which is made if it is missing.

    The lock is the kernel's and dies with its process, however that ends. File systems without
    locks keep nobody out.

    Raises:
        ArgumentError: if another process is in it, with that process's number.
    """
    import filelock

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK
    lock = filelock.FileLock(path, mode=0o600, blocking=False)
    try:
        lock.acquire()
        path.write_text(str(os.getpid()))
    except filelock.Timeout:
        other = path.read_text(errors="replace")[:20].strip() or "another one"
        raise ArgumentError(
            f"Expected {{directory}} to be free: process {other} is at work in it. Wait until it "
            "is done, or stop it.",
            directory=str(directory),
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()
