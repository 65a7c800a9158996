"""The clients' replies: their senders, their content, and their kind."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

import numpy as np
import scipy
from flwr.app import ArrayRecord, Message, MetricRecord

from fl_epe.auditing import FaultBook, FaultKind
from fl_epe.checks import Floats, Vector
from fl_epe.flower.layout import Layout, ReplyKind
from fl_epe.mechanism import norm
from fl_epe.messages import error_kind, records_of

# The number of a round's replies that are read as vectors: enough for a median norm.
MAX_READ = 9
# The largest distance of the share of the global model in a reply from 0 or 1.
_MAX_SHARE_ERROR = 0.25
# `are_noise` tests up to 64 blocks of an update, of 32 to 256 entries each, if the update has at
# least 256 entries.
_MAX_BLOCKS = 64
_MAX_BLOCK_SIZE = 256
_MIN_BLOCK_SIZE = 32
_MIN_ENTRIES = 256
# The level of each test of `are_noise`, except that of the largest of many cosines.
_LEVEL = 1e-3
# The largest of these cosines must be below this number of standard deviations.
_MAX_COSINE_DEVIATIONS = 5
# The usual names of the loss of a client's training.
_LOSSES = ("train_loss", "train-loss", "loss")


def readable(replies: Sequence[Message]) -> list[Message]:
    """The replies without an error."""
    return [reply for reply in replies if not reply.has_error()]


def losses_of(metrics: Iterable[Mapping[str, object]]) -> list[float]:
    """The losses of the training in records of metrics."""
    losses = [record.get(name) for record in metrics for name in _LOSSES]
    return [float(loss) for loss in losses if isinstance(loss, int | float)]


def match_clients(
    replies: Sequence[Message],
    sent: Sequence[Message],
    identity: Callable[[int], int],
    faults: FaultBook,
    index: int,
) -> dict[int, int]:
    """Match replies with clients, and add the faults of replies to a book.

    Faults are errors, second and missing replies, and losses that are not finite.

    Args:
        replies: the replies of a round.
        sent: the messages of the round.
        identity: a function from a node id to a lasting id of the client.
        faults: the book to which faults are added.
        index: the index of the round, from 0.

    Returns:
        The client of each reply without an error, by the ``id`` of the reply's content.
    """
    # If a node dies, a SuperLink replies in its place, with the id of the SuperLink.
    nodes = {
        message.metadata.message_id: message.metadata.dst_node_id
        for message in sent
    }
    clients = dict[int, int]()
    answered = set[str]()
    for reply in replies:
        message_id = reply.metadata.reply_to_message_id
        node = nodes.get(message_id, reply.metadata.src_node_id)
        if message_id and message_id in answered:
            faults.add(
                index,
                FaultKind.ANSWERED_TWICE,
                f"node {node}: it answered twice",
            )
        answered.add(message_id)
        if reply.has_error():
            text = f"node {node}: {reply.error.reason}"
            faults.add(index, error_kind(reply.error), text)
            continue
        clients[id(reply.content)] = int(identity(node))
        for loss in losses_of(records_of(reply.content, MetricRecord).values()):
            if not math.isfinite(loss):
                text = f"node {node}: the loss of its training is {loss}"
                faults.add(index, FaultKind.LOSS_NOT_FINITE, text)
    unanswered = len(sent) - len(replies)
    if unanswered > 0:
        missing = [
            f"node {node}"
            for message_id, node in nodes.items()
            if message_id not in answered
        ]
        # Replies that do not refer to a message do not show which node is missing.
        names = f": {', '.join(missing)}" if len(missing) == unanswered else ""
        text = f"{unanswered} of {len(sent)} clients did not answer{names}"
        faults.add(index, FaultKind.NO_ANSWER, text, unanswered)
    return clients


def weights(replies: Sequence[Message], key: str) -> list[float]:
    """The weight of each reply in an average; 1 for a reply without a weight.

    Like Flower, it reads the first record of metrics.

    Args:
        replies: the replies.
        key: the metric by which replies are weighted.
    """
    values: list[float] = []
    for reply in replies:
        records = [*records_of(reply.content, MetricRecord).values()]
        weight = records[0].get(key, 1) if records else 1
        values.append(1 if isinstance(weight, list) else weight)
    return values


def as_shares(values: Floats) -> Floats:
    """``values`` divided by their sum; equal shares if that is not positive."""
    total = values.sum()
    if total > 0:
        return np.asarray(values / total)
    return np.full(len(values), 1 / len(values))


def model_record(
    reply: Message, layout: Layout, preferred: str, step: int = 1
) -> tuple[str, Vector]:
    """The name of the arrays in a reply that fit the model, and their content as one vector.

    Args:
        reply: the reply, which may contain other arrays.
        layout: the layout of the model.
        preferred: the name that is returned if several arrays fit.
        step: the distance of the entries that are returned, 1 for all entries.

    Raises:
        ValueError: if no arrays fit, or several of which none has the preferred name.
    """
    fits = dict[str, Vector]()
    reasons = list[str]()
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


def entries_of(
    replies: Sequence[Message],
    layout: Layout,
    preferred: str,
    step: int,
    count: int,
) -> Floats:
    """The arrays of replies that fit the model, ``(n, count)``; a row of NaN if none fit.

    Args:
        replies: n replies.
        layout: the layout of the model.
        preferred: the preferred name, see `model_record`.
        step: the distance of the entries, see `model_record`.
        count: the resulting number of entries.
    """
    entries = np.full((len(replies), count), np.nan)
    for row, reply in zip(entries, replies, strict=True):
        with contextlib.suppress(ValueError):
            row[:] = model_record(reply, layout, preferred, step)[1]
    return entries


@dataclasses.dataclass(frozen=True)
class ReadableReply:
    """A real reply that can be read.

    Attributes:
        reply: the reply as it arrived.
        name: the name of its arrays.
        vector: the entries of these arrays, shape ``(dim,)``, finite.
    """

    reply: Message
    name: str
    vector: Vector

    @property
    def arrays(self) -> ArrayRecord:
        """The arrays of that name."""
        return records_of(self.reply.content, ArrayRecord)[self.name]

    def in_layout(self, layout: Layout) -> ReadableReply:
        """The same reply with the entries of its arrays in another layout."""
        return dataclasses.replace(self, vector=layout.flatten(self.arrays))


def some_answers(
    replies: Sequence[Message],
    layout: Layout,
    before: Vector,
    preferred: str,
    rng: np.random.Generator,
    refuse: Callable[[str], object],
) -> list[ReadableReply]:
    """At most `MAX_READ` replies, drawn at random from those that fit the model and are finite.

    Replies with the unchanged model, or with a zero update, are returned only if there is no
    other reply.

    Args:
        replies: the replies of a round.
        layout: the layout of the model.
        before: the model that was sent, shape ``(dim,)``.
        preferred: the preferred name, see `model_record`.
        rng: the generator of the order of the replies.
        refuse: a function that is called with the reason for each drawn reply that cannot be
            read.

    Raises:
        ValueError: if there is no such reply.
    """
    answers = list[ReadableReply]()
    idle = list[ReadableReply]()
    reason = ""
    for position in rng.permutation(len(replies)):
        reply = replies[position]
        try:
            name, vector = model_record(reply, layout, preferred)
            if not np.isfinite(vector).all():
                raise ValueError("it answered NaN or infinite entries")
            is_idle = not vector.any() or np.array_equal(vector, before)
            readable_replies = idle if is_idle else answers
            readable_replies.append(ReadableReply(reply, name, vector))
        except ValueError as error:
            reason = f"node {reply.metadata.src_node_id}: {error}"
            refuse(reason)
        if len(answers) == MAX_READ:
            break
    if not answers and not idle:
        raise ValueError(f"Expected a reply that can be read: {reason}")
    return answers or idle[:MAX_READ]


def base_of(kind: ReplyKind | None, before: Vector) -> Vector | None:
    """The vector to which a reply of this kind adds its update; ``None`` for zeros.

    Args:
        kind: the kind of the replies; ``None`` if the model is 0, where kinds do not differ.
        before: the model that was sent, as a vector.
    """
    match kind:
        case "model":
            return before
        case "update" | None:
            return None
    assert_never(kind)


def kind_of_replies(
    answers: Iterable[Vector], before: Vector
) -> ReplyKind | None:
    """The kind of replies, from their component along the global model; ``None`` if not clear.

    A trained model is the sum of the old one and an update: its component along the old one is
    1 plus that of the update. The component of an update is near 0.

    Args:
        answers: the clients' finite answers, each of shape ``(dim,)``.
        before: the global model that was sent, shape ``(dim,)``, not zero.
    """
    start = before.astype(np.float64)
    energy = float(start @ start)
    share = statistics.median(
        float(answer @ start) / energy for answer in answers
    )
    if abs(share) < _MAX_SHARE_ERROR:
        return "update"
    if abs(share - 1) < _MAX_SHARE_ERROR:
        return "model"
    return None


def are_noise(answers: Sequence[Vector], before: Vector | None = None) -> bool:
    """Whether updates look like independent Gaussian noise alone, as with local DP.

    They do if their blocks of entries have the same norm, their entries have the fourth moment
    of a normal distribution, no two have a direction in common, and their lengths vary like
    those of such noise. Noise is not detected if training is visible in it.

    Args:
        answers: the answers of different clients, each of shape ``(dim,)``.
        before: the model to subtract from an answer; ``None`` if answers are updates.
    """
    dim = len(answers[0]) if answers else 0
    if dim < _MIN_ENTRIES or len(answers) < 3:
        return False
    blocks = min(_MAX_BLOCKS, dim // _MIN_BLOCK_SIZE)
    size = min(_MAX_BLOCK_SIZE, dim // blocks)
    first_places = np.linspace(0, dim - size, blocks).astype(np.int64)
    places = first_places[:, None] + np.arange(size)
    base = 0.0 if before is None else before[places].astype(np.float64)
    entries = np.array([answer[places] - base for answer in answers])
    block_squares = np.mean(entries**2, axis=2)  # (updates, blocks)
    squares = block_squares.mean(axis=1)
    if not squares.all():
        return False
    count = len(answers)
    entry_count = blocks * size
    chi2 = scipy.stats.chi2
    deviations = scipy.special.ndtri(1 - _LEVEL / 2)

    # A mean of n squares has the relative variance 2/n.
    relative_blocks = block_squares / squares[:, None] - 1
    spread_of_blocks = size / 2 * float(np.sum(relative_blocks**2))
    blocks_agree = spread_of_blocks < chi2.isf(_LEVEL, count * (blocks - 1))

    relative_lengths = squares / squares.mean() - 1
    spread_of_lengths = entry_count / 2 * float(np.sum(relative_lengths**2))
    freedom = count - 1
    lengths_agree = (
        chi2.ppf(_LEVEL, freedom)
        < spread_of_lengths
        < chi2.isf(_LEVEL, freedom)
    )

    # The excess kurtosis of n normal numbers has the variance 24/n.
    excess_kurtosis = np.mean(entries**4, axis=(1, 2)) / squares**2 - 3
    kurtosis_deviation = np.sqrt(24 / entry_count / count)
    are_normal = abs(excess_kurtosis.mean()) < deviations * kurtosis_deviation

    directions = (
        entries.reshape(count, -1) / np.sqrt(entry_count * squares)[:, None]
    )
    cosines = (directions @ directions.T)[np.triu_indices(count, 1)]
    max_mean = deviations / np.sqrt(entry_count * len(cosines))
    max_cosine = _MAX_COSINE_DEVIATIONS / np.sqrt(entry_count)
    have_no_common_direction = (
        abs(cosines.mean()) < max_mean and np.abs(cosines).max() < max_cosine
    )
    return bool(
        blocks_agree
        and lengths_agree
        and are_normal
        and have_no_common_direction
    )


def median_norm(
    answers: Sequence[ReadableReply], before: Vector | None, *, noisy: bool
) -> float:
    """The median norm of the updates in some answers that moved the model.

    Args:
        answers: the answers of clients.
        before: the model to subtract from an answer; ``None`` if answers are updates.
        noisy: whether they are noise, see `are_noise`.

    Raises:
        ValueError: if the updates are the clients' own noise, or all are 0.
    """
    if noisy:
        raise ValueError(
            "Expected updates, but what clients answer looks like noise of their own, which"
            " says nothing about the norm of an update: let clients answer with canaries"
            " (clients=… and canary_mod), or pass canary_norm, the norm without the noise."
        )
    lengths = [norm(answer.vector, before) for answer in answers]
    positive = [length for length in lengths if length > 0]
    if not positive:
        raise ValueError(
            "Expected clients that moved the model, but none of them did."
        )
    return statistics.median(positive)
