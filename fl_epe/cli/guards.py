"""Guards of a command: against signals, and against settings of the current folder.

`signals_stop` makes Ctrl-C, SIGTERM and SIGHUP end a command alike, a run so that its rounds are
kept; `end_beside_threads` ends the process where a second one came.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
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


class Stopped(KeyboardInterrupt):
    """A signal, by its name, that asks the command to stop."""


def exit_status(stop: KeyboardInterrupt) -> int:
    """128 and the number of the signal, which is SIGINT where `Stopped` does not name another."""
    name = stop.args[0] if isinstance(stop, Stopped) else "SIGINT"
    return 128 + signal.Signals[name]


@contextlib.contextmanager
def signals_stop(stop: StopRequest | None = None) -> Iterator[list[int]]:
    """While it lasts, a signal raises `Stopped`, or the first one asks a run to stop.

    It raises at once where no run listens, or where the main thread waits for clients. A signal
    that is ignored, as SIGHUP under ``nohup``, stays ignored. Outside the main thread, where Python
    handles no signals, nothing changes.

    Args:
        stop: asks the run.

    Yields:
        The numbers of the signals so far.
    """
    received: list[int] = []

    def handle(number: int, frame: types.FrameType | None) -> None:
        received.append(number)
        if stop is None or len(received) > 1 or not stop.ask():
            raise Stopped(signal.Signals(number).name)

    in_main = threading.current_thread() is threading.main_thread()
    with contextlib.ExitStack() as afterwards:
        for number in _SIGNALS if in_main else ():
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):
                signal.signal(number, handle)
                afterwards.callback(signal.signal, number, handler)
        yield received


def import_matplotlib() -> None:
    """Load Matplotlib without the file ``matplotlibrc`` of the current folder.

    That is the first place in which Matplotlib looks for settings, when it is imported; they may be
    somebody else's, a link or a pipe. Only for a command: it leaves the folder for a moment.
    """
    with (
        contextlib.suppress(FileNotFoundError),
        contextlib.chdir(Path(__file__).parent),
    ):
        importlib.import_module("matplotlib")


def end_beside_threads(status: int) -> None:
    """End the process with this status if a node is still at work, as after a second Ctrl-C.

    At its own end, Python would unwind the node's thread, and what that calls in C++ would abort
    the process. All files are written by then.
    """
    if any(thread.name == NODE_THREAD for thread in threading.enumerate()):
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(status)
