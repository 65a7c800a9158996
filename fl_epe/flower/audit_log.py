"""What an audit keeps of a run besides its scores: who answered, and what went wrong."""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import Message

from fl_epe.archive import one_line
from fl_epe.auditing import FaultKind
from fl_epe.flower.rounds import RoundState

logger = logging.getLogger("flwr.fl_epe")  # shown where Flower's own messages are
_FAULTS_KEPT = 100


class AuditLog:
    """Counts the clients' answers, keeps the first hundred faults and warns once of each kind.

    Args:
        identity: what stays the same about a client, from its node id; the node id by default.

    Attributes:
        entries: what went wrong, with the index of the round.
        first_failure: the first part of the audit that could not be done, and why.
        heaviest: largest shares of a real client and of a canary in what was released, by round;
            NaN if not known.
    """

    def __init__(self, identity: Callable[[int], int] | None = None) -> None:
        self._identity = identity or int
        self.entries: list[tuple[int, str]] = []
        self.first_failure: str | None = None
        self.heaviest: dict[int, tuple[float, float]] = {}
        self._counts: Counter[tuple[int, str]] = Counter()  # by round and kind
        self._answered: dict[int, list[int]] = {}  # clients by round
        self._warned: set[str] = set()

    def note(self, state: RoundState, replies: Sequence[Message]) -> None:
        """Count the real replies of a round; errors and missing replies are faults."""
        # A SuperLink answers in the name of a node that died, under its own id.
        asked = {m.metadata.message_id: m.metadata.dst_node_id for m in state.sent}
        answered, heard = set(), set[str]()
        for reply in replies:
            about = reply.metadata.reply_to_message_id
            node = asked.get(about, reply.metadata.src_node_id)
            if about and about in heard:
                self.fault(state.index, f"node {node}: it answered twice", FaultKind.TWICE)
            heard.add(about)
            if reply.has_error():
                kind = FaultKind.of_error(reply.error.code)
                self.fault(state.index, f"node {node}: {reply.error.reason}", kind)
            else:
                answered.add(self._identity(node))
        self._answered.setdefault(state.index, []).extend(sorted(answered))
        silent = len(state.sent) - len(replies)
        if silent > 0:
            text = f"{silent} of {len(state.sent)} clients did not answer"
            self.fault(state.index, text, FaultKind.NO_ANSWER, silent)

    def fault(
        self, index: int, text: str, kind: FaultKind = FaultKind.OTHER, times: int = 1
    ) -> None:
        """Keep a message about the round with this index, and count it by its kind."""
        self._counts[index, str(kind)] += times
        if len(self.entries) < _FAULTS_KEPT:
            self.entries.append((index, f"round {index + 1}, {one_line(text, 400)}"))

    @property
    def faults(self) -> list[str]:
        """What went wrong, in sentences."""
        return [text for _, text in self.entries]

    @property
    def fault_counts(self) -> dict[str, int]:
        """How often each kind of fault happened."""
        total: Counter[str] = Counter()
        for (_, kind), count in self._counts.items():
            total[kind] += count
        return dict(total)

    def failed(
        self,
        index: int,
        what: str,
        why: Exception | str,
        kind: FaultKind = FaultKind.NO_AUDIT,
        times: int = 1,
    ) -> None:
        """Keep what could not be done and why; the first of its kind is also logged.

        Args:
            index: of the round, from 0.
            what: could not be done; its words are the kind.
            why: an error, or a sentence.
            kind: by which it is counted.
            times: how often.
        """
        reason = one_line(why if isinstance(why, str) else f"{type(why).__name__}: {why}")
        self.fault(index, f"{what}: {reason}", kind, times)
        self.first_failure = self.first_failure or f"round {index + 1}, {what}: {reason}"
        if what not in self._warned:
            self._warned.add(what)
            trace = why if isinstance(why, Exception) else None
            logger.warning("Audit, round %d, %s: %s", index + 1, what, reason)
            logger.debug("Where it happened", exc_info=trace)

    def participations(self) -> float | None:
        """How many rounds a client answered in, on average; ``None`` if nobody did."""
        counts = Counter(client for clients in self._answered.values() for client in clients)
        return statistics.fmean(counts.values()) if counts else None

    def state(self) -> dict[str, Any]:
        """Everything but the warnings given, as JSON values."""
        return {
            "faults": self.entries,
            "counts": [[*key, count] for key, count in self._counts.items()],
            "first_failure": self.first_failure,
            "heaviest": list(self.heaviest.items()),
            "answered": list(self._answered.items()),
        }

    def restore(self, state: Mapping[str, Any], rounds: int) -> None:
        """Put the first ``rounds`` rounds in what `state` returned before what is kept here."""
        for index, kind, count in state["counts"]:
            if index < rounds:
                self._counts[index, kind] += count
        kept = [(index, text) for index, text in state["faults"] if index < rounds]
        new = [entry for entry in self.entries if entry not in kept]
        self.entries = [*kept, *new][:_FAULTS_KEPT]
        if state["first_failure"] in self.faults:  # and not in a round that is forgotten
            self.first_failure = state["first_failure"]
        self.heaviest |= {index: tuple(m) for index, m in state["heaviest"] if index < rounds}
        self._answered = {index: ids for index, ids in state["answered"] if index < rounds}
