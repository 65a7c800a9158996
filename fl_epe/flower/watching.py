"""Hooks on a strategy, how a failed call is undone, and what it made of its replies."""

import contextlib
import copy
import functools
import inspect
import time
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import Strategy

from fl_epe.checks import Vector
from fl_epe.flower.layout import Layout
from fl_epe.flower.replies import model_record, readable, weights
from fl_epe.flower.state import Aggregation, RoundState
from fl_epe.flower.wrapped import Wrapped
from fl_epe.hooks import stand_in
from fl_epe.noise import NoiseHealth


class Attachment:
    """Puts functions of the audit in front of a strategy's own, on that one instance.

    So a strategy's own ``start``, whatever it looks like, runs with the audit: what it calls on
    ``self`` is hooked. `call` reaches the strategy's own functions. An error that is not the
    strategy's own never leaves a hook: the strategy's result is returned, without the audit.

    Args:
        strategy: which one.
        audit: has a function of the same name for each of the strategy's that is hooked.
        names: of these functions.
        rescue: told the name and the error when a hook fails; returns more replies for the
            strategy, of clients that were not asked.
        note: told an error of the strategy's own, which goes on to whoever called it.

    Attributes:
        seconds: that the strategy's own functions took.
    """

    def __init__(
        self,
        strategy: Strategy,
        audit: object,
        names: Sequence[str],
        rescue: Callable[[str, Exception], list[Any]],
        note: Callable[[Exception], None],
    ) -> None:
        self._strategy, self._audit, self._names = strategy, audit, tuple(names)
        self._rescue, self._note = rescue, note
        self.seconds = 0.0
        self._calling: set[str] = set()
        self._own: dict[str, Callable[..., Any]] = {}
        self._hooks = contextlib.ExitStack()
        self._results: list[Any] = []
        self._errors: list[Exception] = []

    def attach(self) -> None:
        """Put the hooks in place.

        Raises:
            AttributeError: if the instance takes no attributes (``__slots__``).
        """
        if self._own:
            return
        own = {name: getattr(self._strategy, name) for name in self._names}
        with contextlib.ExitStack() as hooks:
            for name, function in own.items():
                call = StandIn(self._guarded(name, function), function)
                hooks.enter_context(stand_in(self._strategy, name, call))
            self._hooks = hooks.pop_all()
        self._own = own

    def _guarded(self, name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            # What can be read only once is kept; no function of ours here, which could fail.
            given = [list(a) if isinstance(a, Iterator) else a for a in arguments]
            named = {
                k: list(a) if isinstance(a, Iterator) else a for k, a in named.items()
            }
            self._results, self._errors = [], []
            try:
                return getattr(self._audit, name)(*given, **named)
            except Exception as error:
                if error in self._errors:  # the strategy's own
                    self._note(error)
                    raise
                late = self._rescue(name, error)
                if self._results:
                    return self._results[-1]
                if late and "replies" in named:
                    named["replies"] = [*named["replies"], *late]
                elif late:
                    given[-1] = [*given[-1], *late]
                return own(*given, **named)

        return call

    def detach(self) -> None:
        """Leave the strategy as it was."""
        self._hooks.close()
        self._own, self._results, self._errors = {}, [], []

    def call(self, name: str, *arguments: Any) -> Any:
        """The strategy's own function of that name."""
        own = self._own[name] if name in self._own else getattr(self._strategy, name)
        began = time.perf_counter()
        self._calling.add(name)
        try:
            result = own(*arguments)
        except Exception as error:
            self._errors.append(error)
            raise
        finally:
            self._calling.discard(name)
            self.seconds += time.perf_counter() - began
        self._results.append(result)
        return result

    def replaced(self, name: str) -> Callable[..., Any] | None:
        """The function of the strategy's type, if `call` of that name is under way.

        Then the strategy's own function is one that was put in its place, and calls the audit.
        """
        own = functools.partial(getattr(type(self._strategy), name), self._strategy)
        return own if name in self._calling else None


class StandIn:
    """Calls one function in the place of another, as which it is copied and pickled."""

    def __init__(self, call: Callable[..., Any], own: Callable[..., Any]) -> None:
        self._call, self._own = call, own

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """See above."""
        return self._call(*arguments, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self._own,)


def _itself(own: Callable[..., Any]) -> Callable[..., Any]:
    return own


def arguments_of(
    function: Callable[..., Any], given: Sequence[Any], named: Any
) -> dict[str, Any]:
    """The values that arguments have in a call; empty if that cannot be told."""
    with contextlib.suppress(TypeError, ValueError):
        bound = inspect.signature(function).bind(*given, **named)
        bound.apply_defaults()
        more = (
            value for value in bound.arguments.values() if isinstance(value, dict)
        )  # **more
        return dict(ChainMap(bound.arguments, *more))
    return {}


def base_arguments(strategy: Strategy) -> dict[str, Any]:
    """The arguments of Flower's own ``start`` that runs for a strategy; empty if it does not.

    A ``start`` of the strategy's own may take them in any form before it hands them on. They are
    looked up where that call is under way, as the class is not to be changed for everybody.
    """
    code, frame = getattr(Strategy.start, "__code__", None), inspect.currentframe()
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is strategy:
            known = frame.f_locals
            return {
                name: known.get(name)
                for name in ("initial_arrays", "num_rounds", "timeout")
            }
        frame = frame.f_back
    return {}


class Undo:
    """The attributes of strategies and the content of replies, so that a failed call has no trace.

    Replies and their contents stay the same objects, by which they are known.

    Args:
        strategies: whose attributes.
        replies: whose content; the bytes of arrays, which cannot be changed, are not copied.
        deep: whether to copy all that the attributes hold, where that can be copied; else only
            which objects they are, and the entries of lists, dictionaries and sets.
    """

    def __init__(
        self,
        strategies: Sequence[Strategy],
        replies: Sequence[Message] = (),
        *,
        deep: bool,
    ) -> None:
        memo: dict[int, Any] = {id(strategy): strategy for strategy in strategies}
        self._saved = [
            (
                own,
                {
                    name: (value, _copied(value, deep, memo))
                    for name, value in own.items()
                },
            )
            for own in (
                vars(strategy)
                for strategy in strategies
                if hasattr(strategy, "__dict__")
            )
        ]
        self._replies = [
            (reply, reply.content, copy.deepcopy(reply.content))
            for reply in readable(replies)
        ]

    def restore(self) -> None:
        """Bring them back."""
        for reply, content, saved in self._replies:
            reply.content = content
            content.clear()
            content.update(saved)
        for own, values in self._saved:
            for name in own.keys() - values.keys():
                del own[name]
            own.update({name: _brought_back(*pair) for name, pair in values.items()})


def _copied(value: Any, deep: bool, memo: dict[int, Any]) -> Any:
    if isinstance(value, Strategy) or callable(value):
        return value
    if deep:
        with contextlib.suppress(Exception):  # a lock, a file, a generator
            return copy.deepcopy(value, memo)
    return copy.copy(value) if isinstance(value, (list, dict, set)) else value


def _brought_back(value: Any, saved: Any) -> Any:
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


_ENTRIES = 64  # of a model, about, which are compared
_ROUNDINGS = 8  # errors of one rounding that a mean may have
_FINEST = 2.0**-12  # of the noise, to which the model's numbers are rounded

Shares = Mapping[int, float]
"""Share of each reply in what was released, by the ``id`` of its content."""


def shares_of(
    seen: Aggregation,
    key: str,
    layout: Layout,
    preferred: str,
    used: Collection[int] | None = None,
) -> tuple[str, Shares] | None:
    """How the replies were averaged, and the share of each; ``None`` if they were not.

    "weighted" by the metric ``key``, or "equal". Some entries are compared, to within rounding.

    Args:
        seen: the replies, and what was made of them.
        key: of the metric.
        layout: of the model.
        preferred: see `model_record`.
        used: replies that the strategy is known to have used, as in `Shares`.
    """
    if not seen.replies or not seen.arrays:
        return None
    step = max(1, layout.dim // _ENTRIES)
    made = layout.flatten(seen.arrays, step).astype(np.float64)
    given = np.full((len(seen.replies), len(made)), np.nan)
    for row, reply in zip(given, seen.replies, strict=True):
        with contextlib.suppress(ValueError):
            row[:] = model_record(reply, layout, preferred, step)[1]
    known = np.isfinite(given).all(axis=1)
    largest = np.abs(given[known]).max(axis=0, initial=0.0)
    error = (
        _ROUNDINGS * seen.eps * np.sqrt(len(given)) * np.maximum(largest, np.abs(made))
    )
    ids = [id(reply.content) for reply in seen.replies]
    kept = known & np.array([used is None or number in used for number in ids])
    for way, values in {
        "weighted": weights(seen.replies, key),
        "equal": [1.0] * len(ids),
    }.items():
        found = np.where(kept, values, 0.0)
        if found.sum() > 0:
            found = found / found.sum()
            if np.all(np.abs(made - found[kept] @ given[kept]) <= error):
                return way, dict(zip(ids, found.tolist(), strict=True))
    return None


def averaging_of(wrapped: Wrapped, state: RoundState) -> tuple[str, Shares] | None:
    """How the replies were averaged, and their shares; ``None`` if that is not known."""
    key, used = wrapped.weighted_by(), state.used
    with contextlib.suppress(
        ValueError, TypeError, ZeroDivisionError, np.linalg.LinAlgError
    ):
        if wrapped.averages:  # over those that were used
            ids = [id(reply.content) for reply in state.replies]
            given = zip(ids, weights(state.replies, key), strict=True)
            kept = {
                number: weight
                for number, weight in given
                if used is None or number in used
            }
            whole = sum(kept.values())
            return "weighted", {
                number: weight / whole for number, weight in kept.items()
            }
        if state.seen is not None and wrapped.plain_layers:
            return shares_of(state.seen, key, state.layout, wrapped.arrays_key(), used)
    return None


def note_noise(health: NoiseHealth, state: RoundState, theta: Vector) -> None:
    """Take in the noise of a round: the model ``theta`` less what the strategy inside had made."""
    seen = state.seen
    if not state.noise_std or seen is None or not seen.arrays:
        return
    before = state.layout.flatten(seen.arrays)
    if seen.eps * np.abs(before).max() > _FINEST * state.noise_std:
        health.skip(
            "the noise is hardly larger than the rounding of the model's numbers"
        )
        return
    noise = np.subtract(theta, before, out=before)
    health.add(state.layout.split(noise), state.noise_std)


@contextlib.contextmanager
def watch_aggregation(strategy: Strategy) -> Iterator[Aggregation]:
    """While this lasts, note what ``strategy`` is given by one that wraps it, and what it makes."""
    seen, aggregate = Aggregation(), strategy.aggregate_train

    def watched(server_round: int, replies: Iterable[Message]) -> Any:
        given = list(replies)
        result = aggregate(server_round, given)
        with contextlib.suppress(Exception):  # whatever it returns is for who called it
            seen.replies, seen.arrays = readable(given), result[0]
        return result

    with stand_in(strategy, "aggregate_train", StandIn(watched, aggregate)):
        yield seen


@contextlib.contextmanager
def real_metrics_only(
    base: Strategy, synthetic: Sequence[Message]
) -> Iterator[set[int]]:
    """While this lasts, ``base`` aggregates the metrics of all replies but those ``synthetic``.

    Yields:
        The ``id`` of the content of each reply whose metrics it aggregated, once it has.
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
