"""The base of audits that wrap a strategy, and the hooks that they set on its instance."""

import abc
import contextlib
import inspect
import operator
import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_epe.hooks import stand_in

_HOOKED = ("configure_train", "aggregate_train")


class AuditedStrategy(Strategy):
    """An audit that wraps a strategy; attributes that it does not have are the strategy's.

    `start` calls the strategy's own ``start`` with the audit's hooks on that instance, so that a
    strategy's own loop is audited too. `attach` sets the hooks for any other caller.

    A subclass sets its own attributes before it calls this ``__init__``: attributes that are
    set later are set on the strategy.

    Args:
        strategy: the strategy that is audited.
        report_failure: a function that gets a text that says what failed, and the error.
        is_enabled: whether the strategy is audited.
    """

    # `Wrapped` refuses a strategy that has this attribute, as it would be audited twice.
    audits_itself = True

    def __init__(
        self,
        strategy: Strategy,
        report_failure: Callable[[str, Exception], None],
        *,
        is_enabled: bool,
    ) -> None:
        self.strategy = strategy
        self._report_failure = report_failure
        self._is_enabled = is_enabled
        self._hooks = Attachment(strategy, self, self._rescue, report_failure)

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

    def start(self, *arguments: Any, **named: Any) -> Any:
        """Call the strategy's own ``start``, with its arguments and its result, and audit it."""
        if "start" in self._hooks.calling:
            # A user has replaced the instance's ``start`` by a function that calls this one.
            return type(self.strategy).start(self.strategy, *arguments, **named)
        if self._is_enabled:
            return self._start_audited(*arguments, **named)
        return self.strategy.start(*arguments, **named)

    def attach(self) -> Strategy:
        """Hook the strategy's own instance, and return it: its runs are then audited.

        Raises:
            AttributeError: if attributes cannot be set on the instance.
        """
        if self._is_enabled:
            self._hooks.attach()
        return self.strategy

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Any:
        """The strategy's messages, with the audit."""
        return self._hooks.run(
            self._configure_audited,
            "configure_train",
            server_round,
            arrays,
            config,
            grid,
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> Any:
        """The strategy's aggregate of the replies, with the audit."""
        return self._hooks.run(
            self._aggregate_audited,
            "aggregate_train",
            server_round,
            list(replies),
        )

    @abc.abstractmethod
    def _start_audited(self, *arguments: Any, **named: Any) -> Any:
        """Call `_start_hooked`, before and after which the audit does its own work."""

    @abc.abstractmethod
    def _configure_audited(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Any:
        """See `configure_train`."""

    @abc.abstractmethod
    def _aggregate_audited(
        self, server_round: int, replies: list[Message]
    ) -> Any:
        """See `aggregate_train`."""

    def _start_hooked(self, *arguments: Any, **named: Any) -> Any:
        """Call the strategy's own ``start`` while its instance is hooked."""
        with self._noting_failure("the strategy cannot be hooked"):
            self.attach()
        try:
            self._hooks.calling.add("start")
            return self.strategy.start(*arguments, **named)
        finally:
            self._hooks.calling.discard("start")
            with self._noting_failure("the strategy keeps the audit's hooks"):
                self._hooks.detach()

    @contextlib.contextmanager
    def _noting_failure(self, failure: str) -> Iterator[None]:
        """Turn an error in this context into a fault with the text ``failure``, and go on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the run goes on
            self._report_failure(failure, error)

    def _rescue(self, name: str, error: Exception) -> list[Message]:
        """Report that the audit's function ``name`` failed.

        Returns:
            Further replies for the strategy. There are none here, but a subclass may have some.
        """
        self._report_failure(f"{name} goes on without the audit", error)
        return []

    summary: Any = property(operator.attrgetter("strategy.summary"))
    configure_evaluate: Any = property(
        operator.attrgetter("strategy.configure_evaluate")
    )
    aggregate_evaluate: Any = property(
        operator.attrgetter("strategy.aggregate_evaluate")
    )


class Attachment:
    """Replaces ``configure_train`` and ``aggregate_train`` of a strategy's instance by an audit's.

    Any ``start`` of the strategy then runs with the audit, as its calls of these functions on
    ``self`` are hooked. `call` calls the strategy's own functions. An error that is not the
    strategy's own never leaves a hook: the strategy's result is returned, without the audit.

    Args:
        strategy: the strategy.
        audit: the audit, which has functions with the same names.
        rescue: a function that gets the name and the error of an audit's function that failed,
            and returns further replies for the strategy, of clients that it asks only then.
        report_failure: a function that gets a text and an error of the strategy's own, which is
            then raised.

    Attributes:
        seconds: the time of the strategy's own functions.
        calling: the names of the strategy's own functions that are being called.
    """

    def __init__(
        self,
        strategy: Strategy,
        audit: object,
        rescue: Callable[[str, Exception], list[Any]],
        report_failure: Callable[[str, Exception], None],
    ) -> None:
        self._strategy = strategy
        self._audit = audit
        self._rescue = rescue
        self._report_failure = report_failure
        self.seconds = 0.0
        self.calling: set[str] = set()
        self._originals: dict[str, Callable[..., Any]] = {}
        self._hooks = contextlib.ExitStack()
        # The results and the errors of the strategy's function in the last call of a hook.
        self._results: list[Any] = []
        self._errors: list[Exception] = []

    def attach(self) -> None:
        """Put the hooks in place.

        Raises:
            AttributeError: if attributes cannot be set on the instance.
        """
        if self._originals:
            return
        originals = {name: getattr(self._strategy, name) for name in _HOOKED}
        with contextlib.ExitStack() as hooks:
            for name, original in originals.items():
                hook = Hook(self._audited_or_original(name, original), original)
                hooks.enter_context(stand_in(self._strategy, name, hook))
            self._hooks = hooks.pop_all()
        self._originals = originals

    def _audited_or_original(
        self, name: str, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """The audit's function; if it fails, the strategy's own result is returned instead."""

        def audited_or_original(*arguments: Any, **named: Any) -> Any:
            # Iterators are stored as lists, so that they can be read again after an error. Only
            # such an iterator can raise an error here, which the strategy would get, too.
            positional = [
                list(value) if isinstance(value, Iterator) else value
                for value in arguments
            ]
            named = {
                key: list(value) if isinstance(value, Iterator) else value
                for key, value in named.items()
            }
            self._results = []
            self._errors = []
            try:
                return getattr(self._audit, name)(*positional, **named)
            except Exception as error:
                if error in self._errors:
                    self._report_failure("the strategy failed", error)
                    raise
                late_replies = self._rescue(name, error)
                if self._results:
                    return self._results[-1]
                # Only ``aggregate_train`` has late replies: ``replies`` is its last argument.
                if late_replies and "replies" in named:
                    named["replies"] = [*named["replies"], *late_replies]
                elif late_replies:
                    positional[-1] = [*positional[-1], *late_replies]
                return original(*positional, **named)

        return audited_or_original

    def detach(self) -> None:
        """Remove the hooks from the strategy."""
        self._hooks.close()
        self._originals = {}
        self._results = []
        self._errors = []

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the strategy's own function of that name."""
        if name in self._originals:
            original = self._originals[name]
        else:
            original = getattr(self._strategy, name)
        began = time.perf_counter()
        self.calling.add(name)
        try:
            result = original(*arguments)
        except Exception as error:
            self._errors.append(error)
            raise
        finally:
            self.calling.discard(name)
            self.seconds += time.perf_counter() - began
        self._results.append(result)
        return result

    def run(
        self, audited: Callable[..., Any], name: str, *arguments: Any
    ) -> Any:
        """Call an audit's function, unless the strategy's own function is being called.

        In that case, a user has replaced the instance's function by one that calls the audit in
        turn. The function of the strategy's class is then called.

        Args:
            audited: the audit's function.
            name: the name of the strategy's own function.
            arguments: the arguments of either function.
        """
        if name in self.calling:
            function = getattr(type(self._strategy), name)
            return function(self._strategy, *arguments)
        return audited(*arguments)


class Hook:
    """Calls one function in place of an original; its copies and pickles are the original.

    A strategy that is copied or sent to another process is thus not audited there.
    """

    def __init__(
        self, function: Callable[..., Any], original: Callable[..., Any]
    ) -> None:
        self._function = function
        self._original = original

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function in place of the original."""
        return self._function(*arguments, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle is read by calling a function, here one that returns its argument.
        return _original_function, (self._original,)


def _original_function(original: Callable[..., Any]) -> Callable[..., Any]:
    return original


def arguments_of(
    function: Callable[..., Any], arguments: Sequence[Any], named: Any
) -> dict[str, Any]:
    """The values of all arguments of a call; empty if the call does not fit the function."""
    with contextlib.suppress(TypeError, ValueError):
        bound = inspect.signature(function).bind(*arguments, **named)
        bound.apply_defaults()
        values = bound.arguments.values()
        # A function with ``**kwargs`` gets further arguments in a dictionary.
        of_kwargs = (value for value in values if isinstance(value, dict))
        return dict(ChainMap(bound.arguments, *of_kwargs))
    return {}


def base_arguments(strategy: Strategy) -> dict[str, Any]:
    """The arguments of Flower's own ``start`` that runs for a strategy; empty without one.

    A ``start`` of the strategy's own may have other parameters, so the arguments are taken from
    the frame of Flower's ``start`` that it calls. A hook on Flower's class would affect all
    strategies.
    """
    code = getattr(Strategy.start, "__code__", None)
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is strategy:
            values = frame.f_locals
            names = ("initial_arrays", "num_rounds", "timeout")
            return {name: values.get(name) for name in names}
        frame = frame.f_back
    return {}
