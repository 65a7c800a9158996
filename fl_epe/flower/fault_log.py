"""`FaultLog`: the faults of an audited run, for its report; each failure is logged once."""

import logging

from fl_epe.archive import error_text, one_line
from fl_epe.auditing import FaultBook, FaultKind

# A child of Flower's logger, so that its messages are shown with Flower's own.
logger = logging.getLogger("flwr.fl_epe")
# The kinds of faults for `FaultLog.report_failure`.
_FAILURES = (
    FaultKind.AUDIT_STOOD_BACK,
    FaultKind.CANARY_UNUSED,
    FaultKind.CHECKPOINT_NOT_WRITTEN,
)


def described(reason: Exception | str) -> str:
    """An error's type and text, or a sentence, on one line."""
    return one_line(reason if isinstance(reason, str) else error_text(reason))


class FaultLog:
    """The faults of a run.

    Attributes:
        book: all faults, counted by round and kind.
    """

    def __init__(self) -> None:
        self.book = FaultBook()
        self._logged: set[str] = set()

    @property
    def first_failure(self) -> str | None:
        """The first failure of the audit, with its reason; ``None`` without one."""
        return self.book.first(*_FAILURES)

    def is_new(self, text: str) -> bool:
        """Note a text as logged, and return whether it was not logged before."""
        if text in self._logged:
            return False
        self._logged.add(text)
        return True

    def report_failure(
        self,
        index: int,
        failure: str,
        reason: Exception | str,
        kind: FaultKind = FaultKind.AUDIT_STOOD_BACK,
        times: int = 1,
    ) -> None:
        """Add a failure of the audit; the first with this text is also logged.

        This raises no error, as that would end the run.

        Args:
            index: the index of the round, from 0.
            failure: a text that says what failed; each text is logged once.
            reason: an error, or a sentence.
            kind: the kind by which the fault is counted.
            times: the number of times that it happened.
        """
        text = f"{failure}: {described(reason)}"
        self.book.add(index, kind, text, times)
        if not self.is_new(failure):
            return
        try:
            logger.warning("Audit, round %d, %s", index + 1, text)
            logger.debug(
                "Where it happened",
                exc_info=reason if isinstance(reason, Exception) else None,
            )
        except Exception as error:  # noqa: BLE001 - a user's log handler may raise any error
            text = f"{text}; it could not be logged: {described(error)}"
            self.book.add(index, kind, text)

    def report_fault(
        self, index: int, kind: FaultKind, text: str, intro: str = ""
    ) -> None:
        """Add a fault of a node, and log it.

        Args:
            index: the index of the round, from 0.
            kind: the kind by which the fault is counted.
            text: the text of the fault.
            intro: the beginning of the log message, before the text.
        """
        self.book.add(index, kind, text)
        logger.warning("Audit, round %d, %s%s", index + 1, intro, text)
