"""Flower grids: one with its nodes in this process, and one whose waiting can be interrupted.

`InProcessGrid` runs the same apps as Ray or a SuperLink would. A run spends most of its time
waiting for replies, while its state does not change. So a run that ends while it waits, by a
`StopRequest` or an error, can save the state after the last complete round.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import queue
import threading
import time
import types
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fl_epe.archive import error_text
from fl_epe.checks import check_count
from fl_epe.messages import DecodedArray
from fl_epe.simulation import flower_internals
from fl_epe.wording import NODE_THREAD

_SERVER = 0  # node id of the server
_M_ARENA_MAX = -8  # from malloc.h
_POLL_SECONDS = 0.1  # between checks for replies and for a request to stop


class InProcessGrid(Grid):
    """Runs a `ClientApp` on ``nodes`` nodes of this process, one thread for each.

    Each node gets copies of the records, as if they were sent, but the arrays in them are not
    copied. If a client app raises an exception, the reply is an error message, as on a real
    node. If it does not reply within the timeout of `send_and_receive`, only that reply is
    lost, and its node goes on in a new thread. With glibc, all threads that the process starts
    later share one heap (`share_one_heap`). Use the grid as a context manager, or call `close`.

    Args:
        client_app: the app that replies to the messages.
        nodes: number of nodes; node i gets ``partition-id`` i and ``num-partitions``.

    Raises:
        ValueError: if ``nodes`` is not positive.
    """

    def __init__(self, client_app: ClientApp, nodes: int) -> None:
        check_count("nodes", nodes)
        share_one_heap()
        flower_internals.ensure_task_identity(_SERVER)
        self._app = client_app
        self._contexts: dict[int, Context] = {}
        for i in range(nodes):
            self._contexts[i + 1] = Context(
                run_id=0,
                node_id=i + 1,
                node_config={"partition-id": i, "num-partitions": nodes},
                state=RecordDict(),
                run_config={},
            )
        self._threads = {
            node: _NodeThread(self._answer) for node in self._contexts
        }
        self._message_numbers = itertools.count(1)
        self._replies: dict[str, Future[Message]] = {}

    def __enter__(self) -> InProcessGrid:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads after their current messages; replaced threads are not joined."""
        for thread in self._threads.values():
            thread.end()
        for thread in self._threads.values():
            thread.join()

    def set_run(self, run: object) -> None:
        """Do nothing, as there is only one run."""

    @property
    def run(self) -> object:  # type: ignore[override]
        """The run, whose id is always 0."""
        return types.SimpleNamespace(run_id=0)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node."""
        return Message(
            content, dst_node_id, message_type, ttl=ttl, group_id=group_id
        )

    def get_node_ids(self) -> Iterable[int]:
        """The ids of all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Start to process each message; returns their ids."""
        ids = []
        decoded: dict[int, DecodedArray] = {}
        # The list keeps every array alive, so that no two have the same `id`.
        messages = list(messages)
        for original in messages:
            message_id = str(next(self._message_numbers))
            message = flower_internals.with_own_records(original, decoded)
            flower_internals.set_message_id(message, message_id)
            thread = self._threads[message.metadata.dst_node_id]
            self._replies[message_id] = thread.submit(message)
            ids.append(message_id)
        return ids

    def pull_messages(
        self, message_ids: Iterable[str], **_newer: Any
    ) -> Iterable[Message]:
        """The replies that are ready, each once; arguments of newer versions are ignored."""
        replies = []
        for message_id in message_ids:
            reply = self._replies.get(message_id)
            if reply is not None and reply.done():
                del self._replies[message_id]
                replies.append(reply.result())
        return replies

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
        **_newer: Any,
    ) -> Iterable[Message]:
        """Send, wait at most ``timeout`` seconds, and return the replies that are ready."""
        messages = list(messages)
        ids = list(self.push_messages(messages))
        wait([self._replies[message_id] for message_id in ids], timeout)
        replies = self.pull_messages(ids)
        for message, message_id in zip(messages, ids, strict=True):
            is_late = self._replies.pop(message_id, None) is not None
            if is_late:
                node = message.metadata.dst_node_id
                self._threads[node].end()
                self._threads[node] = _NodeThread(self._answer)
        return replies

    def _answer(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            return self._app(message, context)
        except Exception as error:  # noqa: BLE001 - whatever a client app does, the server goes on
            reason = Error(flower_internals.CLIENT_RAISED, error_text(error))
            return Message(reason, reply_to=message)


def share_one_heap() -> None:
    """Let all new threads use the first heap of glibc, instead of a heap of their own.

    Otherwise the server could not use the memory that a node's thread frees after a round.
    Heaps of earlier threads stay. Without glibc this does nothing.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class _NodeThread:
    """Replies to the messages of a node, one after the other.

    The thread is a daemon, so a client that hangs forever does not keep the process from
    ending. The function ``answer`` is only an argument of the thread, so that it is freed when
    the thread ends. Otherwise the garbage collector would free it later by running Python code,
    and CPython 3.11 fails if that happens while NumPy reads a header in another thread.
    """

    def __init__(self, answer: Callable[[Message], Message]) -> None:
        # Messages with the futures of their replies; `None` ends the thread.
        self._work: queue.SimpleQueue[
            tuple[Message, Future[Message]] | None
        ] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, args=(answer,), daemon=True, name=NODE_THREAD
        )
        self._thread.start()

    def submit(self, message: Message) -> Future[Message]:
        reply: Future[Message] = Future()
        self._work.put((message, reply))
        return reply

    def end(self) -> None:
        """Take no more messages; those in the queue are still processed."""
        self._work.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self, answer: Callable[[Message], Message]) -> None:
        for task in iter(self._work.get, None):
            message, reply = task
            try:
                reply.set_result(answer(message))
            except BaseException as error:  # noqa: BLE001 - as an executor: `result` raises it
                reply.set_exception(error)
            # Free these large objects; the next task may come much later.
            del task, message, reply


