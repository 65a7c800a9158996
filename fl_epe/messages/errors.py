"""What kind of fault an error reply is."""

from flwr.app import Error
from flwr.common.constant import ErrorCode

from fl_epe.auditing import FaultKind

_NODE_IS_GONE = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)


def error_kind(error: Error) -> FaultKind:
    """The fault of a node that raised an error, or of one that a SuperLink says is gone."""
    if error.code in _NODE_IS_GONE:
        return FaultKind.NO_ANSWER
    return FaultKind.NODE_FAILED
