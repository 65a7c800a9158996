"""`Undo`: copies strategies and replies, so that a failed call of a strategy can be undone."""

import contextlib
import copy
from collections.abc import Sequence
from typing import Any, Literal

from flwr.app import Message
from flwr.serverapp.strategy import Strategy

from fl_epe.flower.replies import readable

Depth = Literal["deep", "shallow"]
"""The depth of copies of attributes: all, or the entries of lists, dictionaries and sets."""


class Undo:
    """Copies strategies' attributes and replies' content, so that a failed call can be undone.

    Replies and their contents stay the same objects, by which they are identified.

    Args:
        strategies: the strategies.
        replies: the replies; the bytes of arrays, which are immutable, are not copied.
        depth: "deep" for deep copies of the attributes that can be copied; "shallow" for the
            attributes themselves, and the entries of lists, dictionaries and sets.
    """

    def __init__(
        self,
        strategies: Sequence[Strategy],
        replies: Sequence[Message] = (),
        *,
        depth: Depth,
    ) -> None:
        # Attributes that refer to a strategy still do so in a deep copy.
        memo: dict[int, Any] = {
            id(strategy): strategy for strategy in strategies
        }
        self._attributes = [vars(strategy) for strategy in strategies]
        self._values = [dict(attributes) for attributes in self._attributes]
        self._copies = [
            {
                name: _copied(value, depth, memo)
                for name, value in attributes.items()
            }
            for attributes in self._attributes
        ]
        self._replies = [
            (reply, reply.content, copy.deepcopy(reply.content))
            for reply in readable(replies)
        ]

    def restore(self) -> None:
        """Restore the attributes and the content."""
        for reply, content, saved in self._replies:
            reply.content = content
            content.clear()
            content.update(saved)
        for attributes, values, copies in zip(
            self._attributes, self._values, self._copies, strict=True
        ):
            attributes.clear()
            for name, value in values.items():
                attributes[name] = _restored(value, copies[name])


def _copied(value: Any, depth: Depth, memo: dict[int, Any]) -> Any:
    if isinstance(value, Strategy) or callable(value):
        return value
    if depth == "deep":
        # Locks, files and generators, for example, cannot be copied.
        with contextlib.suppress(Exception):
            return copy.deepcopy(value, memo)
    if isinstance(value, (list, dict, set)):
        return copy.copy(value)
    return value


def _restored(value: Any, saved: Any) -> Any:
    """The same list, dictionary or set with its old entries; else the saved object."""
    if value is saved:
        return value
    if isinstance(value, list):
        value[:] = saved
    elif isinstance(value, (dict, set)):
        value.clear()
        value.update(saved)
    else:
        return saved
    return value
