"""Detects nodes whose updates dominate the aggregate, and so hide the other nodes' updates.

The sender of such an update can subtract it, so that ε of the other clients against that
adversary is larger than the measured ε. Weighted updates are compared, in some of their
entries: in each round, and in the sum of each node's updates over the whole run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, Message

from fl_epe.checks import Floats, NamedArrays
from fl_epe.flower.layout import Layout, ReplyKind
from fl_epe.flower.replies import (
    as_shares,
    base_of,
    entries_of,
    kind_of_replies,
    weights,
)
from fl_epe.flower.seen_clients import ID_RANGE
from fl_epe.flower.wrapped import Wrapped
from fl_epe.seeding import generator

# The approximate number of entries of an update that are compared in a round.
_ROUND_ENTRIES = 1 << 12
# The number of these entries that are summed over the run.
_RUN_ENTRIES = 1024
# The largest number of nodes with such a sum. These are the nodes that move the model most.
_MAX_NODES = 64
# A stream of the audit's own random choices; the others are in `plan` and `sources`, where each
# but the first also depends on the round.
_ENTRIES_STREAM = 3
# The least share of the energy that a dominant contribution has. The scores of canaries double if
# its sender subtracts it.
_MIN_SHARE = 0.75
# The least ratio of its norm to the median norm of the others.
_MIN_NORM_RATIO = 10.0
# Nodes form one direction if their cosines with the sum are above the first value, and the norm
# of their sum is above this share of the sum of their norms.
_MIN_COSINE = 0.5
_MIN_ALIGNMENT = 0.9
# The number of nodes of a group that a message names.
_MAX_NAMED = 3


@dataclasses.dataclass(frozen=True)
class Dominant:
    """Nodes whose contributions have most of the energy of a sum.

    Attributes:
        nodes: one node, or several whose contributions have about the same direction.
        share: their share of the sum's energy: the sum of their components along the sum,
            divided by its norm.
        norm_ratio: the norm of their common contribution, divided by the median norm of the
            others'.
    """

    nodes: tuple[int, ...]
    share: float
    norm_ratio: float

    def __str__(self) -> str:
        """A text as "node 7 moved the model 64.1 times as far as the median other node, …"."""
        senders = f"node {self.nodes[0]}"
        if len(self.nodes) > 1:
            further = ", …" if len(self.nodes) > _MAX_NAMED else ""
            names = ", ".join(map(str, self.nodes[:_MAX_NAMED]))
            senders = (
                f"{len(self.nodes)} nodes with one direction ({names}{further})"
            )
        return (
            f"{senders} moved the model {self.norm_ratio:.3g} times as far as the median other"
            f" node, with {self.share:.0%} of the energy of all"
        )


def find_dominant(
    contributions: Mapping[int, Floats],
    noise: float = 0.0,
    num_nodes: int | None = None,
) -> Dominant | None:
    """The node, or the group of nodes, that has most of the energy; ``None`` if no node has.

    A node dominates if it has three quarters of the energy, and its contribution is more than
    ten times as long as the median of the others. A group of nodes whose contributions have
    almost the same direction dominates likewise, if it has at most half of the nodes: a
    direction that most nodes have in common is what they learn. Contributions of 0 are ignored,
    as they would lower the median norm.

    Args:
        contributions: the weighted contribution of each node by its id, each ``(entries,)``.
        noise: the standard deviation of the noise on each entry of the sum.
        num_nodes: the number of all nodes, if ``contributions`` has only those with the largest
            norms. Each further node counts with the smallest of these norms, as an upper bound.
    """
    active = {node: row for node, row in contributions.items() if row.any()}
    if len(active) < 2:
        return None
    nodes = list(active)
    rows = np.array(list(active.values()))
    norms = np.linalg.norm(rows, axis=1)
    total = rows.sum(axis=0)
    products = rows @ total
    energy = float(total @ total) + len(total) * noise**2
    further_nodes = max((num_nodes or 0) - len(contributions), 0)
    further_norms = np.full(further_nodes, norms.min())
    # The node with the largest component along the sum, which is its share of the energy.
    has_largest_share = np.arange(len(rows)) == np.argmax(products)
    is_aligned = products > _MIN_COSINE * norms * math.sqrt(energy)
    for chosen in (has_largest_share, is_aligned):
        other_norms = np.concatenate([norms[~chosen], further_norms])
        length = float(np.linalg.norm(rows[chosen].sum(axis=0)))
        share = float(products[chosen].sum()) / energy
        is_one_direction = length > _MIN_ALIGNMENT * norms[chosen].sum()
        is_minority = chosen.sum() <= len(other_norms)
        if share > _MIN_SHARE and is_one_direction and is_minority:
            norm_ratio = length / float(np.median(other_norms))
            if norm_ratio > _MIN_NORM_RATIO:
                dominant_nodes = tuple(
                    nodes[row] for row in np.flatnonzero(chosen)
                )
                return Dominant(dominant_nodes, min(share, 1.0), norm_ratio)
    return None


@dataclasses.dataclass(frozen=True)
class RoundUpdates:
    """Entries of the real clients' updates of a round, as the strategy averages them.

    Attributes:
        nodes: the nodes that sent them.
        contents: the ``id`` of each reply's content; it must outlive the use of these updates.
        weights: the weights of the replies in an average, shape ``(n,)``; their sum is 1.
        entries: the entries of the updates, clipped if the server clips, shape ``(n,
            entries)``.
        noise: the standard deviation of the noise that the strategy adds to each entry.
        kind: the kind of the replies.
    """

    nodes: Sequence[int]
    contents: Sequence[int]
    weights: Floats
    entries: Floats
    noise: float
    kind: ReplyKind = "model"

    @classmethod
    def of(
        cls,
        wrapped: Wrapped,
        layout: Layout,
        arrays: ArrayRecord,
        real: Sequence[Message],
        *,
        kind: ReplyKind | None,
        clip_norm: float = math.inf,
        entries: int = _ROUND_ENTRIES,
    ) -> RoundUpdates | None:
        """The updates in readable replies; ``None`` if the kind of the replies is not known.

        Args:
            wrapped: the strategy.
            layout: the layout of the model.
            arrays: the global model that was sent.
            real: the replies of real clients.
            kind: the kind of the replies; if ``None``, it is derived from them.
            clip_norm: the clip norm of the server, if it clips.
            entries: the approximate number of entries of an update that are compared.
        """
        # Every ``step``-th entry is compared.
        step = max(1, layout.dim // entries)
        before = layout.flatten(arrays, step)
        rows = entries_of(real, layout, wrapped.arrays_key(), step, len(before))
        is_readable = np.isfinite(rows).all(axis=1)
        updates = rows[is_readable]
        replies = [real[row] for row in np.flatnonzero(is_readable).tolist()]
        if not replies:
            return None
        if kind is None:
            # If the model is 0, replies of both kinds are equal.
            kind = "update"
            if before.any():
                kind = kind_of_replies(updates, before)
        if kind is None:
            return None
        base = base_of(kind, before)
        if base is not None:
            updates -= base
        if wrapped.clips_on_server:
            # The norms of whole updates are estimated from every ``step``-th entry.
            norms = math.sqrt(step) * np.linalg.norm(
                updates, axis=1, keepdims=True
            )
            updates *= np.minimum(
                1.0, clip_norm / np.maximum(norms, np.finfo(float).tiny)
            )
        # A client may send any number as its weight.
        finite_weights = np.clip(
            weights(replies, wrapped.weighted_by()),
            0.0,
            np.finfo(np.float32).max,
        )
        return cls(
            nodes=[reply.metadata.src_node_id for reply in replies],
            contents=[id(reply.content) for reply in replies],
            weights=as_shares(finite_weights),
            entries=updates,
            noise=wrapped.noise_std() or 0.0,
            kind=kind,
        )

    def dominant(self) -> Dominant | None:
        """The node, or the nodes with one direction, with most of the round's energy."""
        added = self.weights[:, None] * self.entries
        return find_dominant(
            dict(zip(self.nodes, added, strict=True)), self.noise
        )


