"""A Flower `Grid` with its nodes in this process: the same apps, without Ray or a SuperLink."""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fl_epe.simulation.flower_internals import (
    CLIENT_RAISED,
    DecodedArray,
    ensure_task_identity,
    set_message_id,
    with_own_records,
)

_SERVER = 0


class InProcessGrid(Grid):
    """Runs a `ClientApp` on ``nodes`` nodes of this process, one thread for each.

    Each node gets records of its own, as from a wire; the arrays in them are not copied. A client
    app that raises answers with an error message, as on a real node. Use as a context manager, or
    call `close`.

    Args:
        client_app: answers the messages.
        nodes: number of nodes; node i gets ``partition-id`` i and ``num-partitions``.

    Raises:
        ValueError: if ``nodes`` is not positive.
    """

    def __init__(self, client_app: ClientApp, nodes: int) -> None:
        if nodes < 1:
            raise ValueError(f"Expected nodes={nodes} >= 1.")
        ensure_task_identity(_SERVER)
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
        self._pool = ThreadPoolExecutor(nodes, thread_name_prefix="fl-epe-node")
        self._numbers = itertools.count(1)
        self._replies: dict[str, Future[Message]] = {}

    def __enter__(self) -> InProcessGrid:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

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
        ids = []
        messages = list(messages)  # alive, so that each array has an id of its own
        decoded: dict[int, DecodedArray] = {}
        for original in messages:
            number = str(next(self._numbers))
            message = with_own_records(original, decoded)
            set_message_id(message, number)
            self._replies[number] = self._pool.submit(self._answer, message)
            ids.append(number)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Those replies that are ready, each once."""
        ready = [i for i in message_ids if i in self._replies and self._replies[i].done()]
        return [self._replies.pop(i).result() for i in ready]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send, wait for the replies (at most ``timeout`` seconds) and return those that came."""
        ids = list(self.push_messages(messages))
        wait([self._replies[i] for i in ids], timeout)
        return self.pull_messages(ids)

    def _answer(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            return self._app(message, context)
        except Exception as error:  # noqa: BLE001 - whatever a client app does, the server goes on
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(CLIENT_RAISED, reason), reply_to=message)
