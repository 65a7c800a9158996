"""The clients' replies: what is in them, how long their updates are, and what kind they are."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np
import scipy
from flwr.app import ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from fl_epe.flower.layout import Layout
from fl_epe.flower.message_records import read_only, records_of
from fl_epe.flower.round_state import RoundState
from fl_epe.flower.settings import ReplyKind
from fl_epe.flower.wrapped import Wrapped

_MOST_READ = 9  # real updates, whose median norm stands for all
_ENTRIES = 1 << 14  # of an update, from which its norm is estimated
_LEAST_OF_ARRAY = 256
_DOMINANT, _LEAST_COMPARED = 4, 3  # times the median norm, among so many updates
_NEAR = 0.25
_BLOCKS, _SIZE = 64, 256  # of the entries that are looked at, for noise
_LEAST = 256  # entries
_RARE = 1e-3  # noise is taken for something else about so often

Vector = NDArray[np.floating]


def readable(replies: Sequence[Message]) -> list[Message]:
    """Replies without an error."""
    return [reply for reply in replies if not reply.has_error()]


def weights(replies: Sequence[Message], key: str) -> list[float]:
    """The weight of each reply in an average; 1 where it does not say."""
    found = []
    for reply in replies:
        metrics = next(iter(records_of(reply.content, MetricRecord).values()), MetricRecord())
        value = metrics.get(key, 1)
        found.append(1.0 if isinstance(value, list) else float(value))
    return found


def model_record(reply: Message, layout: Layout, preferred: str = "arrays") -> tuple[str, Vector]:
    """The name of the arrays in a reply that fit the model, and their content as one vector.

    Args:
        reply: may hold other arrays besides.
        layout: of the model.
        preferred: the name that counts where several fit.

    Raises:
        ValueError: if none fits, or several do of which none has that name.
    """
    fits: dict[str, Vector] = {}
    reasons = []
    for name, arrays in records_of(reply.content, ArrayRecord).items():
        try:
            fits[name] = layout.flatten(arrays)
        except ValueError as error:
            reasons.append(str(error))
    if preferred in fits:
        return preferred, fits[preferred]
    if len(fits) != 1:
        names = list(records_of(reply.content, ArrayRecord))
        raise ValueError(
            f"Expected one ArrayRecord like the model in a reply, got {len(fits)} of {names}."
            f" {' '.join(reasons[:1])}".rstrip()
        )
    return next(iter(fits.items()))


@dataclasses.dataclass(frozen=True)
class Answer:
    """A real reply that can be read.

    Attributes:
        reply: as it came.
        name: of its arrays.
        vector: they, shape ``(dim,)``, finite.
    """

    reply: Message
    name: str
    vector: Vector


def some_answers(
    replies: Sequence[Message], state: RoundState, preferred: str, rng: np.random.Generator
) -> list[Answer]:
    """At most nine of the replies, drawn at random among those that fit the model and are finite.

    What is wrong with the others that were looked at is noted in ``state.unreadable``.

    Raises:
        ValueError: if there is none.
    """
    found: list[Answer] = []
    for i in rng.permutation(len(replies)):
        reply, node = replies[i], replies[i].metadata.src_node_id
        try:
            name, vector = model_record(reply, state.layout, preferred)
        except ValueError as error:
            state.unreadable.append(f"node {node}: {error}")
            continue
        if not np.isfinite(vector).all():
            state.unreadable.append(f"node {node} answered NaN or infinite entries")
            continue
        found.append(Answer(reply, name, vector))
        if len(found) == _MOST_READ:
            break
    if not found:
        raise ValueError(f"Expected a reply that can be read: {state.unreadable[0]}")
    return found


def _norms_of(
    replies: Sequence[Message],
    state: RoundState,
    preferred: str,
    kind: ReplyKind | None,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """About the norm of each update, from some entries of each array; NaN where none fits."""
    layout, offset = state.layout, 0
    pieces = list[tuple[int, slice, float, NDArray[np.floating] | float]]()
    for place, (shape, moved) in enumerate(zip(layout.shapes, layout.moved, strict=True)):
        size = math.prod(shape)
        if moved and size:
            count = min(size, max(_LEAST_OF_ARRAY, size * _ENTRIES // layout.dim))
            start = int(rng.integers(size - count + 1))
            old = state.before[offset + start :][:count] if kind == "model" else 0.0
            pieces.append((place, slice(start, start + count), size / count, old))
            offset += size

    def norm_of(reply: Message) -> float:
        records = records_of(reply.content, ArrayRecord)
        try:
            arrays = records[preferred] if preferred in records else next(iter(records.values()))
            known = layout.names if arrays.keys() <= set(layout.names) else list(arrays)
            total = 0.0
            for place, part, weight, old in pieces:
                entries = read_only(arrays[known[place]]).reshape(-1)[part]
                change = np.asarray(entries - old, np.float64)
                total += weight * float(change @ change)
            return math.sqrt(total)
        except (LookupError, ValueError, TypeError, StopIteration):
            return math.nan

    return np.array([norm_of(reply) for reply in replies])


def dominant_updates(
    wrapped: Wrapped,
    state: RoundState,
    real: Sequence[Message],
    kind: ReplyKind | None,
    rng: np.random.Generator,
) -> list[str]:
    """Updates that are most of the energy of the round's updates, in sentences."""
    norms = _norms_of(real, state, wrapped.arrays_key(), kind, rng)
    if wrapped.clips_on_server:
        norms = np.minimum(norms, state.clip_norm)
    known = np.isfinite(norms)
    if known.sum() < _LEAST_COMPARED:
        return []
    energies = (norms * np.array(weights(real, wrapped.weighted_by()))) ** 2
    typical, whole = float(np.median(norms[known])), float(energies[known].sum())
    dominant = known & (norms > _DOMINANT * typical)
    if energies[dominant].sum() <= whole / 2:
        return []
    return [
        f"node {real[i].metadata.src_node_id}: its update is {norms[i] / typical:.0f} times"
        f" as long as the median one, and {energies[i] / whole:.0%} of the energy of all"
        for i in np.flatnonzero(dominant).tolist()
    ]


def kind_of_replies(
    answers: Sequence[NDArray[np.floating]], before: NDArray[np.floating]
) -> ReplyKind | None:
    """What the replies are, from how much of the global model is in them; ``None`` if not clear.

    A trained model is the old one and an update: its share of the old one is 1 plus the update's
    own. That of a difference is the update's own, near 0. Where the model is 0 both are the same,
    and "update" is as good an answer as "model".

    Args:
        answers: the clients' answers, each of shape ``(dim,)``, those that are finite.
        before: the global model that they were sent, of shape ``(dim,)``.
    """
    start = before.astype(np.float64)
    energy = float(start @ start)
    if energy == 0:
        return "update"
    share = statistics.median(float(answer @ start) / energy for answer in answers)
    if abs(share) < _NEAR:
        return "update"
    return "model" if abs(share - 1) < _NEAR else None


def are_noise(
    answers: Sequence[NDArray[np.floating]], before: NDArray[np.floating] | None = None
) -> bool:
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
    starts = np.linspace(0, dim - size, blocks).astype(np.int64)
    places = starts[:, None] + np.arange(size)
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
