"""Hooks on a strategy, the undoing of its failed calls, and observations of its aggregation."""

import contextlib
import copy
import functools
import inspect
import time
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import Strategy

from fl_epe.checks import Vector
from fl_epe.flower.layout import Layout
from fl_epe.flower.replies import entries_of, readable, weights
from fl_epe.flower.round_state import Aggregation, RoundState, Shares
from fl_epe.flower.wrapped import Wrapped
from fl_epe.hooks import stand_in
from fl_epe.noise import NoiseHealth

# The approximate number of entries of a model that are compared.
_ENTRIES = 64
# The error of a mean may be so many times that of one rounding.
_ROUNDINGS = 8
# The largest rounding error of the model, as a share of the noise, with which noise is checked.
_FINEST = 2.0**-12


class Attachment:
    """Replaces functions of one instance of a strategy by those of an audit.

    Any ``start`` of the strategy then runs with the audit, as its calls of these functions on
    ``self`` are hooked. `call` calls the strategy's own functions. An error that is not the
    strategy's own never leaves a hook: the strategy's result is returned, without the audit.

    Args:
        strategy: the strategy.
        audit: the audit, which has a function with the name of each hooked function.
        names: the names of the hooked functions.
        rescue: a function that gets the name and the error of a hook that failed, and returns
            further replies for the strategy, of clients that were not asked.
        note: a function that gets an error of the strategy's own, which is then raised.

    Attributes:
        seconds: the time of the strategy's own functions.
        calling: the names of the strategy's own functions that are being called.
    """

    def __init__(
        self,
        strategy: Strategy,
        audit: object,
        names: Sequence[str],
        rescue: Callable[[str, Exception], list[Any]],
        note: Callable[[Exception], None],
    ) -> None:
        self._strategy = strategy
        self._audit = audit
        self._names = tuple(names)
        self._rescue = rescue
        self._note = note
        self.seconds = 0.0
        self.calling: set[str] = set()
        self._originals: dict[str, Callable[..., Any]] = {}
        self._hooks = contextlib.ExitStack()
        self._results: list[Any] = []
        self._errors: list[Exception] = []

    def attach(self) -> None:
        """Put the hooks in place.

        Raises:
            AttributeError: if attributes cannot be set on the instance (``__slots__``).
        """
        if self._originals:
            return
        originals = {
            name: getattr(self._strategy, name) for name in self._names
        }
        with contextlib.ExitStack() as hooks:
            for name, original in originals.items():
                call = StandIn(self._guarded(name, original), original)
                hooks.enter_context(stand_in(self._strategy, name, call))
            self._hooks = hooks.pop_all()
        self._originals = originals

    def _guarded(
        self, name: str, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            # Iterators are stored as lists, so that they can be read again after an error. Code
            # that could fail must not be called here.
            positional = [
                list(a) if isinstance(a, Iterator) else a for a in arguments
            ]
            named = {
                k: list(a) if isinstance(a, Iterator) else a
                for k, a in named.items()
            }
            self._results = []
            self._errors = []
            try:
                return getattr(self._audit, name)(*positional, **named)
            except Exception as error:
                if error in self._errors:
                    # It is the strategy's own error.
                    self._note(error)
                    raise
                late_replies = self._rescue(name, error)
                if self._results:
                    return self._results[-1]
                if late_replies and "replies" in named:
                    named["replies"] = [*named["replies"], *late_replies]
                elif late_replies:
                    positional[-1] = [*positional[-1], *late_replies]
                return original(*positional, **named)

        return call

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

    def replaced(self, name: str) -> Callable[..., Any] | None:
        """The function of the strategy's type, if the function of that name is being called.

        In that case, the instance's function is a replacement that calls the audit.
        """
        if name not in self.calling:
            return None
        return functools.partial(
            getattr(type(self._strategy), name), self._strategy
        )


class StandIn:
    """Calls one function in place of another; its copies and pickles are the other function."""

    def __init__(
        self, call: Callable[..., Any], original: Callable[..., Any]
    ) -> None:
        self._call = call
        self._original = original

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function that stands in."""
        return self._call(*arguments, **named)

    def __reduce__(self) -> tuple[Any, ...]:
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
        of_kwargs = (value for value in values if isinstance(value, dict))
        return dict(ChainMap(bound.arguments, *of_kwargs))
    return {}


def base_arguments(strategy: Strategy) -> dict[str, Any]:
    """The arguments of Flower's own ``start`` that runs for a strategy; empty without one.

    A ``start`` of the strategy's own may get them in any form before it passes them on. They
    are read from the stack, as a hook on Flower's class would change it for all strategies.
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
        memo: dict[int, Any] = {
            id(strategy): strategy for strategy in strategies
        }
        self._saved = list[tuple[dict[str, Any], dict[str, tuple[Any, Any]]]]()
        for strategy in strategies:
            if hasattr(strategy, "__dict__"):
                attributes = vars(strategy)
                copies = {
                    name: (value, _copied(value, depth, memo))
                    for name, value in attributes.items()
                }
                self._saved.append((attributes, copies))
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
        for attributes, copies in self._saved:
            for name in attributes.keys() - copies.keys():
                del attributes[name]
            for name, (value, saved) in copies.items():
                attributes[name] = _restored(value, saved)


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


def shares_of(
    aggregation: Aggregation,
    key: str,
    layout: Layout,
    preferred: str,
    used: Collection[int] | None = None,
) -> tuple[str, Shares] | None:
    """The way in which replies were averaged, and their shares; ``None`` if they were not.

    The way is "weighted" by the metric ``key``, or "equal". Some entries of the average are
    compared, up to rounding.

    Args:
        aggregation: the replies and the aggregated arrays.
        key: the name of the metric.
        layout: the layout of the model.
        preferred: the preferred name of arrays, see `model_record`.
        used: the replies that the strategy is known to have used, with keys as in `Shares`.
    """
    replies = aggregation.replies
    if not replies or not aggregation.arrays:
        return None
    step = max(1, layout.dim // _ENTRIES)
    average = layout.flatten(aggregation.arrays, step).astype(np.float64)
    models = entries_of(replies, layout, preferred, step, len(average))
    is_readable = np.isfinite(models).all(axis=1)
    largest = np.abs(models[is_readable]).max(axis=0, initial=0.0)
    magnitude = np.maximum(largest, np.abs(average))
    error = _ROUNDINGS * aggregation.eps * np.sqrt(len(models)) * magnitude
    contents = [id(reply.content) for reply in replies]
    is_used = np.array(
        [used is None or content in used for content in contents]
    )
    counts = is_readable & is_used
    ways = {"weighted": weights(replies, key), "equal": [1.0] * len(contents)}
    for way, values in ways.items():
        shares = np.where(counts, values, 0.0)
        if shares.sum() > 0:
            shares = shares / shares.sum()
            difference = average - shares[counts] @ models[counts]
            if np.all(np.abs(difference) <= error):
                return way, dict(zip(contents, shares.tolist(), strict=True))
    return None


def averaging_of(
    wrapped: Wrapped, current: RoundState
) -> tuple[str, Shares] | None:
    """The way in which replies were averaged, and their shares; ``None`` if not known."""
    key = wrapped.weighted_by()
    call = current.call
    with contextlib.suppress(
        ValueError, TypeError, ZeroDivisionError, np.linalg.LinAlgError
    ):
        if wrapped.averages:
            # The average is over the replies that were used.
            contents = [id(reply.content) for reply in call.replies]
            used_weights = {
                content: weight
                for content, weight in zip(
                    contents, weights(call.replies, key), strict=True
                )
                if call.used is None or content in call.used
            }
            total = sum(used_weights.values())
            return "weighted", {
                content: weight / total
                for content, weight in used_weights.items()
            }
        if call.innermost is not None and wrapped.plain_layers:
            preferred = wrapped.arrays_key()
            return shares_of(
                call.innermost, key, current.layout, preferred, call.used
            )
    return None


def note_noise(health: NoiseHealth, current: RoundState, theta: Vector) -> None:
    """Add the noise of a round: the model ``theta`` minus the innermost strategy's result."""
    noise_std = current.call.noise_std
    innermost = current.call.innermost
    if not noise_std or innermost is None or not innermost.arrays:
        return
    before = current.layout.flatten(innermost.arrays)
    if innermost.eps * np.abs(before).max() > _FINEST * noise_std:
        health.skip(
            "the noise is hardly larger than the rounding of the model's numbers"
        )
        return
    noise = np.subtract(theta, before, out=before)
    health.add(current.layout.split(noise), noise_std)


@contextlib.contextmanager
def watch_aggregation(strategy: Strategy) -> Iterator[Aggregation]:
    """In this context, observe the aggregation of a strategy that another one wraps."""
    aggregation = Aggregation()
    aggregate = strategy.aggregate_train

    def watched(server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        result = aggregate(server_round, replies)
        # A result of another form is left to the caller.
        with contextlib.suppress(Exception):
            aggregation.replies = readable(replies)
            aggregation.arrays = result[0]
        return result

    with stand_in(strategy, "aggregate_train", StandIn(watched, aggregate)):
        yield aggregation


@contextlib.contextmanager
def real_metrics_only(
    base: Strategy, synthetic: Sequence[Message]
) -> Iterator[set[int]]:
    """In this context, ``base`` aggregates the metrics of all replies but the synthetic ones.

    Yields:
        A set, to which the aggregation adds the ``id`` of the content of each reply.
    """
    aggregate = getattr(base, "train_metrics_aggr_fn", None)
    used: set[int] = set()
    if aggregate is None:
        yield used
        return
    ignored = {id(reply.content) for reply in synthetic}

    def only_real(records: list[RecordDict], key: str) -> Any:
        used.update(id(record) for record in records)
        return aggregate(
            [record for record in records if id(record) not in ignored], key
        )

    with stand_in(base, "train_metrics_aggr_fn", StandIn(only_real, aggregate)):
        yield used
