"""Replies with canary updates, which the server makes up in the form of the clients' own."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fl_epe.flower.round_state import RoundState

_NORM_BIT = "norm_bit"  # a client's vote on Flower's adaptive clip norm
_MOST_NORMS = 9  # real updates whose median norm stands for all
_NODE = 1 << 62  # node ids of canaries in replies that answer no message

Value = int | float | list[int] | list[float]


@dataclasses.dataclass(frozen=True)
class CanaryNorms:
    """How long canary updates are, and what is left of them after clipping.

    Attributes:
        sent: norms of the updates as they are sent, shape ``(K,)``.
        clipped: which of them are above the clip norm.
        counted: norm that each has after clipping.
    """

    sent: NDArray[np.float64]
    clipped: NDArray[np.bool_]
    counted: float


def readable(replies: Sequence[Message]) -> list[Message]:
    """Replies without an error."""
    return [reply for reply in replies if not reply.has_error()]


def weights(replies: Sequence[Message], key: str) -> list[float]:
    """The weight of each reply in an average; 1 where it does not say."""
    found = []
    for reply in replies:
        metrics = next(iter(reply.content.metric_records.values()), MetricRecord())
        value = metrics.get(key, 1)
        found.append(1.0 if isinstance(value, list) else float(value))
    return found


def only_arrays(reply: Message) -> tuple[str, ArrayRecord]:
    """Name and content of the one set of arrays in a reply.

    Raises:
        ValueError: if there is not exactly one.
    """
    records = list(reply.content.array_records.items())
    if len(records) != 1:
        names = [name for name, _ in records]
        raise ValueError(f"Expected one ArrayRecord in a reply, got {names}.")
    return records[0]


def median_norm(replies: Sequence[Message], state: RoundState, rng: np.random.Generator) -> float:
    """Median Euclidean norm of the updates in (at most 9 of) the replies."""
    count = min(len(replies), _MOST_NORMS)
    chosen = rng.choice(len(replies), count, replace=False)
    models = (state.layout.flatten(only_arrays(replies[i])[1]) for i in chosen)
    return statistics.median(float(np.linalg.norm(model - state.before)) for model in models)


def make_replies(
    numbers: Sequence[int],
    canary_norms: CanaryNorms,
    real: Message,
    metrics: Mapping[str, Mapping[str, Value]],
    state: RoundState,
) -> list[Message]:
    """One reply for each canary, in the form of a real one.

    Args:
        numbers: of the canaries, whose vectors are those of the state.
        canary_norms: of the updates.
        real: a readable reply of this round.
        metrics: of the replies, see `neutral_metrics`.
        state: of the round; the first replies answer the messages that were withheld.
    """
    vectors, before = state.vectors, state.before
    assert vectors is not None  # noqa: S101 - there are canaries in the round
    record_name, like = only_arrays(real)
    form = state.layout.form(like, state.arrays)

    def make(position: int) -> Message:
        model = vectors[position] * before.dtype.type(canary_norms.sent[position])
        model += before
        content = RecordDict({record_name: form.fill(model)})
        for name, values in metrics.items():
            vote = {_NORM_BIT: int(canary_norms.clipped[position])} if _NORM_BIT in values else {}
            content[name] = MetricRecord({**values, **vote})
        for name, config in real.content.config_records.items():
            content[name] = config
        return Message(content, reply_to=_asked(position, numbers[position], state.withheld))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(make, range(len(numbers))))


def _asked(position: int, number: int, instead_of: Sequence[Message]) -> Message:
    if position < len(instead_of):
        return instead_of[position]
    return Message(RecordDict(), _NODE + number, MessageType.TRAIN)


def neutral_metrics(
    real: Sequence[Message], weighted_by: str, weight: float | None
) -> dict[str, dict[str, Value]]:
    """Metrics that leave a weighted average as it is: the real ones' own average."""
    shares = np.array(weights(real, weighted_by))
    shares /= shares.sum()
    out: dict[str, dict[str, Value]] = {}
    for name, first in real[0].content.metric_records.items():
        values: dict[str, Value] = {}
        for key in first:
            column = np.array([reply.content.metric_records[name][key] for reply in real])
            if key == weighted_by:
                values[key] = statistics.median(column.tolist()) if weight is None else weight
            else:
                values[key] = np.tensordot(shares, column, 1).tolist()
        out[name] = values
    return out


@contextlib.contextmanager
def real_metrics_only(base: Strategy, made_up: Sequence[Message]) -> Iterator[None]:
    """While this lasts, ``base`` aggregates the metrics of all replies but those ``made_up``."""
    aggregate = getattr(base, "train_metrics_aggr_fn", None)
    if aggregate is None or not made_up:
        yield
        return
    ignored = {id(reply.content) for reply in made_up}

    def only_real(records: list[RecordDict], key: str) -> MetricRecord:
        found: Callable[[list[RecordDict], str], MetricRecord] = aggregate
        return found([record for record in records if id(record) not in ignored], key)

    base.train_metrics_aggr_fn = only_real  # type: ignore[attr-defined]
    try:
        yield
    finally:
        base.train_metrics_aggr_fn = aggregate  # type: ignore[attr-defined]
