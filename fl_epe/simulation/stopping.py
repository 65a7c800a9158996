"""What ends a run early and loses nothing: a request to stop, or whatever breaks the waiting.

A run spends its time waiting for the answers of a round. Nothing of its state changes meanwhile, so
a run that ends there can keep the state after the last whole round.
"""

import threading
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fl_epe.simulation.in_process_grid import InProcessGrid

_PULL = 0.1  # seconds between looks for answers where a request to stop is listened to


class EndedError(Exception):
    """A run ends before its last round; `run_on_grid` catches it."""


class RunStoppedError(Exception):
    """A run was asked to stop, and did.

    Attributes:
        rounds_done: whole rounds.
        rounds: in all.
        kept: whether a checkpoint of them was written.
    """

    def __init__(self, rounds_done: int, rounds: int, *, kept: bool) -> None:
        how = "kept in the checkpoint" if kept else "not kept: see the warning"
        super().__init__(f"stopped after round {rounds_done} of {rounds}, {how}")
        self.rounds_done, self.rounds, self.kept = rounds_done, rounds, kept


class StopRequest:
    """Asks a run to stop; from a signal handler, say, or from another thread.

    A run that is asked drops the round under way, keeps a checkpoint of the rounds before and
    raises a `RunStoppedError`.

    Attributes:
        asked: whether it was asked.
        listens: whether a run looks at the request, which is from its first round to its last.
        waits_in: the thread in which that run waits for answers, if it does.
    """

    def __init__(self) -> None:
        self.asked = self.listens = False
        self.waits_in: int | None = None

    def ask(self) -> bool:
        """Ask; returns whether a run will see to it.

        If not, a signal handler may raise, which ends the waiting in its thread at once.
        """
        self.asked = True
        return self.listens and self.waits_in != threading.get_ident()

    def raise_if_asked(self) -> None:
        """Raise an `EndedError` if it was asked."""
        if self.asked:
            raise EndedError


class WatchedGrid:
    """A grid whose waiting can be ended; whatever else it is asked for, the grid itself answers.

    Args:
        grid: does the work.
        request: ends the waiting.
    """

    def __init__(self, grid: Grid, request: StopRequest) -> None:
        self._grid, self._request = grid, request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send, and wait for answers until they came, the time is up or the run shall stop.

        ``request.waits_in`` stays set if this raises.
        """
        messages = list(messages)
        if not messages:  # as for an evaluation by clients, which stands during a round
            return []
        self._request.waits_in = threading.get_ident()
        self._request.raise_if_asked()
        # Elsewhere than in the main thread no signal handler can raise.
        main = threading.current_thread() is threading.main_thread()
        if main or isinstance(self._grid, InProcessGrid):
            replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        else:
            replies = self._poll(messages, float("inf") if timeout is None else timeout)
        self._request.waits_in = None
        return replies

    def _poll(self, messages: Iterable[Message], limit: float) -> list[Message]:
        """As the grid itself does it, with a look at the request."""
        left = set(self._grid.push_messages(messages))
        end, replies = time.monotonic() + limit, list[Message]()
        while left and time.monotonic() < end:
            new = list(self._grid.pull_messages(left))
            replies += new
            left -= {reply.metadata.reply_to_message_id for reply in new}
            self._request.raise_if_asked()
            if left:
                time.sleep(_PULL)
        return replies
