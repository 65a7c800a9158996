"""The kinds of faults in a run, and `FaultBook`, in which they are counted.

No fault ends a run. A lost update does not weaken the DP of `fl_epe.simulation`: it counts as zero
in the mean, whose denominator is fixed before the run.

Examples:
    >>> faults = FaultBook()
    >>> faults.add(0, FaultKind.NO_ANSWER, "node 3: no answer in time")
    True
    >>> faults.counts, faults.messages
    ({'no answer in time': 1}, ['round 1, node 3: no answer in time'])
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from fl_epe.archive import one_line
from fl_epe.checks import NamedArrays

# Largest number of messages, beyond which only the first message of each kind is stored.
_MAX_MESSAGES = 100

_MAX_LENGTH = 400  # largest number of characters of a message


class FaultKind(enum.StrEnum):
    """A kind of fault; its value is its name in reports and records."""

    CLIENT_FAILED = "client failed"
    CLIENT_NOT_FINITE = "client's update not finite"
    CANARY_NOT_FINITE = "canary's update not finite"
    CANARY_UNUSED = "canary left out by the strategy"
    DOMINANT_UPDATE = "update most of a round"
    NODE_FAILED = "node answered with an error"
    NODE_LEFT = "node left"
    NO_ANSWER = "no answer in time"
    ANSWER_NOT_FINITE = "answer not finite"
    ANSWER_OF_WRONG_SHAPE = "answer of a wrong shape"
    ANSWER_REFUSED = "answer refused"
    ANSWERED_TWICE = "answered twice"
    ANSWER_OF_ANOTHER_ROUND = "answer of another round"
    LOSS_NOT_FINITE = "loss of a training not finite"
    CHECKPOINT_NOT_WRITTEN = "checkpoint not written"
    ROUNDS_REPEATED = "rounds repeated from an earlier model"
    NO_MODEL_RELEASED = "no model released"
    NOISE_NOT_PROMISED = "client's noise not as promised"
    NOISE_UNLIKE_OTHERS = "client's noise unlike that of others"
    AUDIT_STOOD_BACK = "audit stood back"
    METRICS_RENAMED = "clients' metrics renamed"

    @property
    def meaning(self) -> str:
        """The meaning of the fault, and how it was handled, in a sentence."""
        return _MEANINGS.get(self, _LOST_UPDATE)


_LOST_UPDATE = "A client whose update is lost counts as absent in that round."
_MEANINGS = {
    FaultKind.DOMINANT_UPDATE: "One client's update has most of the round's energy.",
    FaultKind.NODE_LEFT: "Its clients are absent until they are reached again.",
    FaultKind.ANSWERED_TWICE: "The first good answer counts, once.",
    FaultKind.ANSWER_OF_ANOTHER_ROUND: "It is left out: its round is over.",
    FaultKind.LOSS_NOT_FINITE: "The client's update was used as it was.",
    FaultKind.CHECKPOINT_NOT_WRITTEN: "The run went on; the checkpoint before it was kept.",
    FaultKind.ROUNDS_REPEATED: "What clients were sent in the forgotten rounds is not measured.",
    FaultKind.NO_MODEL_RELEASED: "The round counts as a participation of no canary.",
    FaultKind.NOISE_NOT_PROMISED: "Its reply was used as it was.",
    FaultKind.NOISE_UNLIKE_OTHERS: "Its reply was used as it was; no noise was promised.",
    FaultKind.AUDIT_STOOD_BACK: "The run went on without that part of the audit.",
    FaultKind.METRICS_RENAMED: "Their names were those of the audit's own metrics.",
}


class Fault(NamedTuple):
    """A fault of a run.

    Attributes:
        kind: the kind of the fault.
        text: who failed, and how.
    """

    kind: FaultKind
    text: str


class FaultBook:
    """The number of faults of each kind in a run, and the first messages.

    A hundred messages are kept; after them only the first of each kind is added.

    Args:
        unit: the name of a round in messages.
    """

    def __init__(self, unit: str = "round") -> None:
        self._unit = unit
        self._counts: Counter[tuple[int, str]] = Counter()  # of (round, kind)
        # (round, kind, message)
        self._messages: list[tuple[int, str, str]] = []

    def add(self, index: int, kind: str, text: str, times: int = 1) -> bool:
        """Count a fault, and store its message.

        Args:
            index: the index of the fault's round, from 0.
            kind: the kind of the fault.
            text: who failed, and how; it is put on one line.
            times: the number of times that it happened.

        Returns:
            Whether it is the first fault of its kind.
        """
        message = f"{self._unit} {index + 1}, {one_line(text, _MAX_LENGTH)}"
        return self._count(index, str(kind), message, times)

    def _count(
        self, index: int, kind: str, message: str, times: int = 1
    ) -> bool:
        """Count a fault with this message; returns whether it is the first of its kind."""
        self._counts[index, kind] += times
        is_first = self.first(kind) is None
        if is_first or len(self._messages) < _MAX_MESSAGES:
            self._messages.append((index, kind, message))
        return is_first

    @property
    def counts(self) -> dict[str, int]:
        """The number of faults of each kind."""
        counts = Counter[str]()
        for (_, kind), times in self._counts.items():
            counts[kind] += times
        return dict(counts)

    @property
    def total(self) -> int:
        """The number of all faults."""
        return self._counts.total()

    @property
    def messages(self) -> list[str]:
        """The stored messages, each with the number of its round, from 1."""
        return [message for _, _, message in self._messages]

    def first(self, *kinds: str) -> str | None:
        """The first message about a fault of one of these kinds; ``None`` without any."""
        for _, kind, message in self._messages:
            if kind in kinds:
                return message
        return None

    def values(self) -> dict[str, Any]:
        """The messages and counts, as fields of a record's `Provenance`."""
        return {"faults": tuple(self.messages), "fault_counts": self.counts}

    def state(self) -> NamedArrays:
        """A named array for a checkpoint, from which `restore` continues."""
        return {
            "faults": np.array(
                json.dumps([[*self._counts.items()], self._messages])
            )
        }

    def restore(self, state: NamedArrays, rounds: int) -> None:
        """Restore the faults of a `state` in its first ``rounds`` rounds.

        The faults whose messages this book holds come after them, each counted once. They are left
        out if the state has the same message.
        """
        counts, messages = json.loads(str(state["faults"]))
        saved = [tuple(entry) for entry in messages]
        new = [entry for entry in self._messages if entry not in saved]
        self._counts = Counter()
        for (index, kind), times in counts:
            if index < rounds:
                self._counts[index, kind] = times
        self._messages = [entry for entry in saved if entry[0] < rounds]
        for entry in new:
            self._count(*entry)
