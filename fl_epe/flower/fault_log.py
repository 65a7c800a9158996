"""`FaultLog`: what went wrong in an audited run, kept for its report and logged once a kind."""

import logging

from fl_epe.archive import error_text, one_line
from fl_epe.auditing import FaultBook, FaultKind

logger = logging.getLogger("flwr.fl_epe")  # shown where Flower's own messages are
# What `FaultLog.failed` is told.
_FAILURES = (
    FaultKind.AUDIT_STOOD_BACK,
    FaultKind.CANARY_UNUSED,
    FaultKind.CHECKPOINT_NOT_WRITTEN,
)


def described(why: Exception | str) -> str:
    """An error's type and text, or a sentence, on one line."""
    return one_line(why if isinstance(why, str) else error_text(why))


class FaultLog:
    """The faults of a run.

    Attributes:
        book: all of them, counted by round and kind.
    """

    def __init__(self) -> None:
        self.book = FaultBook()
        self._logged: set[str] = set()

    @property
    def first_failure(self) -> str | None:
        """The first part of the audit that could not be done, and why."""
        return self.book.first(*_FAILURES)

    def is_new(self, what: str) -> bool:
        """Whether a text was not logged before; from now on it counts as logged."""
        if what in self._logged:
            return False
        self._logged.add(what)
        return True

    def failed(
        self,
        index: int,
        what: str,
        why: Exception | str,
        kind: FaultKind = FaultKind.AUDIT_STOOD_BACK,
        times: int = 1,
    ) -> None:
        """Keep what could not be done and why; the first of its kind is also logged.

        This may not end a run.

        Args:
            index: of the round, from 0.
            what: could not be done; its words are the kind.
            why: an error, or a sentence.
            kind: by which it is counted.
            times: how often.
        """
        reason = described(why)
        self.book.add(index, kind, f"{what}: {reason}", times)
        if not self.is_new(what):
            return
        try:
            logger.warning("Audit, round %d, %s: %s", index + 1, what, reason)
            logger.debug(
                "Where it happened",
                exc_info=why if isinstance(why, Exception) else None,
            )
        except Exception as error:  # noqa: BLE001 - of the log itself
            text = f"{what}: {reason}; it could not be logged: {described(error)}"
            self.book.add(index, kind, text)

    def observed(self, index: int, kind: FaultKind, text: str, intro: str = "") -> None:
        """Keep a fault of a node, and log it.

        Args:
            index: of the round, from 0.
            kind: by which it is counted.
            text: of the fault.
            intro: in the log, before the text.
        """
        self.book.add(index, kind, text)
        logger.warning("Audit, round %d, %s%s", index + 1, intro, text)
