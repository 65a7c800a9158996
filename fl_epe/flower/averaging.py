"""What a strategy made of its replies: which it used, and with which share."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fl_epe.flower.hooks import stand_in
from fl_epe.flower.message_records import read_only, records_of
from fl_epe.flower.replies import readable, weights

_ENTRIES = 64  # of an array, which are compared
_ROUNDINGS = 8  # errors of one rounding that a mean may have

Shares = Mapping[int, float]
"""Share of each reply in what was released, by the ``id`` of its content."""


@dataclasses.dataclass
class Aggregation:
    """The replies that a strategy was given, and the arrays that it made of them.

    Attributes:
        replies: those without an error.
        arrays: the strategy's result; ``None`` until it is there.
    """

    replies: Sequence[Message] = ()
    arrays: ArrayRecord | None = None

    def shares(self, key: str, used: Collection[int] | None = None) -> tuple[str, Shares] | None:
        """How the replies were averaged, and the share of each; ``None`` if they were not.

        "weighted" by the metric ``key``, or "equal". Some entries of one array are compared, to
        within rounding.

        Args:
            key: of the metric.
            used: replies that the strategy is known to have used, as in `Shares`.
        """
        if not self.replies or not self.arrays:
            return None
        name, places = self._places()
        made = _entries(self.arrays[name], places)
        given = np.stack([_entries(_array(r.content, name), places) for r in self.replies])
        known = np.isfinite(given).all(axis=1)
        largest = np.abs(given[known]).max(initial=0.0)
        types = (_array(self.replies[0].content, name).dtype, self.arrays[name].dtype)
        step = max(float(np.finfo(kind).eps) for kind in types)
        error = _ROUNDINGS * step * max(largest, np.abs(made).max(initial=0.0))
        ids = [id(reply.content) for reply in self.replies]
        kept = known & np.array([used is None or number in used for number in ids])
        ways = {"weighted": weights(self.replies, key), "equal": [1.0] * len(self.replies)}
        for way, values in ways.items():
            found = np.where(kept, values, 0.0)
            if found.sum() > 0:
                found = found / found.sum()
                if np.abs(made - found[kept] @ given[kept]).max() <= error:
                    return way, dict(zip(ids, found.tolist(), strict=True))
        return None

    def _places(self) -> tuple[str, NDArray[np.int64]]:
        """The largest array of those that clients answered, and some of its entries."""
        assert self.arrays is not None  # noqa: S101 - `shares` looks first
        records = records_of(self.replies[0].content, ArrayRecord)
        answered = {name for arrays in records.values() for name in arrays}
        sizes = {
            name: int(np.prod(array.shape))
            for name, array in self.arrays.items()
            if np.dtype(array.dtype).kind == "f" and len(array.shape) > 0 and name in answered
        }
        name = max(sizes, key=sizes.__getitem__)
        places = np.linspace(0, sizes[name] - 1, min(sizes[name], _ENTRIES)).astype(np.int64)
        return name, places


def _entries(array: Any, places: NDArray[np.int64]) -> NDArray[np.float64]:
    return read_only(array).reshape(-1)[places].astype(np.float64)


def _array(content: RecordDict, name: str) -> Any:
    for record in records_of(content, ArrayRecord).values():
        if name in record:
            return record[name]
    raise ValueError(f"Expected an array {name!r} in every reply.")


def weighted_shares(
    replies: Sequence[Message], key: str, used: Collection[int] | None = None
) -> Shares:
    """Share of each reply in an average by the metric ``key`` over those that were used."""
    found = {
        id(reply.content): weight if used is None or id(reply.content) in used else 0.0
        for reply, weight in zip(replies, weights(replies, key), strict=True)
    }
    whole = sum(found.values())
    return {number: weight / whole for number, weight in found.items()}


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

    with stand_in(strategy, "aggregate_train", watched):
        yield seen


@contextlib.contextmanager
def real_metrics_only(base: Strategy, synthetic: Sequence[Message]) -> Iterator[set[int]]:
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
        return aggregate([record for record in records if id(record) not in ignored], key)

    with stand_in(base, "train_metrics_aggr_fn", only_real):
        yield used
