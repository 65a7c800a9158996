"""Makes the server's synthetic replies, each with a canary, in the form of a real reply."""

import copy
import dataclasses
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from flwr.app import Message, MessageType, MetricRecord, RecordDict

from fl_epe.checks import Booleans, Floats, Floats32, Vector
from fl_epe.flower.free_arrays import leave_alone
from fl_epe.flower.layout import ReplyKind
from fl_epe.flower.replies import ReadableReply, as_shares, base_of, weights
from fl_epe.flower.round_state import RoundState
from fl_epe.messages import records_of

# The metric with a client's vote on Flower's adaptive clip norm.
_NORM_BIT = "norm_bit"
# The largest relative change of a canary's norm by the rounding of its entries.
_MAX_ROUNDING = 0.1
# The node id of canary 0, if its reply answers no message; the others have the next ids.
_FIRST_NODE_ID = 1 << 62

Value = int | float | list[int] | list[float]


@dataclasses.dataclass(frozen=True)
class CanaryUpdates:
    """The updates of a round's canaries, as they are sent.

    Attributes:
        numbers: the numbers of the K canaries.
        vectors: the canaries, with norm 1, shape ``(K, dim)``.
        norms: the norms of the updates, shape ``(K,)``.
        clipped: whether each update is above the clip norm, shape ``(K,)``.
        weight: the weight of each update in an average.
    """

    numbers: Sequence[int]
    vectors: Floats32
    norms: Floats
    clipped: Booleans
    weight: float


def make_replies(
    canaries: CanaryUpdates,
    like: Sequence[ReadableReply],
    real: Sequence[Message],
    weighted_by: str,
    current: RoundState,
    kind: ReplyKind | None,
) -> list[Message]:
    """One reply for each canary, in the form of a real one.

    Args:
        canaries: the updates of the canaries.
        like: real replies; each canary's reply has the form and the other content of one of
            them, in turn.
        real: all replies of clients; the canaries' metrics are their average.
        weighted_by: the metric by which replies are weighted.
        current: the round; the first replies answer the messages that were withheld.
        kind: whether replies are models or updates; ``None`` if that makes no difference.

    Raises:
        ValueError: if the number type of a reply cannot hold a canary of its norm.
    """
    layout = current.layout
    metrics = _neutral_metrics(real, weighted_by)
    base = base_of(kind, current.before)
    forms = [
        layout.form(answer.arrays, current.arrays, kind)
        for answer in like[: len(canaries.numbers)]
    ]

    def make(position: int) -> Message:
        template = like[position % len(like)]
        length = canaries.norms[position]
        canary = leave_alone(
            current.unmoved, canaries.vectors[position], layout
        )
        model = canary * current.before.dtype.type(length)
        if base is not None:
            model += base
        content = RecordDict()
        for name, record in template.reply.content.items():
            if name == template.name:
                arrays = forms[position % len(like)](model)
                update = layout.flatten(arrays)
                if base is not None:
                    update -= base
                _check_held(canary, update, length)
                content[name] = arrays
            elif isinstance(record, MetricRecord):
                values: dict[str, Value] = {**record, **metrics.get(name, {})}
                values[_NORM_BIT] = int(canaries.clipped[position])
                values[weighted_by] = canaries.weight
                content[name] = MetricRecord(
                    {key: values[key] for key in record}
                )
            else:
                # The strategy may change the record of a reply.
                content[name] = copy.deepcopy(record)
        if position < len(current.withheld):
            answered = current.withheld[position]
        else:
            node = _FIRST_NODE_ID + canaries.numbers[position]
            answered = Message(RecordDict(), node, MessageType.TRAIN)
        return Message(content, reply_to=answered)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(make, range(len(canaries.numbers))))


def _check_held(canary: Vector, update: Vector, length: float) -> None:
    """Raise a `ValueError` unless an update is ``length`` times the canary, up to rounding."""
    rounded_length = float(canary @ update)
    if not abs(rounded_length - length) <= _MAX_ROUNDING * length:
        raise ValueError(
            f"Expected a reply to hold a canary of norm {length:.3g}, got norm"
            f" {rounded_length:.3g} after rounding: the reply's numbers are too coarse or too small"
            " for it."
        )


def _neutral_metrics(
    real: Sequence[Message], weighted_by: str
) -> dict[str, dict[str, Value]]:
    """Metrics that do not change a weighted average: the average of the real metrics.

    Only floating-point numbers are averaged, as an integer may be a class or the number of a
    client. A canary's integers and lists are those of a real reply.
    """
    shares = as_shares(np.array(weights(real, weighted_by)))
    metrics = [records_of(reply.content, MetricRecord) for reply in real]
    neutral: dict[str, dict[str, Value]] = {}
    for name, first in metrics[0].items():
        values: dict[str, Value] = {}
        for key in first:
            column = [records.get(name, first).get(key) for records in metrics]
            if all(isinstance(value, float) for value in column):
                values[key] = float(shares @ np.array(column))
        neutral[name] = values
    return neutral
