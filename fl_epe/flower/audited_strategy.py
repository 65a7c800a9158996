"""The base of a strategy's audits, which replace the strategy and hook it while it runs."""

import abc
import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

from flwr.app import Message
from flwr.serverapp.strategy import Strategy

from fl_epe.flower.watching import Attachment


class AuditedStrategy(Strategy):
    """An audit that replaces a strategy; it has the strategy's attributes besides its own.

    A subclass sets its own attributes before it calls this ``__init__``: attributes that are
    set later are set on the strategy. It has hooks for ``configure_train`` and
    ``aggregate_train``.

    Args:
        strategy: the strategy that is audited.
        failed: a function that gets a text that says what failed, and the error.
    """

    audits_itself = True

    def __init__(
        self, strategy: Strategy, failed: Callable[[str, Exception], None]
    ) -> None:
        self.strategy = strategy
        self._failed = failed
        names = ("configure_train", "aggregate_train")
        note = functools.partial(failed, "the strategy failed")
        self._hooks = Attachment(strategy, self, names, self._rescue, note)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "strategy" not in vars(self):
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )
        return getattr(self.strategy, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the audit if ``__init__`` has set it, else of the strategy."""
        if name in vars(self) or "_hooks" not in vars(self):
            super().__setattr__(name, value)
        else:
            setattr(self.strategy, name, value)

    def __delattr__(self, name: str) -> None:
        """Only attributes of the strategy can be deleted."""
        delattr(self.strategy, name)

    @abc.abstractmethod
    def attach(self) -> Strategy:
        """Hook the strategy's own instance, and return it: its runs are then audited."""

    @contextlib.contextmanager
    def _noting_failure(self, failure: str) -> Iterator[None]:
        """Turn an error in this context into a fault with the text ``failure``, and go on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the run goes on
            self._failed(failure, error)

    def _rescue(self, name: str, error: Exception) -> list[Message]:
        """Note that the hook ``name`` failed. Returns further replies; none here."""
        self._failed(f"{name} goes on without the audit", error)
        return []

    def _start_hooked(
        self, start: Callable[..., Any], *arguments: Any, **named: Any
    ) -> Any:
        """Call the strategy's own ``start`` while its instance is hooked."""
        with self._noting_failure("the strategy cannot be hooked"):
            self.attach()
        try:
            self._hooks.calling.add("start")
            return start(*arguments, **named)
        finally:
            self._hooks.calling.discard("start")
            with self._noting_failure("the strategy keeps the audit's hooks"):
                self._hooks.detach()

    summary: Any = property(operator.attrgetter("strategy.summary"))
    configure_evaluate: Any = property(
        operator.attrgetter("strategy.configure_evaluate")
    )
    aggregate_evaluate: Any = property(
        operator.attrgetter("strategy.aggregate_evaluate")
    )
