"""Synthetic replies: canaries in the form of the clients' own replies."""

from __future__ import annotations

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from numpy.typing import NDArray

from fl_epe.flower.layout import Form
from fl_epe.flower.message_records import records_of
from fl_epe.flower.replies import Answer, weights
from fl_epe.flower.round_state import RoundState
from fl_epe.flower.settings import ReplyKind

_NORM_BIT = "norm_bit"  # a client's vote on Flower's adaptive clip norm
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


def make_replies(
    numbers: Sequence[int],
    canary_norms: CanaryNorms,
    like: Sequence[Answer],
    metrics: Mapping[str, Mapping[str, Value]],
    own_weights: tuple[str, Sequence[float]],
    state: RoundState,
    kind: ReplyKind | None,
) -> list[Message]:
    """One reply for each canary, in the form of a real one.

    Args:
        numbers: of the canaries, whose vectors are those of the state.
        canary_norms: of the updates.
        like: real replies, whose form and whose other content the canaries' take in turns.
        metrics: those values that are the same for all canaries, see `neutral_metrics`.
        own_weights: the metric by which replies are weighted, and that of each canary.
        state: of the round; the first replies answer the messages that were withheld.
        kind: whether replies are models or updates; ``None`` where it makes no difference.
    """
    vectors, before = state.vectors, state.before
    assert vectors is not None  # noqa: S101 - there are canaries in the round
    like = like[: len(numbers)]
    forms = _forms(like, state, kind)

    def make(position: int) -> Message:
        which = position % len(like)
        model = vectors[position] * before.dtype.type(canary_norms.sent[position])
        if kind == "model":
            model += before
        content = RecordDict()
        for name, record in like[which].reply.content.items():
            if name == like[which].name:
                content[name] = forms[which].fill(model)
            elif isinstance(record, MetricRecord):
                vote = {_NORM_BIT: int(canary_norms.clipped[position])}
                own = {own_weights[0]: own_weights[1][position]}
                values = {**record, **metrics.get(name, {}), **vote, **own}
                content[name] = MetricRecord({key: values[key] for key in record})
            else:
                content[name] = record
        return Message(content, reply_to=_asked(position, numbers[position], state.withheld))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(make, range(len(numbers))))


def _forms(like: Sequence[Answer], state: RoundState, kind: ReplyKind | None) -> list[Form]:
    """How replies like each of these are filled in; one form for all that look alike."""
    known: dict[object, Form] = {}
    found = []
    for answer in like:
        arrays = records_of(answer.reply.content, ArrayRecord)[answer.name]
        looks = tuple((name, array.dtype, *array.shape) for name, array in arrays.items())
        if looks not in known or kind is None:  # then it also holds numbers of the reply
            known[looks] = state.layout.form(arrays, state.arrays, kind)
        found.append(known[looks])
    return found


def _asked(position: int, number: int, instead_of: Sequence[Message]) -> Message:
    if position < len(instead_of):
        return instead_of[position]
    return Message(RecordDict(), _NODE + number, MessageType.TRAIN)


def neutral_metrics(real: Sequence[Message], weighted_by: str) -> dict[str, dict[str, Value]]:
    """Metrics that leave a weighted average as it is: the real ones' own average.

    Only numbers that are averages by their nature: an integer may be a class or a client's number,
    and lists may differ in length; a canary takes those from a real reply.
    """
    shares = np.array(weights(real, weighted_by))
    shares = shares / shares.sum() if shares.sum() > 0 else np.full(len(real), 1 / len(real))
    out: dict[str, dict[str, Value]] = {}
    metrics = [records_of(reply.content, MetricRecord) for reply in real]
    for name, first in metrics[0].items():
        values: dict[str, Value] = {}
        for key in first:
            column = [records.get(name, first).get(key) for records in metrics]
            if all(isinstance(value, float) for value in column):
                values[key] = float(shares @ np.array(column))
            elif _is_table_of_floats(column):
                values[key] = np.tensordot(shares, np.array(column), 1).tolist()
        out[name] = values
    return out


def drawn_weights(
    real: Sequence[Message], key: str, count: int, rng: np.random.Generator
) -> list[float]:
    """Weights of ``count`` canaries by the law of the real ones, of their type.

    One is drawn from each of as many parts of the sorted weights.
    """
    known = sorted(w for w in weights(real, key) if 0 < w < math.inf) or [1.0]
    places = (rng.permutation(count) + rng.random()) * len(known) / count
    drawn = [known[int(place)] for place in places]
    whole = all(w.is_integer() for w in known)
    return [int(w) for w in drawn] if whole and not _has_floats(real, key) else drawn


def _has_floats(real: Sequence[Message], key: str) -> bool:
    metrics = [records_of(reply.content, MetricRecord) for reply in real]
    return any(isinstance(r.get(key), float) for records in metrics for r in records.values())


def alike(like: Sequence[Answer], real: Sequence[Message], weighted_by: str) -> list[Answer]:
    """Those answers whose settings and whole numbers most of the real replies share.

    A strategy may drop replies by such a value, and then drops the fewest of these.
    """
    counts = Counter(mark for reply in real for mark in _marks(reply, weighted_by))
    agreed = [sum(counts[mark] for mark in _marks(a.reply, weighted_by)) for a in like]
    return [answer for answer, count in zip(like, agreed, strict=True) if count == max(agreed)]


def _marks(reply: Message, weighted_by: str) -> set[tuple[str, str, str]]:
    return {
        (name, key, repr(value))
        for name, record in reply.content.items()
        if isinstance(record, (ConfigRecord, MetricRecord))
        for key, value in record.items()
        if key != weighted_by and not isinstance(value, (float, list))
    }


def _is_table_of_floats(column: Sequence[object]) -> bool:
    lists = [value for value in column if isinstance(value, list)]
    one_length = len({len(value) for value in lists}) == 1
    numbers = all(isinstance(entry, float) for value in lists for entry in value)
    return len(lists) == len(column) and one_length and numbers
