"""Who answered in the rounds of an audit, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from flwr.app import Message

from fl_epe.flower.round_state import RoundState

_FAULTS_KEPT = 100


class AnswerLog:
    """Counts the clients' answers and keeps the first hundred faults.

    Args:
        identity: what stays the same about a client, from its node id; the node id by default.
    """

    def __init__(self, identity: Callable[[int], int] | None = None) -> None:
        self._identity = identity or (lambda node_id: node_id)
        self._answers: Counter[int] = Counter()
        self.faults: list[str] = []

    def note(self, state: RoundState, replies: Sequence[Message]) -> None:
        """Count the real replies of a round; errors and missing replies are faults."""
        # A SuperLink answers in the name of a node that died, under its own id.
        asked = {m.metadata.message_id: m.metadata.dst_node_id for m in state.sent}
        for reply in replies:
            node = asked.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            if reply.has_error():
                self.fault(state, f"node {node}: {reply.error.reason}")
            else:
                self._answers[self._identity(node)] += 1
        silent = len(state.sent) - len(replies)
        if silent > 0:
            self.fault(state, f"{silent} of {len(state.sent)} clients did not answer")

    def fault(self, state: RoundState, text: str) -> None:
        """Keep a message about a round."""
        if len(self.faults) < _FAULTS_KEPT:
            self.faults.append(f"round {state.index + 1}, {text}")

    def participations(self) -> float | None:
        """How many rounds a client answered in, on average; ``None`` if nobody did."""
        counts = list(self._answers.values())
        return float(np.mean(counts)) if counts else None
