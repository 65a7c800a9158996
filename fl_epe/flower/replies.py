"""The clients' replies: what is in them, what kind they are, and synthetic ones in their form."""

from __future__ import annotations

import copy
import dataclasses
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, assert_never

import numpy as np
import scipy
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict

from fl_epe.auditing import FaultKind
from fl_epe.checks import Booleans, Floats, Vector
from fl_epe.flower.free_arrays import leave_alone
from fl_epe.flower.layout import Layout, ReplyKind
from fl_epe.flower.state import RoundState
from fl_epe.mechanism import norm
from fl_epe.messages import records_of

if TYPE_CHECKING:
    from fl_epe.flower.audited_run import AuditedRun

MOST_READ = 9  # real updates, whose median norm stands for all
_NEAR = 0.25
_BLOCKS, _SIZE = 64, 256  # of the entries that are looked at, for noise
_LEAST = 256  # entries
_RARE = 1e-3  # noise is taken for something else about so often

_NORM_BIT = "norm_bit"  # a client's vote on Flower's adaptive clip norm
_ROUNDED = 0.1  # of a canary's norm, which the rounding of its numbers may take
_NODE = 1 << 62  # node ids of canaries in replies that answer no message

Value = int | float | list[int] | list[float]


def readable(replies: Sequence[Message]) -> list[Message]:
    """Replies without an error."""
    return [reply for reply in replies if not reply.has_error()]


def weights(replies: Sequence[Message], key: str) -> list[float]:
    """The weight of each reply in an average; 1 where it does not say."""
    records = [
        [*records_of(reply.content, MetricRecord).values(), {}][0] for reply in replies
    ]
    found = [metrics.get(key, 1) for metrics in records]
    return [1 if isinstance(value, list) else value for value in found]


def as_shares(values: Floats) -> Floats:
    """``values`` over their sum; equal shares if that is not positive."""
    total = values.sum()
    return values / total if total > 0 else np.full(len(values), 1 / len(values))


def model_record(
    reply: Message, layout: Layout, preferred: str, step: int = 1
) -> tuple[str, Vector]:
    """The name of the arrays in a reply that fit the model, and their content as one vector.

    Args:
        reply: may hold other arrays besides.
        layout: of the model.
        preferred: the name that counts where several fit.
        step: to take each ``step``-th entry alone.

    Raises:
        ValueError: if none fits, or several do of which none has that name.
    """
    fits, reasons = dict[str, Vector](), list[str]()
    records = records_of(reply.content, ArrayRecord)
    for name, arrays in records.items():
        try:
            fits[name] = layout.flatten(arrays, step)
        except ValueError as error:
            reasons.append(str(error))
    if preferred in fits:
        return preferred, fits[preferred]
    if len(fits) != 1:
        raise ValueError(
            f"Expected one ArrayRecord like the model in a reply, got {len(fits)} of"
            f" {list(records)}. {' '.join(reasons[:1])}".rstrip()
        )
    return next(iter(fits.items()))


@dataclasses.dataclass(frozen=True)
class ReadableReply:
    """A real reply that can be read.

    Attributes:
        reply: as it came.
        name: of its arrays.
        vector: they, shape ``(dim,)``, finite.
    """

    reply: Message
    name: str
    vector: Vector

    @property
    def arrays(self) -> ArrayRecord:
        """Those of that name."""
        return records_of(self.reply.content, ArrayRecord)[self.name]


def some_answers(
    run: AuditedRun,
    replies: Sequence[Message],
    state: RoundState,
    rng: np.random.Generator,
) -> list[ReadableReply]:
    """At most nine of the replies, drawn at random among those that fit the model and are finite.

    Others that were looked at are faults. Replies that hold the model unchanged, or no update, are
    returned only where no other reply is left.

    Raises:
        ValueError: if there is none.
    """
    found, idle, why = list[ReadableReply](), list[ReadableReply](), ""
    for i in rng.permutation(len(replies)):
        try:
            name, vector = model_record(
                replies[i], state.layout, run.wrapped.arrays_key()
            )
            if not np.isfinite(vector).all():
                raise ValueError("it answered NaN or infinite entries")
            is_idle = not vector.any() or np.array_equal(vector, state.before)
            (idle if is_idle else found).append(ReadableReply(replies[i], name, vector))
        except ValueError as error:
            why = f"node {replies[i].metadata.src_node_id}: {error}"
            run.faults.add(state.index, FaultKind.ANSWER_REFUSED, why)
        if len(found) == MOST_READ:
            break
    if not found and not idle:
        raise ValueError(f"Expected a reply that can be read: {why}")
    return found or idle[:MOST_READ]


