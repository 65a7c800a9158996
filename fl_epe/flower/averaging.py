"""Whether a strategy averages its replies, found by looking at what it made of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fl_epe.flower.attachment import StandIn
from fl_epe.flower.injection import readable, weights
from fl_epe.message_records import read_only, records_of

_TOLERANCE = {2: 1e-2, 4: 1e-4, 8: 1e-6}  # of the largest entry, by the bytes of a number


@dataclasses.dataclass
class Aggregation:
    """The replies that a strategy was given, and the arrays that it made of them.

    Attributes:
        replies: those without an error.
        arrays: the strategy's result; ``None`` until it is there.
    """

    replies: Sequence[Message] = ()
    arrays: ArrayRecord | None = None

    def averaging(self, key: str) -> str | None:
        """How the replies were averaged: "weighted" by the metric ``key``, "equal", or not.

        One array is compared, the smallest with at least eight entries if there is one.
        """
        if not self.replies or not self.arrays:
            return None
        name = self._array_to_compare()
        made = read_only(self.arrays[name])
        given = np.stack([_array(reply.content, name) for reply in self.replies])
        ways = {"weighted": weights(self.replies, key), "equal": [1.0] * len(self.replies)}
        for way, shares in ways.items():
            if _close(made, np.average(given.astype(np.float64), axis=0, weights=shares)):
                return way
        return None

    def _array_to_compare(self) -> str:
        assert self.arrays is not None  # noqa: S101 - `averaging` looks first
        sizes = {
            name: int(np.prod(array.shape))
            for name, array in self.arrays.items()
            if np.dtype(array.dtype).kind == "f" and len(array.shape) > 0
        }
        enough = {name: size for name, size in sizes.items() if size >= 8}
        return min(enough, key=enough.__getitem__) if enough else max(sizes, key=sizes.__getitem__)


def _array(content: RecordDict, name: str) -> NDArray[Any]:
    for record in records_of(content, ArrayRecord).values():
        if name in record:
            return read_only(record[name])
    raise ValueError(f"Expected an array {name!r} in every reply.")


def _close(made: NDArray[Any], mean: NDArray[np.float64]) -> bool:
    if made.shape != mean.shape:
        return False
    tolerance = _TOLERANCE.get(made.dtype.itemsize, 1e-6) * float(np.max(np.abs(mean)))
    return bool(np.all(np.abs(made - mean) <= tolerance))


@contextlib.contextmanager
def watch_aggregation(strategy: Strategy) -> Iterator[Aggregation]:
    """While this lasts, note what ``strategy`` is given by one that wraps it, and what it makes."""
    seen = Aggregation()
    aggregate = strategy.aggregate_train
    own = "aggregate_train" in vars(strategy)

    def watched(server_round: int, replies: Iterable[Message]) -> Any:
        given = list(replies)
        result = aggregate(server_round, given)
        with contextlib.suppress(Exception):  # whatever it returns is for who called it
            seen.replies, seen.arrays = readable(given), result[0]
        return result

    strategy.aggregate_train = StandIn(watched, aggregate)  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        if own:
            strategy.aggregate_train = aggregate  # type: ignore[method-assign]
        else:
            del strategy.aggregate_train
