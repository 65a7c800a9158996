"""What can go wrong in a run, by kind: a report counts how often each kind happened.

No fault ends a run, and none weakens its DP: what is lost counts as zero in a sum whose
denominator is fixed before the run.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class FaultKind(enum.StrEnum):
    """A kind of fault; its value is what reports say. `meaning` says what was done about it."""

    CLIENT_FAILED = "client failed"
    CLIENT_NOT_FINITE = "client's update not finite"
    CANARY_LOST = "canary's update not finite"
    CANARY_UNUSED = "canary left out by the strategy"
    DOMINANT_UPDATE = "update most of a round"
    NODE_FAILED = "node answered with an error"
    NODE_LEFT = "node left"
    NO_ANSWER = "no answer in time"
    NOT_FINITE = "answer not finite"
    WRONG_SHAPE = "answer of a wrong shape"
    REFUSED = "answer refused"
    TWICE = "answered twice"
    LATE = "answer of another round"
    NOT_SAVED = "checkpoint not written"
    NO_MODEL = "no model released"
    NO_AUDIT = "audit stood back"
    OTHER = "other"

    @classmethod
    def of_error(cls, code: int) -> FaultKind:
        """What Flower's error code in place of an answer means."""
        # A message, a reply or a node is gone, says a SuperLink.
        return cls.NO_ANSWER if code in {3, 4, 5} else cls.NODE_FAILED

    @property
    def meaning(self) -> str:
        """What was done about it, in a sentence."""
        return _MEANINGS.get(self, _ABSENT)


_ABSENT = "Whose update is lost counts as absent in that round."
_MEANINGS = {
    FaultKind.DOMINANT_UPDATE: "It hides all others, but not from a client who can subtract it.",
    FaultKind.NODE_LEFT: "Its clients are absent until they are reached again.",
    FaultKind.TWICE: "The first good answer counts, once.",
    FaultKind.LATE: "It is left out: its round is over.",
    FaultKind.NOT_SAVED: "The run went on; the checkpoint before it was kept.",
    FaultKind.NO_MODEL: "The round counts as a participation of no canary.",
    FaultKind.NO_AUDIT: "The run went on without that part of the audit.",
    FaultKind.OTHER: "See the messages.",
}


class Fault(NamedTuple):
    """Something that went wrong.

    Attributes:
        kind: of the fault.
        text: who, and what.
    """

    kind: FaultKind
    text: str