def base_of(kind: ReplyKind | None, before: Vector) -> Vector | None:
    """What a reply of this kind holds beside its update; ``None`` for nothing.

    Args:
        kind: what replies are; ``None`` where the model is 0, so that it makes no difference.
        before: the model that was sent.
    """
    match kind:
        case "model":
            return before
        case "update" | None:
            return None
    assert_never(kind)


def kind_of_replies(answers: Sequence[Vector], before: Vector) -> ReplyKind | None:
    """What the replies are, from how much of the global model is in them; ``None`` if not clear.

    A trained model is the old one and an update: its share of the old one is 1 plus the update's
    own. That of a difference is the update's own, near 0.

    Args:
        answers: the clients' answers, each of shape ``(dim,)``, those that are finite.
        before: the global model that they were sent, of shape ``(dim,)``; not 0 everywhere.
    """
    start = before.astype(np.float64)
    energy = float(start @ start)
    share = statistics.median(float(answer @ start) / energy for answer in answers)
    if abs(share) < _NEAR:
        return "update"
    return "model" if abs(share - 1) < _NEAR else None


def are_noise(answers: Sequence[Vector], before: Vector | None = None) -> bool:
    """Whether updates look like independent Gaussian noise, as of local DP, and nothing else.

    They do if their blocks of entries have the same norm, their entries have a normal's fourth
    moment, no two have a direction in common, and their lengths vary as such noise's do. Noise that
    training is visible in is not found.

    Args:
        answers: each of shape ``(dim,)``, of different clients.
        before: what an update is the difference to; ``None`` if answers are updates.
    """
    dim = len(answers[0]) if answers else 0
    if dim < _LEAST or len(answers) < 3:
        return False
    blocks = min(_BLOCKS, dim // 32)
    size = min(_SIZE, dim // blocks)
    places = np.linspace(0, dim - size, blocks).astype(np.int64)[:, None] + np.arange(
        size
    )
    old = 0.0 if before is None else before[places].astype(np.float64)
    entries = np.array([answer[places] - old for answer in answers])
    squares = np.mean(entries**2, axis=2)  # of each update's blocks
    whole = squares.mean(axis=1)
    if not whole.all():
        return False
    count, seen = len(answers), blocks * size
    spread = size / 2 * float(np.sum((squares / whole[:, None] - 1) ** 2))
    lengths = seen / 2 * float(np.sum((whole / whole.mean() - 1) ** 2))
    fourth = np.mean(entries**4, axis=(1, 2)) / whole**2 - 3
    flat = entries.reshape(count, -1) / np.sqrt(seen * whole)[:, None]
    cosines = (flat @ flat.T)[np.triu_indices(count, 1)]
    chi2, wide = scipy.stats.chi2, scipy.special.ndtri(1 - _RARE / 2)
    return bool(
        spread < chi2.isf(_RARE, count * (blocks - 1))
        and chi2.ppf(_RARE, count - 1) < lengths < chi2.isf(_RARE, count - 1)
        and abs(fourth.mean()) < wide * np.sqrt(24 / seen / count)
        and abs(cosines.mean()) < wide / np.sqrt(seen * len(cosines))
        and np.abs(cosines).max() < 5 / np.sqrt(seen)
    )


def median_norm(
    like: Sequence[ReadableReply], before: Vector | None, *, noisy: bool
) -> float:
    """The median norm of the updates in some answers that moved the model.

    Args:
        like: the answers.
        before: what an update is the difference to; ``None`` if answers are updates.
        noisy: see `are_noise`.

    Raises:
        ValueError: if they are noise of the clients' own, or all are 0.
    """
    if noisy:
        raise ValueError(
            "Expected updates, but what clients answer looks like noise of their own, which"
            " says nothing about how long an update is: let clients answer with canaries"
            " (clients=… and canary_mod), or pass canary_norm, the norm without the noise."
        )
    lengths = [length for answer in like if (length := norm(answer.vector, before)) > 0]
    if not lengths:
        raise ValueError("Expected clients that moved the model, but none of them did.")
    return statistics.median(lengths)


def make_replies(
    numbers: Sequence[int],
    norms: Floats,
    clipped: Booleans,
    like: Sequence[ReadableReply],
    real: Sequence[Message],
    own_weight: tuple[str, float],
    state: RoundState,
    kind: ReplyKind | None,
) -> list[Message]:
    """One reply for each canary, in the form of a real one.

    Args:
        numbers: of the canaries, whose vectors are those of the state.
        norms: of the updates, shape ``(K,)``.
        clipped: which of them are above the clip norm.
        like: real replies, whose form and whose other content the canaries' take in turns.
        real: all replies of clients, whose average the canaries' metrics are.
        own_weight: the metric by which replies are weighted, and that of a canary.
        state: of the round; the first replies answer the messages that were withheld.
        kind: whether replies are models or updates; ``None`` where it makes no difference.

    Raises:
        ValueError: if the numbers of such a reply cannot hold a canary of that norm.
    """
    vectors, before, metrics = (
        state.vectors,
        state.before,
        _neutral_metrics(real, own_weight[0]),
    )
    assert vectors is not None  # noqa: S101 - there are canaries in the round
    base = base_of(kind, before)
    forms = [
        state.layout.form(answer.arrays, state.arrays, kind)
        for answer in like[: len(numbers)]
    ]

    def make(position: int) -> Message:
        which = position % len(like)
        canary = leave_alone(state.unmoved, vectors[position], state.layout)
        model = canary * before.dtype.type(norms[position])
        if base is not None:
            model += base
        content = RecordDict()
        for name, record in like[which].reply.content.items():
            if name == like[which].name:
                content[name] = arrays = forms[which](model)
                update = state.layout.flatten(arrays)
                if base is not None:
                    update -= base
                _check_held(canary, update, norms[position])
            elif isinstance(record, MetricRecord):
                vote = {_NORM_BIT: int(clipped[position])}
                values = {
                    **record,
                    **metrics.get(name, {}),
                    **vote,
                    **dict([own_weight]),
                }
                content[name] = MetricRecord({key: values[key] for key in record})
            else:
                content[name] = copy.deepcopy(record)  # the strategy may change it
        asked = Message(RecordDict(), _NODE + numbers[position], MessageType.TRAIN)
        if position < len(state.withheld):
            asked = state.withheld[position]
        return Message(content, reply_to=asked)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(make, range(len(numbers))))


def _check_held(canary: Vector, update: Vector, length: float) -> None:
    """Raise a `ValueError` unless an update is so many times the canary, but for rounding."""
    held = float(canary @ update)
    if not abs(held - length) <= _ROUNDED * length:
        raise ValueError(
            f"Expected a canary of norm {length:.3g} to be {held:.3g} long after it is rounded to"
            " the numbers of a reply, which are too coarse or too small for it."
        )


def _neutral_metrics(
    real: Sequence[Message], weighted_by: str
) -> dict[str, dict[str, Value]]:
    """Metrics that leave a weighted average as it is: the real ones' own average.

    Only numbers that are averages by their nature: an integer may be a class or a client's number;
    a canary takes that, and lists, from a real reply.
    """
    shares = as_shares(np.array(weights(real, weighted_by)))
    out: dict[str, dict[str, Value]] = {}
    metrics = [records_of(reply.content, MetricRecord) for reply in real]
    for name, first in metrics[0].items():
        values: dict[str, Value] = {}
        for key in first:
            column = [records.get(name, first).get(key) for records in metrics]
            if all(isinstance(value, float) for value in column):
                values[key] = float(shares @ np.array(column))
        out[name] = values
    return out
