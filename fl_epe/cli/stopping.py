"""What ends a command early: signals, and another process in the same folder.

`signals_as_interrupts` makes SIGTERM and SIGHUP end a command as Ctrl-C does; `signals_ask` makes
all three end a run so that its rounds are kept; `locked` keeps a second process out of a run's
folder for as long as the first lives.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fl_epe.checks import ArgumentError

if TYPE_CHECKING:
    from fl_epe.simulation import StopRequest

LOCK = "fl-epe.lock"
"""The file in a run's folder while a process works in it; it holds the number of the process."""

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
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
def _handled_by(
    handle: Callable[[int, types.FrameType | None], None], numbers: Sequence[int]
) -> Iterator[None]:
    """While it lasts, ``handle`` is called for these signals.

    A signal that is ignored, as SIGHUP under ``nohup``, stays ignored. Outside the main thread,
    where Python handles no signals, nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers if main}
    usable = {n: handler for n, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in usable:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in usable.items():
            signal.signal(number, handler)


def signals_as_interrupts() -> contextlib.AbstractContextManager[None]:
    """While it lasts, SIGTERM and SIGHUP raise `Stopped`, which is a `KeyboardInterrupt`."""

    def stop(number: int, frame: types.FrameType | None) -> None:
        raise Stopped(number)

    return _handled_by(stop, _SIGNALS)


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
        if len(came) > 1 or not stop.ask():
            raise Stopped(number)

    with _handled_by(handle, (signal.SIGINT, *_SIGNALS)):
        yield came


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Be the only process that works in ``directory``, which is made if it is missing.

    The lock is the kernel's and dies with its process, however that ends. Folders that are still
    empty at the end are removed. File systems without locks keep nobody out.

    Raises:
        ArgumentError: if another process is in it, with that process's number.
    """
    import filelock

    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
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
        with contextlib.suppress(OSError):  # it holds something
            for folder in made:
                folder.rmdir()
