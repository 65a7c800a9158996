"""The kinds of faults in a run, and the book in which they are counted.

No fault ends a run, and none weakens its DP: a lost update counts as zero in a mean whose
denominator is fixed before the run.

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

_MESSAGES = 100  # largest number of messages, but for the first of each kind
_LONGEST = 400  # characters of a message


class FaultKind(enum.StrEnum):
    """A kind of fault; its value is its text in reports, and `meaning` its handling."""

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
        return _MEANINGS.get(self, _ABSENT)


_ABSENT = "A client whose update is lost counts as absent in that round."
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
        self._counts: Counter[tuple[int, str]] = Counter()  # by round and kind
        self._first: list[tuple[int, str, str]] = []  # round, kind and message

    def add(self, index: int, kind: str, text: str, times: int = 1) -> bool:
        """Count a fault of the round with this index, from 0, and store its text on one line.

        Returns:
            Whether it is the first of its kind.
        """
        is_first = self.first(kind) is None
        message = f"{self._unit} {index + 1}, {one_line(text, _LONGEST)}"
        self._count(index, str(kind), message, times)
        return is_first

    def _count(
        self, index: int, kind: str, message: str, times: int = 1
    ) -> None:
        """Count a fault; store its message if there is room, or if it is the first of its kind."""
        self._counts[index, kind] += times
        if len(self._first) < _MESSAGES or self.first(kind) is None:
            self._first.append((index, kind, message))

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
        """The first messages, with the number of their round."""
        return [message for _, _, message in self._first]

    def first(self, *kinds: str) -> str | None:
        """The first message about one of these kinds; ``None`` without any."""
        for _, kind, message in self._first:
            if kind in kinds:
                return message
        return None

    def values(self) -> dict[str, Any]:
        """The messages and counts under their names in a record's `Provenance`."""
        return {"faults": tuple(self.messages), "fault_counts": self.counts}

    def state(self) -> NamedArrays:
        """A named array for a checkpoint, from which `restore` continues."""
        return {
            "faults": np.array(
                json.dumps([[*self._counts.items()], self._first])
            )
        }

    def restore(self, state: NamedArrays, rounds: int) -> None:
        """Restore the first ``rounds`` of a `state`; new faults of this book come after them."""
        counts, first = json.loads(str(state["faults"]))
        saved = [tuple(entry) for entry in first]
        new = [entry for entry in self._first if entry not in saved]
        self._counts = Counter()
        for (index, kind), times in counts:
            if index < rounds:
                self._counts[index, kind] = times
        self._first = [entry for entry in saved if entry[0] < rounds]
        for entry in new:
            self._count(*entry)
