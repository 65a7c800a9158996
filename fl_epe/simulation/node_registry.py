"""`NodeRegistry` tracks the clients of each node; nodes may leave and return with other ids."""

import logging
import math
import time
from collections.abc import Callable, Iterator

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fl_epe.archive import UNREADABLE
from fl_epe.auditing import Fault, FaultKind
from fl_epe.checks import Integers
from fl_epe.messages import read_only, records_of
from fl_epe.schedules import Cohort
from fl_epe.simulation.messages import RefusedError, content_of

logger = logging.getLogger(__name__)

# Number of refreshes after which a node that did not name its clients is asked again.
_REFRESHES_TO_WAIT = 10


class NodeRegistry:
    """Asks each node once which clients it holds, and partitions cohorts among the nodes.

    Args:
        num_clients: number of clients that the run expects.
        wait: seconds to wait for the replies of new nodes, and until enough clients can be reached:
            all in `wait_for_all`, and a given number in `refresh_until`.
        sizes: a function of a cohort that gives the work of each client; by default all have
            the same. It is only called if every node holds all clients, so that the server can
            choose the node of a client.
    """

    def __init__(
        self,
        num_clients: int,
        wait: float,
        sizes: Callable[[Cohort], np.ndarray] | None = None,
    ) -> None:
        self._num_clients = num_clients
        self._wait = wait
        self._sizes = sizes or np.ones_like
        self._clients_of: dict[int, Integers] = {}
        # Number of refreshes until a node is asked again; infinite for a replaced node.
        self._refreshes_to_wait: dict[int, float] = {}

    def refresh(self, grid: Grid) -> Iterator[Fault]:
        """Forget nodes that left and ask new ones.

        If two nodes hold the same client, the node that came last trains it: a node that died
        and returns under another id is on a SuperLink's list twice for a while.

        Yields:
            A fault for each node that left or was replaced, or whose answer cannot be used.
        """
        present = set(grid.get_node_ids())
        for node in sorted(self._clients_of.keys() - present):
            del self._clients_of[node]
            yield Fault(FaultKind.NODE_LEFT, f"node {node}: it left")
        unknown = sorted(present - self._clients_of.keys())
        waits = {node: self._refreshes_to_wait.get(node, 0) for node in present}
        queried = [node for node in unknown if not waits[node]]
        self._refreshes_to_wait = {
            node: max(0, refreshes - 1) for node, refreshes in waits.items()
        }
        if not queried:
            return
        # A valid answer resets the wait.
        for node in queried:
            self._refreshes_to_wait[node] = _REFRESHES_TO_WAIT
        queries = [
            Message(RecordDict(), node, MessageType.QUERY) for node in queried
        ]
        for reply in grid.send_and_receive(queries, timeout=self._wait):
            node = reply.metadata.src_node_id
            try:
                clients = self._clients_in(content_of(reply))
            except RefusedError as error:
                yield Fault(error.kind, f"node {node}: {error}")
                continue
            yield from self._replace_nodes(node, clients)
            self._clients_of[node] = clients
            self._refreshes_to_wait[node] = 0

    def refresh_until(self, grid: Grid, clients: int) -> Iterator[Fault]:
        """`refresh` until this number of clients can be reached, or the time to wait is over."""
        end = time.monotonic() + self._wait
        yield from self.refresh(grid)
        while self.reachable() < clients and time.monotonic() < end:
            time.sleep(1)
            yield from self.refresh(grid)

    def _replace_nodes(
        self, new_node: int, clients: Integers
    ) -> Iterator[Fault]:
        """Forget nodes that hold a client of ``new_node``, unless both hold all clients."""
        for node, clients_of_node in list(self._clients_of.items()):
            shared = np.intersect1d(clients, clients_of_node)
            both_hold_all = (
                len(clients) == len(clients_of_node) == self._num_clients
            )
            if len(shared) and not both_hold_all:
                del self._clients_of[node]
                self._refreshes_to_wait[node] = math.inf
                text = f"client {shared[0]} is on node {new_node} too, which came last"
                yield Fault(FaultKind.NODE_LEFT, f"node {node}: {text}")

    def _is_replicated(self) -> bool:
        """Whether there are nodes, and each holds all clients."""
        sizes = {len(clients) for clients in self._clients_of.values()}
        return sizes == {self._num_clients}

    def wait_for_all(self, grid: Grid) -> None:
        """Wait until every client can be reached.

        Raises:
            TimeoutError: if some clients cannot be reached in time.
            ValueError: if two nodes hold the same client, unless every node holds all clients,
                or if a node holds an unknown client.
        """
        for fault in self.refresh_until(grid, self._num_clients):
            if fault.kind in (FaultKind.ANSWER_REFUSED, FaultKind.NODE_LEFT):
                raise ValueError(
                    f"Expected nodes among which the clients are partitioned; {fault.text}."
                )
            logger.warning("%s", fault.text)
        if self.reachable() < self._num_clients:
            raise TimeoutError(
                f"Expected nodes that hold all {self._num_clients} clients within "
                f"{self._wait:g} s: {len(self._clients_of)} nodes hold {self.reachable()}."
            )

    def reachable(self) -> int:
        """The number of clients that the connected nodes hold."""
        if self._is_replicated():
            return self._num_clients
        return sum(len(clients) for clients in self._clients_of.values())

    def share(
        self, clients: Cohort, canary_ids: Cohort
    ) -> Iterator[tuple[int, list[int], list[int]]]:
        """Partition a round's clients and canaries among the nodes.

        Canary j goes to the j-th node, modulo the number of nodes. Clients that no node holds
        are left out. If every node holds all clients, they are partitioned by size: each
        client, the largest first, goes to the node with the least work so far.

        Yields:
            A node with its clients and canaries, in an order that does not depend on its id.
        """

        def first_client(node: int) -> int:
            return int(self._clients_of[node].min(initial=self._num_clients))

        nodes = sorted(self._clients_of, key=first_client)
        if self._is_replicated():
            parts = self._balanced_parts(clients, len(nodes))
        else:
            parts = [
                np.intersect1d(
                    clients, self._clients_of[node], assume_unique=True
                )
                for node in nodes
            ]
        for position, node in enumerate(nodes):
            canaries = canary_ids[canary_ids % len(nodes) == position]
            part = parts[position]
            if len(part) or len(canaries):
                yield node, part.tolist(), canaries.tolist()

    def _balanced_parts(self, clients: Cohort, count: int) -> list[Cohort]:
        """This number of parts of the clients, with about equal work."""
        sizes = np.asarray(self._sizes(clients))
        loads = np.zeros(count)
        part_of = np.empty(len(clients), np.int64)
        for client in np.argsort(-sizes, kind="stable"):
            part = loads.argmin()
            part_of[client] = part
            loads[part] += sizes[client]
        return [clients[part_of == part] for part in range(count)]

    def _clients_in(self, content: RecordDict) -> Integers:
        """The clients in a node's answer.

        Raises:
            RefusedError: if the answer does not have valid client ids.
        """
        try:
            array = records_of(content, ArrayRecord)["held"]["clients"]
            clients = np.unique(read_only(array))
        except UNREADABLE as error:
            raise RefusedError(f"it names no clients: {error}") from error
        if clients.dtype.kind != "i":
            raise RefusedError(
                f"Expected client ids to be integers, got {clients.dtype}"
            )
        if (
            len(clients)
            and not 0 <= clients[0] <= clients[-1] < self._num_clients
        ):
            raise RefusedError(
                f"Expected client ids in [0, clients={self._num_clients}), got {clients[0]} to "
                f"{clients[-1]}"
            )
        return clients.astype(np.int64)