class EndedError(Exception):
    """Raised to end a run before its last round; `run_on_grid` catches it."""


class RunStoppedError(Exception):
    """Raised after a run stopped because of a `StopRequest`.

    Attributes:
        rounds_done: number of complete rounds.
        rounds: number of all rounds.
        is_saved: whether a checkpoint of the complete rounds was written.
    """

    def __init__(
        self, rounds_done: int, rounds: int, *, is_saved: bool
    ) -> None:
        how = (
            "kept in the checkpoint"
            if is_saved
            else "not kept: see the warning"
        )
        super().__init__(
            f"stopped after round {rounds_done} of {rounds}, {how}"
        )
        self.rounds_done = rounds_done
        self.rounds = rounds
        self.is_saved = is_saved


class StopRequest:
    """Asks a run to stop, for example from a signal handler or from another thread.

    The run then discards the current round, writes a checkpoint of the rounds before it and
    raises a `RunStoppedError`.

    Attributes:
        asked: whether the run was asked to stop.
        is_checked: whether a run checks the request, which it does from its first round to its
            last.
        waiting_thread: the id of the thread in which that run waits for replies; ``None`` if it
            is not waiting.
    """

    def __init__(self) -> None:
        self.asked = False
        self.is_checked = False
        self.waiting_thread: int | None = None

    def ask(self) -> bool:
        """Ask the run to stop.

        Returns:
            Whether the run will notice the request. It does not if the calling thread, as that
            of a signal handler, is the one that waits for replies. Then the caller may raise an
            exception, which ends the waiting.
        """
        self.asked = True
        return self.is_checked and self.waiting_thread != threading.get_ident()

    def raise_if_asked(self) -> None:
        """Raise an `EndedError` if the run was asked to stop."""
        if self.asked:
            raise EndedError


class WatchedGrid:
    """A grid whose waiting can be interrupted; it delegates everything else to another grid.

    Args:
        grid: the grid that sends and receives messages.
        request: the request that interrupts the waiting.
    """

    def __init__(self, grid: Grid, request: StopRequest) -> None:
        self._grid = grid
        self._request = request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
        **newer: Any,
    ) -> Iterable[Message]:
        """Send, and wait for all replies, the end of the timeout or a request to stop.

        ``request.waiting_thread`` stays set if this raises an exception. Arguments of newer
        Flower versions are passed to the grid.
        """
        messages = list(messages)
        # Flower also calls this for an evaluation by clients, which has no messages and comes
        # in the middle of a round.
        if not messages:
            return []
        self._request.waiting_thread = threading.get_ident()
        self._request.raise_if_asked()
        # A signal handler can interrupt only the main thread; other threads poll the request. An
        # `InProcessGrid` cannot be polled, as it replaces the threads that are late.
        in_main = threading.current_thread() is threading.main_thread()
        if in_main or newer or isinstance(self._grid, InProcessGrid):
            replies = list(
                self._grid.send_and_receive(messages, timeout=timeout, **newer)
            )
        else:
            limit = math.inf if timeout is None else timeout
            replies = self._poll(messages, limit)
        self._request.waiting_thread = None
        return replies

    def _poll(self, messages: Iterable[Message], limit: float) -> list[Message]:
        """Send and receive as the grid does, and check the request while waiting."""
        pending = set(self._grid.push_messages(messages))
        end = time.monotonic() + limit
        replies: list[Message] = []
        while pending and time.monotonic() < end:
            for reply in list(self._grid.pull_messages(pending)):
                replies.append(reply)
                pending.discard(reply.metadata.reply_to_message_id)
            self._request.raise_if_asked()
            if pending:
                time.sleep(_POLL_SECONDS)
        return replies
