"""What ends a run early and loses nothing: a request to stop, or whatever breaks the waiting.

A run spends its time waiting for the answers of a round. Nothing of its state changes meanwhile, so
a run that ends there can keep the state after the last whole round.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fl_epe.simulation.in_process_grid import InProcessGrid

_PULL = 0.1  # seconds between looks for answers where a request to stop is listened to


class AskedError(Exception):
    """The run was asked to stop, and a round ends or is dropped; `run_on_grid` catches it."""


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
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._listens = False
        self._waits_in: int | None = None  # a thread

    @property
    def asked(self) -> bool:
        """Whether it was asked."""
        return self._asked.is_set()

    def raise_if_asked(self) -> None:
        """Raise an `AskedError` if it was asked."""
        if self.asked:
            raise AskedError

    def ask(self) -> bool:
        """Ask; returns whether a run listens, which is from its first round to its last."""
        self._asked.set()
        return self._listens

    def may_raise(self) -> bool:
        """Whether an exception in this thread would end the run between two rounds.

        So that a signal handler may raise instead of asking, which ends the waiting at once.
        """
        return self._waits_in == threading.get_ident()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """While a run looks at the request."""
        self._listens = True
        try:
            yield
        finally:
            self._listens = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While this thread waits for answers."""
        self._waits_in = threading.get_ident()
        try:
            yield
        finally:
            self._waits_in = None


class WatchedGrid(Grid):
    """A grid whose waiting can be ended, and that says whether a run ended while it waited.

    Args:
        grid: does the work.
        request: ends the waiting; ``None`` if nobody asks.
        timeout: seconds to wait for the answers of a round, at most.

    Attributes:
        was_waiting: whether the last call of `send_and_receive` did not return.
    """

    def __init__(self, grid: Grid, request: StopRequest | None, timeout: float) -> None:
        self._grid, self._timeout = grid, timeout
        self._request = request or StopRequest()
        # Elsewhere than in the main thread no signal handler can raise.
        self._polls = request is not None and not isinstance(grid, InProcessGrid)
        self.was_waiting = False

    def set_run(self, *arguments: object) -> None:
        """See `Grid`."""
        self._grid.set_run(*arguments)  # type: ignore[arg-type]

    @property
    def run(self) -> object:  # type: ignore[override]
        """See `Grid`."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """See `Grid`."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """See `Grid`."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """See `Grid`."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """See `Grid`."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send, and wait for answers until they came, the time is up or the run shall stop."""
        messages = list(messages)
        if not messages:  # as for an evaluation by clients, which stands during a round
            return []
        limit = self._timeout if timeout is None else min(timeout, self._timeout)
        self.was_waiting = True
        with self._request.waiting():
            self._request.raise_if_asked()
            if self._polls and threading.current_thread() is not threading.main_thread():
                replies = self._poll(messages, limit)
            else:
                replies = list(self._grid.send_and_receive(messages, timeout=limit))
        self.was_waiting = False
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
