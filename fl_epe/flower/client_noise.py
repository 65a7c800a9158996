"""Noise that clients add themselves: what they promise, or what most of them seem to add."""

import math
from collections.abc import Sequence

import numpy as np
from flwr.app import Message

from fl_epe.auditing import FaultKind
from fl_epe.checks import NamedArrays
from fl_epe.flower.dominance import RoundUpdates
from fl_epe.flower.fault_log import FaultLog, logger
from fl_epe.flower.layout import Layout
from fl_epe.flower.replies import MOST_READ, are_noise, base_of, model_record
from fl_epe.flower.round_state import RoundState
from fl_epe.noise import LocalDp, PromisedNoise

_LITTLE = 0.7  # of the median node's noise: less is not by chance, nor for want of an update
_FEWEST = 5  # nodes of which most can be told from one


class ClientNoise:
    """The test of clients' noise in a run: of each reply, or of nodes against each other.

    Args:
        promise: of the clients; without one nodes are compared with each other.
        seed: of the test.

    Attributes:
        promised: what replies show of the promise; ``None`` before the first.
    """

    def __init__(self, promise: LocalDp | None, seed: int) -> None:
        self._promise = promise
        self._seed = seed
        self._named = set[
            int
        ]()  # nodes that were named for less noise than others
        self.promised: PromisedNoise | None = None

    def announce(self) -> None:
        """Log what the numbers of the promise amount to, before the first round."""
        if self._promise is not None:
            log = logger.warning if self._promise.fault() else logger.info
            log("Audit: %s", self._promise.sentence())

    def test(
        self,
        current: RoundState,
        updates: RoundUpdates,
        real: Sequence[Message],
        layout: Layout,
        preferred: str,
        faults: FaultLog,
    ) -> None:
        """Test each node's first reply of a round; the first failure of a node is logged.

        Replies that cannot be read are left out: they are faults elsewhere.

        Args:
            current: the round.
            updates: in the replies that can be read.
            real: all replies of clients.
            layout: of all arrays of the model.
            preferred: see `model_record`.
            faults: to which failures are added.
        """
        index = current.index
        if self._promise is None:
            for node, times in less_noise(updates).items():
                if node not in self._named:
                    self._named.add(node)
                    text = f"node {node}: {times:.2g} times the noise that other nodes seem to add"
                    faults.observed(index, FaultKind.NOISE_UNLIKE_OTHERS, text)
            return
        promised = self.promised or self._begin(self._promise, layout)
        self.promised = promised
        earlier_faults = promised.faults
        base = base_of(updates.kind, layout.flatten(current.arrays))
        readable = set(updates.contents)
        replies = {
            reply.metadata.src_node_id: reply
            for reply in reversed(real)
            if id(reply.content) in readable
        }
        for node in sorted(replies):
            _, update = model_record(replies[node], layout, preferred)
            if np.isfinite(update).all():
                if base is not None:
                    update -= base  # a vector of its own
                promised.add(node, update)
        for sender, text in promised.faults.items():
            if sender not in earlier_faults:
                kind = FaultKind.NOISE_NOT_PROMISED
                faults.observed(index, kind, text, "noise is not as promised: ")

    def _begin(self, promise: LocalDp, layout: Layout) -> PromisedNoise:
        sizes = {name: math.prod(layout.shapes[name]) for name in layout.moved}
        return PromisedNoise(promise, sizes, seed=self._seed)

    def state(self) -> NamedArrays:
        """Named arrays from which `restore` goes on."""
        if self.promised is None:
            return {}
        return self.promised.state()

    def restore(self, layout: Layout, state: NamedArrays) -> None:
        """Go on from the state of an audit that was saved."""
        if state and self._promise is not None:
            self.promised = self._begin(self._promise, layout)
            self.promised.restore(state)

    def findings(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What is seen of the noise of clients, in sentences, and what is wrong with it."""
        if self._promise is None:
            return (), ()
        sentences: Sequence[str] = ()
        faults: Sequence[str] = ()
        if self.promised is not None:
            sentences, faults = self.promised.findings()
        amount = f"Noise of clients: {self._promise.sentence()}."
        fault = self._promise.fault()
        return (amount, *sentences), (*([fault] if fault else []), *faults)


def less_noise(updates: RoundUpdates) -> dict[int, float]:
    """Nodes with less noise than the others, whose updates look like noise and nothing else.

    Args:
        updates: of a round.

    Returns:
        By node its noise over that of the median node, below 0.7. Nothing where the others' updates
        do not look like noise, or of fewer than five nodes.
    """
    sizes = np.sqrt(np.mean(updates.entries**2, axis=1))
    if len(sizes) < _FEWEST:
        return {}
    times = sizes / max(float(np.median(sizes)), np.finfo(float).tiny)
    has_little = times < _LITTLE
    if not has_little.any():
        return {}
    if not are_noise(list(updates.entries[~has_little][:MOST_READ])):
        return {}
    rows = np.flatnonzero(has_little).tolist()
    return {updates.nodes[row]: float(times[row]) for row in rows}
