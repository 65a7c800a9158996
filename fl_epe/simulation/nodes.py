"""`Directory`: which node holds which clients, while nodes leave and return under other ids."""

from __future__ import annotations

import dataclasses
import heapq
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fl_epe.schedules import Cohort

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Share:
    """What one node does in a round."""

    node: int
    clients: list[int]
    canary_ids: list[int]


class Directory:
    """Asks each node once which clients it holds, and shares cohorts out.

    Args:
        num_clients: clients that the run expects.
        wait: seconds to wait, at the start, until all of them can be reached.
        sizes: how much work each client of a cohort is; by default all are alike. Asked for where
            every node holds all clients, so that there is a choice.
    """

    def __init__(
        self, num_clients: int, wait: float, sizes: Callable[[Cohort], NDArray[Any]] | None = None
    ) -> None:
        self._num_clients = num_clients
        self._wait = wait
        self._sizes = sizes or np.ones_like
        self._held: dict[int, NDArray[np.int64]] = {}

    def refresh(self, grid: Grid) -> None:
        """Forget nodes that left and ask new ones.

        Raises:
            ValueError: if two nodes hold the same client (other than every node all of them), or
                one holds an unknown client.
        """
        present = set(grid.get_node_ids())
        self._held = {node: held for node, held in self._held.items() if node in present}
        new = sorted(present - self._held.keys())
        orders = [Message(RecordDict(), node, MessageType.QUERY) for node in new]
        for reply in grid.send_and_receive(orders, timeout=self._wait) if orders else ():
            if reply.has_error():
                logger.warning("Node %d: %s", reply.metadata.src_node_id, reply.error.reason)
                continue
            held = reply.content.array_records["held"]["clients"].numpy()
            self._held[reply.metadata.src_node_id] = self._checked(held)
        if not self._replicated():
            self._refuse_duplicates()

    def _replicated(self) -> bool:
        """Whether every node holds all clients."""
        return all(len(held) == self._num_clients for held in self._held.values())

    def wait_for_all(self, grid: Grid) -> None:
        """Wait until every client can be reached.

        Raises:
            TimeoutError: if some cannot in time.
        """
        end = time.monotonic() + self._wait
        self.refresh(grid)
        while self.reachable() < self._num_clients:
            if time.monotonic() > end:
                raise TimeoutError(
                    f"Expected nodes that hold all {self._num_clients} clients within "
                    f"{self._wait:g} s: {len(self._held)} nodes hold {self.reachable()}."
                )
            time.sleep(1)
            self.refresh(grid)

    def reachable(self) -> int:
        """How many clients are held by the nodes that are connected."""
        if self._held and self._replicated():
            return self._num_clients
        return sum(len(held) for held in self._held.values())

    def share(self, clients: Cohort, canary_ids: Cohort) -> list[Share]:
        """Share a cohort out, in an order that does not depend on the nodes' ids.

        Canary j goes to the j-th node (modulo their number); clients that no node holds are left
        out. Where every node holds all clients, they are shared out by their sizes, the largest
        first, to whoever has least to do.
        """
        nodes = sorted(self._held, key=lambda node: int(self._held[node].min(initial=2**62)))
        shares = []
        balanced = self._balanced(clients, len(nodes)) if self._replicated() else None
        for position, node in enumerate(nodes):
            if balanced is not None:
                here = balanced[position]
            else:
                here = np.intersect1d(clients, self._held[node], assume_unique=True)
            mine = canary_ids[canary_ids % len(nodes) == position]
            if len(here) or len(mine):
                shares.append(Share(node, here.tolist(), mine.tolist()))
        return shares

    def _balanced(self, clients: Cohort, parts: int) -> list[Cohort]:
        """Parts of about equal size."""
        sizes = np.asarray(self._sizes(clients))
        loads = [(0.0, part) for part in range(parts)]
        owner = np.empty(len(clients), np.int64)
        for place in np.argsort(-sizes, kind="stable"):
            load, part = loads[0]
            owner[place] = part
            heapq.heapreplace(loads, (load + float(sizes[place]), part))
        return [clients[owner == part] for part in range(parts)]

    def _checked(self, held: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(held) and not 0 <= held.min() <= held.max() < self._num_clients:
            raise ValueError(
                f"Expected client ids in [0, clients={self._num_clients}), got "
                f"{held.min()} to {held.max()} from a node."
            )
        return np.sort(held)

    def _refuse_duplicates(self) -> None:
        everyone = np.concatenate([np.empty(0, np.int64), *self._held.values()])
        clients, counts = np.unique(everyone, return_counts=True)
        if np.any(counts > 1):
            raise ValueError(f"Expected client {clients[counts > 1][0]} on one node only.")
