"""An audit's hooks on a strategy's own instance, and how a failed call is undone."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flwr.serverapp.strategy import Strategy

HOOKED = ("configure_train", "aggregate_train")


class Attachment:
    """Puts functions of the audit in front of a strategy's own, on that one instance.

    So a strategy's own ``start``, whatever it looks like, runs with the audit: what it calls on
    ``self`` is hooked. `call` reaches the strategy's own functions. An error that is not the
    strategy's own never leaves a hook: the strategy's result is returned, without the audit.

    Args:
        strategy: which one.
        hooks: functions of the audit by the names of the strategy's.
        rescue: told the name and the error when a hook fails; returns more replies for the
            strategy, of clients that were not asked.
    """

    def __init__(
        self,
        strategy: Strategy,
        hooks: Mapping[str, Callable[..., Any]],
        rescue: Callable[[str, Exception], list[Any]],
    ) -> None:
        self._strategy = strategy
        self._hooks, self._rescue = dict(hooks), rescue
        self._own: dict[str, Callable[..., Any]] = {}
        self._shadowed: dict[str, Any] = {}
        self._results: list[Any] = []
        self._error: Exception | None = None

    def attach(self) -> None:
        """Put the hooks in place.

        Raises:
            AttributeError: if the instance takes no attributes (``__slots__``).
        """
        if self._own:
            return
        own = {name: getattr(self._strategy, name) for name in self._hooks}
        mine = vars(self._strategy)
        self._shadowed = {name: mine[name] for name in self._hooks if name in mine}
        for name, hook in self._hooks.items():
            setattr(self._strategy, name, self._guarded(name, hook, own[name]))
        self._own = own

    def _guarded(
        self, name: str, hook: Callable[..., Any], own: Callable[..., Any]
    ) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            given = [list(a) if isinstance(a, Iterator) else a for a in arguments]
            self._results, self._error = [], None
            try:
                return hook(*given)
            except Exception as error:
                if error is self._error:  # the strategy's own
                    raise
                late = self._rescue(name, error)
                if self._results:
                    return self._results[-1]
                return own(*given[:-1], [*given[-1], *late]) if late else own(*given)

        return call

    def detach(self) -> None:
        """Leave the strategy as it was."""
        for name in self._own:
            if name in self._shadowed:
                setattr(self._strategy, name, self._shadowed[name])
            else:
                delattr(self._strategy, name)
        self._own, self._shadowed = {}, {}

    def call(self, name: str, *arguments: Any) -> Any:
        """The strategy's own function of that name."""
        own = self._own[name] if name in self._own else getattr(self._strategy, name)
        try:
            result = own(*arguments)
        except Exception as error:
            self._error = error
            raise
        self._results.append(result)
        return result


def argument(function: Callable[..., Any], name: str, given: Sequence[Any], named: Any) -> Any:
    """The value that an argument has in a call; ``None`` if it has none, or cannot be told."""
    with contextlib.suppress(TypeError, ValueError):
        bound = inspect.signature(function).bind(*given, **named)
        bound.apply_defaults()
        values = dict(bound.arguments)
        for value in bound.arguments.values():
            if isinstance(value, dict) and name not in values:  # **more
                values.update(value)
        return values.get(name)
    return None


class Undo:
    """The attributes of strategies, so that a call that failed leaves no trace.

    Attributes that are bound anew, and entries of lists, dictionaries and sets, are brought back;
    what is inside other objects is not looked at.

    Args:
        strategies: whose attributes.
    """

    def __init__(self, strategies: Sequence[Strategy]) -> None:
        self._saved = [
            (strategy, {name: (value, _entries(value)) for name, value in vars(strategy).items()})
            for strategy in strategies
            if hasattr(strategy, "__dict__")
        ]

    def restore(self) -> None:
        """Bring them back."""
        for strategy, saved in self._saved:
            for name in vars(strategy).keys() - saved.keys():
                delattr(strategy, name)
            for name, (value, entries) in saved.items():
                vars(strategy)[name] = value
                _bring_back(value, entries)


def _entries(value: object) -> Any:
    return copy.copy(value) if isinstance(value, (list, dict, set)) else None


def _bring_back(value: Any, entries: Any) -> None:
    if isinstance(value, list):
        value[:] = entries
    elif isinstance(value, (dict, set)):
        value.clear()
        value.update(entries)
