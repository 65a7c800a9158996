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
            for name in attributes.keys() - values.keys():
                del attributes[name]
            for name, value in values.items():
                saved = copies[name]
                attributes[name] = saved
                is_collection = isinstance(value, (list, dict, set))
                if value is saved or not is_collection:
                    continue
                # Others may refer to the collection, which therefore stays the same object, with
                # its old entries. If its class refuses them, the copy stands in its place.
                with contextlib.suppress(Exception):
                    value.clear()
                    if isinstance(value, list):
                        value.extend(saved)
                    else:
                        value.update(saved)
                    attributes[name] = value


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
