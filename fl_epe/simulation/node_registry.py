"""`NodeRegistry`: which node holds which clients, while nodes leave and return under other ids."""

import logging
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
from fl_epe.simulation.messages import (
    RefusedError,
    content_of,
)

logger = logging.getLogger(__name__)

_PATIENCE = 10  # refreshes that a node is left alone which did not say what it holds
_FOR_EVER = 10**9


class NodeRegistry:
    """Asks each node once which clients it holds, and shares cohorts out.

    Args:
        num_clients: clients that the run expects.
        wait: seconds to wait, at the start, until all of them can be reached.
        sizes: how much work each client of a cohort is; by default all are alike. Asked for where
            every node holds all clients, so that there is a choice.
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
        self._held: dict[int, Integers] = {}
        self._left_alone: dict[int, int] = {}  # refreshes until a node is asked again

    def refresh(self, grid: Grid) -> Iterator[Fault]:
        """Forget nodes that left and ask new ones.

        Where two nodes hold the same client, the one that came last has it: a node that died and
        comes back under another id is on a SuperLink's list twice for a while.

        Yields:
            A fault for each node that left or was replaced, or whose answer cannot be used.
        """
        present = set(grid.get_node_ids())
        for node in sorted(self._held.keys() - present):
            del self._held[node]
            yield Fault(FaultKind.NODE_LEFT, f"node {node}: it left")
        new = sorted(present - self._held.keys())
        asked = [node for node in new if not self._left_alone.get(node)]
        left_alone = self._left_alone.items()
        self._left_alone = {
            n: max(0, more - 1) for n, more in left_alone if n in present
        }
        self._left_alone |= dict.fromkeys(asked, _PATIENCE)  # those that do not answer
        orders = [Message(RecordDict(), node, MessageType.QUERY) for node in asked]
        for reply in (
            grid.send_and_receive(orders, timeout=self._wait) if orders else ()
        ):
            node = reply.metadata.src_node_id
            try:
                held = self._checked(content_of(reply))
            except RefusedError as error:
                yield Fault(error.kind, f"node {node}: {error}")
                continue
            yield from self._replace_others(node, held)
            self._held[node] = held
            self._left_alone[node] = 0

    def refresh_until(self, grid: Grid, reachable: int) -> Iterator[Fault]:
        """`refresh` until so many clients can be reached, or the time to wait is over."""
        end = time.monotonic() + self._wait
        yield from self.refresh(grid)
        while self.reachable() < reachable and time.monotonic() < end:
            time.sleep(1)
            yield from self.refresh(grid)

    def _replace_others(self, node: int, held: Integers) -> Iterator[Fault]:
        """Forget nodes whose clients ``node`` now has; every node may hold all of them."""
        for other, theirs in list(self._held.items()):
            all_of_them = len(held) == len(theirs) == self._num_clients
            shared = np.intersect1d(held, theirs)
            if not all_of_them and len(shared):
                del self._held[other]
                self._left_alone[other] = _FOR_EVER
                text = f"node {other}: client {shared[0]} is on node {node} too, which came last"
                yield Fault(FaultKind.NODE_LEFT, text)

    def _replicated(self) -> bool:
        """Whether there are nodes, and each holds all clients."""
        sizes = {len(held) for held in self._held.values()}
        return sizes == {self._num_clients}

    def wait_for_all(self, grid: Grid) -> None:
        """Wait until every client can be reached.

        Raises:
            TimeoutError: if some cannot in time.
            ValueError: if two nodes hold the same client (other than every node all of them), or
                one holds an unknown client.
        """
        for fault in self.refresh_until(grid, self._num_clients):
            if fault.kind in (FaultKind.ANSWER_REFUSED, FaultKind.NODE_LEFT):
                raise ValueError(
                    f"Expected nodes that share the clients out; {fault.text}."
                )
            logger.warning("%s", fault.text)
        if self.reachable() < self._num_clients:
            raise TimeoutError(
                f"Expected nodes that hold all {self._num_clients} clients within "
                f"{self._wait:g} s: {len(self._held)} nodes hold {self.reachable()}."
            )

    def reachable(self) -> int:
        """How many clients are held by the nodes that are connected."""
        if self._replicated():
            return self._num_clients
        return sum(len(held) for held in self._held.values())

    def share(
        self, clients: Cohort, canary_ids: Cohort
    ) -> Iterator[tuple[int, list[int], list[int]]]:
        """Each node with its clients and canaries, in an order that does not depend on its id.

        Canary j goes to the j-th node (modulo their number); clients that no node holds are left
        out. Where every node holds all clients, they are partitioned by size: each client, the
        largest first, goes to the node with the least work so far.
        """
        nodes = sorted(
            self._held, key=lambda node: int(self._held[node].min(initial=2**62))
        )
        owner = self._balanced(clients, len(nodes)) if self._replicated() else None
        for position, node in enumerate(nodes):
            if owner is not None:
                here = clients[owner == position]
            else:
                here = np.intersect1d(clients, self._held[node], assume_unique=True)
            mine = canary_ids[canary_ids % len(nodes) == position]
            if len(here) or len(mine):
                yield node, here.tolist(), mine.tolist()

    def _balanced(self, clients: Cohort, parts: int) -> Integers:
        """Of which part each client is, so that all parts are of about equal size."""
        sizes, loads = np.asarray(self._sizes(clients)), np.zeros(parts)
        owner = np.empty(len(clients), np.int64)
        for place in np.argsort(-sizes, kind="stable"):
            owner[place] = loads.argmin()
            loads[owner[place]] += sizes[place]
        return owner

    def _checked(self, content: RecordDict) -> Integers:
        """The clients in a node's answer; raises a `RefusedError` if they are none."""
        try:
            held = np.unique(
                read_only(records_of(content, ArrayRecord)["held"]["clients"])
            )
        except UNREADABLE as error:
            raise RefusedError(f"it names no clients: {error}") from error
        if held.dtype.kind != "i" or held.ndim != 1:
            raise RefusedError(f"its clients are {held.dtype} {held.shape}")
        if len(held) and not 0 <= held[0] <= held[-1] < self._num_clients:
            raise RefusedError(
                f"Expected client ids in [0, clients={self._num_clients}), got {held[0]} to "
                f"{held[-1]}"
            )
        return held.astype(np.int64)
