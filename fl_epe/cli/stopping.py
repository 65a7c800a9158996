"""What ends a command early: signals, and another process in the same folder.

`signals_as_interrupts` makes SIGTERM and SIGHUP end a command as Ctrl-C does; `signals_ask` makes
all three end a run so that its rounds are kept; `locked` keeps a second process out of a run's
folder for as long as the first lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fl_epe.files import no_link

if TYPE_CHECKING:
    from fl_epe.simulation import StopRequest

if sys.platform != "win32":
    import fcntl

LOCK = "fl-epe.lock"
"""The file in a run's folder while a process works in it; it holds the number of the process."""

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(KeyboardInterrupt):
    """A signal that asks the command to stop, as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def exit_status(stop: KeyboardInterrupt) -> int:
    """128 and the number of the signal, which is SIGINT unless it was another."""
    return 128 + int(getattr(stop, "number", signal.SIGINT))


@contextlib.contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """While it lasts, SIGTERM and SIGHUP raise `Stopped`, which is a `KeyboardInterrupt`.

    A signal that is ignored, as SIGHUP under ``nohup``, stays ignored. Outside the main thread,
    where Python handles no signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.getsignal(number)
        for number in _SIGNALS
        if signal.getsignal(number) is signal.SIG_DFL
    }
    for number in before:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: types.FrameType | None) -> None:
    raise Stopped(number)


@contextlib.contextmanager
def signals_ask(stop: StopRequest) -> Iterator[list[int]]:
    """While it lasts, the first signal asks a run to stop; a second one ends it as it stands.

    SIGINT too: Ctrl-C. Where the main thread waits for clients, or where no run listens, the first
    one raises `Stopped` at once.

    Yields:
        The numbers of the signals that came.
    """
    came: list[int] = []

    def handle(number: int, frame: types.FrameType | None) -> None:
        came.append(number)
        if len(came) > 1 or stop.may_raise() or not stop.ask():
            raise Stopped(number)

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = {
        number: handler
        for number in (signal.SIGINT, *_SIGNALS)
        if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
    }
    for number in before:
        signal.signal(number, handle)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Be the only process that works in ``directory``, which is made if it is missing.

    The lock is the kernel's and dies with its process, however that ends. Folders that are still
    empty at the end are removed.

    Raises:
        ValueError: if another process is in it, with that process's number.
    """
    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK
    descriptor = _take(path, directory)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)
        with contextlib.suppress(OSError):  # it holds something
            for folder in made:
                folder.rmdir()


def _take(path: Path, directory: Path) -> int:
    while True:
        descriptor = no_link(str(path), os.O_RDWR | os.O_CREAT, 0o600)
        if not _lock(descriptor):
            other = os.read(descriptor, 20).decode(errors="replace").strip() or "another one"
            os.close(descriptor)
            raise ValueError(
                f"Expected directory={str(directory)!r} to be free: process {other} is at work in "
                "it. Wait until it is done, or stop it."
            )
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                return descriptor
        os.close(descriptor)  # whoever held it has just removed it


def _lock(descriptor: int) -> bool:
    """Whether nobody else holds the lock; file systems without locks keep nobody out."""
    if sys.platform != "win32":
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
    return True
