"""Flower grids: one with its nodes in this process, and one whose waiting can be ended.

`InProcessGrid` runs the same apps as Ray or a SuperLink would. A run spends its time waiting for
answers. Nothing of its state changes meanwhile, so a run that ends there, by a
`StopRequest` or whatever breaks the waiting, can keep the state after the last whole round.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
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

_SERVER = 0
_M_ARENA_MAX = -8  # of malloc.h


class InProcessGrid(Grid):
    """Runs a `ClientApp` on ``nodes`` nodes of this process, one thread for each.

    Each node gets records of its own, as from a wire; the arrays in them are not copied. A client
    app that raises answers with an error message, as on a real node. One that hangs beyond the
    timeout of `send_and_receive` loses that answer alone: its node goes on in a new thread. With
    glibc, the process makes no more heaps for threads from here on. Use as a context manager, or
    call `close`.

    Args:
        client_app: answers the messages.
        nodes: number of nodes; node i gets ``partition-id`` i and ``num-partitions``.

    Raises:
        ValueError: if ``nodes`` is not positive.
    """

    def __init__(self, client_app: ClientApp, nodes: int) -> None:
        check_count("nodes", nodes)
        share_one_heap()
        flower_internals.ensure_task_identity(_SERVER)
        self._app = client_app
        self._contexts = {
            i + 1: Context(
                run_id=0,
                node_id=i + 1,
                node_config={"partition-id": i, "num-partitions": nodes},
                state=RecordDict(),
                run_config={},
            )
            for i in range(nodes)
        }
        self._threads = {node: _NodeThread(self._answer) for node in self._contexts}
        self._numbers = itertools.count(1)
        self._replies: dict[str, Future[Message]] = {}

    def __enter__(self) -> InProcessGrid:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads, those that work when they are done; one that hung is left alone."""
        for thread in self._threads.values():
            thread.end()
        for thread in self._threads.values():
            thread.join()

    def set_run(self, run: object) -> None:
        """Nothing to do: there is only one run."""

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
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Start answering each message; returns their ids."""
        ids, decoded = list[str](), dict[int, DecodedArray]()
        messages = list(messages)  # alive, so that each array has an id of its own
        for original in messages:
            number = str(next(self._numbers))
            message = flower_internals.with_own_records(original, decoded)
            flower_internals.set_message_id(message, number)
            self._replies[number] = self._threads[message.metadata.dst_node_id].submit(
                message
            )
            ids.append(number)
        return ids

    def pull_messages(
        self, message_ids: Iterable[str], **_newer: Any
    ) -> Iterable[Message]:
        """Those replies that are ready, each once; what a newer Flower asks besides is ignored."""
        ready = [
            i for i in message_ids if i in self._replies and self._replies[i].done()
        ]
        return [self._replies.pop(i).result() for i in ready]

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
        **_newer: Any,
    ) -> Iterable[Message]:
        """Send, wait for the replies (at most ``timeout`` seconds) and return those that came."""
        messages = list(messages)
        ids = list(self.push_messages(messages))
        wait([self._replies[i] for i in ids], timeout)
        replies = self.pull_messages(ids)
        for message, number in zip(messages, ids, strict=True):
            if self._replies.pop(number, None) is not None:  # not in time
                node = message.metadata.dst_node_id
                self._threads[node].end()
                self._threads[node] = _NodeThread(self._answer)
        return replies

    def _answer(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            return self._app(message, context)
        except Exception as error:  # noqa: BLE001 - whatever a client app does, the server goes on
            reason = error_text(error)
            return Message(
                Error(flower_internals.CLIENT_RAISED, reason), reply_to=message
            )


def share_one_heap() -> None:
    """Have glibc make no more heaps for threads: all use the one that there is, from now on.

    Otherwise each has a heap of its own, and what a node's thread frees after a round is of no use
    to the server. Where threads were at work before, their heaps stay. Without glibc this does
    nothing.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class _NodeThread:
    """Answers the messages of a node, one after the other.

    It is a daemon: a client that hangs for ever does not keep the process from ending. What it
    refers to ends with it, as the garbage collector would run Python code in freeing a thread, and
    CPython 3.11 fails if it does so while NumPy reads a header in another one.
    """

    def __init__(self, answer: Callable[[Message], Message]) -> None:
        self._work: queue.SimpleQueue[tuple[Message, Future[Message]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(
            target=self._run, args=(answer,), daemon=True, name=NODE_THREAD
        )
        self._thread.start()

    def submit(self, message: Message) -> Future[Message]:
        reply: Future[Message] = Future()
        self._work.put((message, reply))
        return reply

    def end(self) -> None:
        """Take no more messages; those that wait are still answered."""
        self._work.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self, answer: Callable[[Message], Message]) -> None:
        while (task := self._work.get()) is not None:
            message, reply = task
            try:
                reply.set_result(answer(message))
            except BaseException as error:  # noqa: BLE001 - as an executor does: who waits gets it
                reply.set_exception(error)
            del task, message, reply  # large, and the next task may be long in coming


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
        self, messages: Iterable[Message], *, timeout: float | None = None, **newer: Any
    ) -> Iterable[Message]:
        """Send, and wait for answers until they came, the time is up or the run shall stop.

        ``request.waits_in`` stays set if this raises. Whatever a newer Flower asks besides, only
        the grid itself can do.
        """
        messages = list(messages)
        if not messages:  # as for an evaluation by clients, which stands during a round
            return []
        self._request.waits_in = threading.get_ident()
        self._request.raise_if_asked()
        # Elsewhere than in the main thread no signal handler can raise.
        main = threading.current_thread() is threading.main_thread()
        if main or newer or isinstance(self._grid, InProcessGrid):
            replies = list(
                self._grid.send_and_receive(messages, timeout=timeout, **newer)
            )
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
