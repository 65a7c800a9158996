"""Maps a node's error reply to a kind of fault."""

from flwr.app import Error
from flwr.common.constant import ErrorCode

from fl_epe.auditing import FaultKind

_NODE_IS_GONE = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)


def error_kind(error: Error) -> FaultKind:
    """The kind of fault: the SuperLink reports that the node is gone, or the node failed."""
    if error.code in _NODE_IS_GONE:
        return FaultKind.NO_ANSWER
    return FaultKind.NODE_FAILED
