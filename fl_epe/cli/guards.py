"""Handles signals, and protects a command from Matplotlib's settings in the current folder.

With `stop_on_signals`, Ctrl-C, SIGTERM and SIGHUP end a command in the same way; a run first writes
a checkpoint. `exit_despite_threads` ends the process after a second signal.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fl_epe.wording import NODE_THREAD

if TYPE_CHECKING:
    from fl_epe.simulation import StopRequest

_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if hasattr(signal, name)
]
SIGNALLED = 128
"""The exit status after signal n is 128 + n."""

# While Ctrl-C is held down, many signals arrive. If each of them raised an error, they would
# interrupt the clean-up again and again, until the process ends with files half removed.
_SECONDS_OF_A_BURST = 1.0


class Stopped(KeyboardInterrupt):
    """Raised by a signal that stops the command; the argument is the signal's name."""


def exit_status(stop: KeyboardInterrupt) -> int:
    """128 plus the number of the signal: that of `Stopped`, or SIGINT for any other error."""
    name = stop.args[0] if isinstance(stop, Stopped) else "SIGINT"
    return SIGNALLED + signal.Signals[name]


@contextlib.contextmanager
def stop_on_signals(stop: StopRequest | None = None) -> Iterator[list[int]]:
    """In this context, a signal raises `Stopped`, or asks a run to stop.

    The first signal asks the run, if there is a ``stop`` and the run accepts the request, see
    `StopRequest.ask`. Every other signal raises `Stopped`. From the second error on, signals within
    a second of the last error are ignored. A signal that was ignored before, such as SIGHUP under
    ``nohup``, stays ignored. Outside the main thread, where Python handles no signals, nothing
    changes.

    Args:
        stop: the request that asks a run to stop.

    Yields:
        The numbers of the signals so far.
    """
    received: list[int] = []
    raised_at: list[float] = []

    def handle(number: int, frame: types.FrameType | None) -> None:
        received.append(number)
        if stop is not None and len(received) == 1 and stop.ask():
            return
        now = time.monotonic()
        if len(raised_at) > 1 and now - raised_at[-1] < _SECONDS_OF_A_BURST:
            return
        raised_at.append(now)
        raise Stopped(signal.Signals(number).name)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    with contextlib.ExitStack() as restoring:
        for number in _SIGNALS:
            previous = signal.getsignal(number)
            # `None` is a handler that was not set by Python, and cannot be restored.
            if previous not in (signal.SIG_IGN, None):
                signal.signal(number, handle)
                restoring.callback(signal.signal, number, previous)
        yield received


def import_matplotlib() -> None:
    """Load Matplotlib without the file ``matplotlibrc`` of the current folder.

    Matplotlib reads its settings from that file when it is imported; the file may be another
    user's, a link or a pipe. Only a command should call this function, as it changes the current
    folder for a moment.
    """
    with (
        # The current folder may have been deleted.
        contextlib.suppress(FileNotFoundError),
        contextlib.chdir(Path(__file__).parent),
    ):
        importlib.import_module("matplotlib")


def exit_despite_threads(status: int) -> None:
    """End the process with this status at once if a node still works, as after a second Ctrl-C.

    Without such a node, the function returns.

    At a normal exit, Python would unwind the node's thread, whose C++ code would abort the
    process. All files have been written before this call.
    """
    if any(thread.name == NODE_THREAD for thread in threading.enumerate()):
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(status)
