"""Tests of noise that clients add themselves, against their promise or each other's noise."""

import math
from collections.abc import Sequence

import numpy as np
from flwr.app import Message

from fl_epe.auditing import FaultKind
from fl_epe.checks import NamedArrays
from fl_epe.flower.dominance import RoundUpdates
from fl_epe.flower.fault_log import FaultLog, logger
from fl_epe.flower.layout import Layout
from fl_epe.flower.replies import MAX_READ, are_noise, base_of, model_record
from fl_epe.flower.round_state import RoundState
from fl_epe.noise import LocalDp, PromisedNoise

# A node has less noise than others if it has less than this share of the median node's: neither
# chance nor a missing update explains that.
_MAX_LOW_NOISE = 0.7

# The smallest number of nodes among which one can be an outlier.
_MIN_NODES = 5


class ClientNoise:
    """The test of clients' noise in a run: against a promise, or of nodes against each other.

    Args:
        promise: the clients' promise; without one, nodes are compared with each other.
        seed: seed of the test.

    Attributes:
        promised: the tests of the promise; ``None`` before the first reply.
    """

    def __init__(self, promise: LocalDp | None, seed: int) -> None:
        self._promise = promise
        self._seed = seed
        # Nodes that were reported to have less noise than others.
        self._reported_nodes = set[int]()
        self.promised: PromisedNoise | None = None

    def announce(self) -> None:
        """Log the exact ε that follows from the promise, before the first round."""
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
        """Test the replies of a round, and report each node that fails for the first time.

        Replies that cannot be read are skipped, as they are faults already.

        Args:
            current: the round.
            updates: the updates in the readable replies.
            real: all replies of clients.
            layout: layout of all arrays of the model.
            preferred: see `model_record`.
            faults: the log to which failures are added.
        """
        index = current.index
        if self._promise is None:
            for node, ratio in less_noise(updates).items():
                if node not in self._reported_nodes:
                    self._reported_nodes.add(node)
                    text = f"node {node}: {ratio:.2g} times the noise that other nodes seem to add"
                    faults.report_fault(
                        index, FaultKind.NOISE_UNLIKE_OTHERS, text
                    )
            return
        promised = self.promised or self._begin(self._promise, layout)
        self.promised = promised
        earlier_faults = promised.faults
        base = base_of(updates.kind, layout.flatten(current.arrays))
        readable = set(updates.contents)
        # If a node answered twice, its first reply counts.
        replies = {
            reply.metadata.src_node_id: reply
            for reply in reversed(real)
            if id(reply.content) in readable
        }
        for node in sorted(replies):
            _, update = model_record(replies[node], layout, preferred)
            if np.isfinite(update).all():
                if base is not None:
                    # In place, because `model_record` made a copy.
                    update -= base
                promised.add(node, update)
        for sender, text in promised.faults.items():
            if sender not in earlier_faults:
                kind = FaultKind.NOISE_NOT_PROMISED
                faults.report_fault(
                    index, kind, text, "noise is not as promised: "
                )

    def _begin(self, promise: LocalDp, layout: Layout) -> PromisedNoise:
        num_entries = {
            name: math.prod(layout.shapes[name]) for name in layout.moved
        }
        return PromisedNoise(promise, num_entries, seed=self._seed)

    def state(self) -> NamedArrays:
        """Named arrays from which `restore` continues."""
        if self.promised is None:
            return {}
        return self.promised.state()

    def restore(self, layout: Layout, state: NamedArrays) -> None:
        """Continue from the state of a saved audit."""
        if state and self._promise is not None:
            self.promised = self._begin(self._promise, layout)
            self.promised.restore(state)

    def findings(self) -> tuple[list[str], list[str]]:
        """The results in sentences, and the faults of the promise and of nodes, as clauses.

        Both are empty without a promise.
        """
        sentences = list[str]()
        faults = list[str]()
        if self._promise is None:
            return sentences, faults
        sentences.append(f"Noise of clients: {self._promise.sentence()}.")
        fault_of_promise = self._promise.fault()
        if fault_of_promise:
            faults.append(fault_of_promise)
        if self.promised is not None:
            results, faults_of_nodes = self.promised.findings()
            sentences += results
            faults += faults_of_nodes
        return sentences, faults


def less_noise(updates: RoundUpdates) -> dict[int, float]:
    """The nodes with less noise than the other nodes, if the others' updates look like pure noise.

    Args:
        updates: the updates of a round.

    Returns:
        For each of these nodes the ratio of its noise to the median node's, below 0.7. Empty if the
        other updates do not look like noise, or if there are fewer than five nodes.
    """
    rms = np.sqrt(np.mean(updates.entries**2, axis=1))
    if len(rms) < _MIN_NODES:
        return {}
    ratios = rms / max(float(np.median(rms)), np.finfo(float).tiny)
    is_low = ratios < _MAX_LOW_NOISE
    if not is_low.any():
        return {}
    if not are_noise(list(updates.entries[~is_low][:MAX_READ])):
        return {}
    rows = np.flatnonzero(is_low).tolist()
    return {updates.nodes[row]: float(ratios[row]) for row in rows}