class NodeContributions:
    """The contribution of each node over a run: some entries of the sum of its updates.

    It takes at most 64 times 8 KiB: after each round, the sums of the 64 nodes that moved the
    model most are kept. A node that is dropped starts again at 0.

    Args:
        seed: the seed of the choice of entries.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._sums: dict[int, Floats] = {}
        self._variance = 0.0  # the variance of the noise on each entry

    def add(
        self, updates: RoundUpdates, shares: Mapping[int, float] | None
    ) -> None:
        """Add the updates of a round.

        Args:
            updates: the updates of the real clients.
            shares: the shares of the replies in the released model, by the ``id`` of their
                content; ``None`` if they are not known.
        """
        weights = updates.weights
        if shares is not None:
            weights = np.array(
                [shares.get(content, 0.0) for content in updates.contents]
            )
        num_entries = updates.entries.shape[1]
        # The same entries in each round.
        order = generator(self._seed, _ENTRIES_STREAM).permutation(num_entries)
        added = weights[:, None] * updates.entries[:, order[:_RUN_ENTRIES]]
        for signed_id, row in zip(updates.nodes, added, strict=True):
            # A grid of the user's own may have negative ids; a checkpoint has none.
            node = signed_id % ID_RANGE
            self._sums[node] = self._sums.get(node, 0.0) + row
        norms = {
            node: float(np.linalg.norm(row)) for node, row in self._sums.items()
        }
        shortest_first = sorted(norms, key=norms.__getitem__)
        for node in shortest_first[:-_MAX_NODES]:
            del self._sums[node]
        self._variance += updates.noise**2

    def dominant(self, num_nodes: int) -> Dominant | None:
        """The nodes that dominate the sum of all updates; ``num_nodes`` nodes took part."""
        return find_dominant(self._sums, math.sqrt(self._variance), num_nodes)

    def state(self) -> NamedArrays:
        """The state as named arrays, for `restore`."""
        return {
            "ids": np.array(list(self._sums), np.uint64),
            "sums": np.array(list(self._sums.values())),
            "variance": np.array(self._variance),
        }

    def restore(self, state: NamedArrays) -> None:
        """Continue from a `state`."""
        self._sums = dict(
            zip(state["ids"].tolist(), state["sums"], strict=True)
        )
        self._variance = float(state["variance"])
