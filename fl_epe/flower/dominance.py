"""Which nodes move the model by so much more than all others that their updates hide the rest.

Whoever sent such an update can subtract it, so that ε of the other clients against that adversary
is larger than what is measured. Updates are compared after their weights, in some of their entries:
in each round, and in what each node added to the model over the whole run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, Message
from numpy.typing import NDArray

from fl_epe.auditing import FaultKind
from fl_epe.checks import Floats
from fl_epe.flower.arrays import Layout
from fl_epe.flower.replies import kind_of_replies, model_record, weights
from fl_epe.flower.state import RoundState, logger
from fl_epe.seeding import generator

if TYPE_CHECKING:
    from fl_epe.flower.audited_run import AuditedRun

ROUND_ENTRIES = 1 << 12  # of an update, about, that are compared in a round
RUN_ENTRIES = 1024  # of them, that are kept over the run
_MOST_NODES = 64  # whose entries are kept: those that move the model most
_SAMPLED = 3  # stream of an audit's own choices, as those of its sources
_MOST = 0.75  # of the energy: without it the scores double
_TIMES = 10.0  # the median of the others
_SAME = 0.5  # cosine with the sum, of nodes that may have one direction
_ALIGNED = 0.9  # of their norms, that the norm of their sum is
_NAMED = 3  # nodes of a group


@dataclasses.dataclass(frozen=True)
class Dominant:
    """Nodes whose contributions have most of the energy of a sum.

    Attributes:
        rows: of the contributions: one, or several with about the same direction.
        share: of the sum's energy, as far as it lies along the sum.
        times: how many times the median norm of the others' contributions theirs together have.
    """

    rows: tuple[int, ...]
    share: float
    times: float


def find_dominant(
    contributions: Floats, whole: Floats | None = None, nodes: int = 0, noise: float = 0.0
) -> Dominant | None:
    """The one node, or the one direction, that has most of the energy; ``None`` without any.

    A node dominates if three quarters of the energy are its own, and its contribution is more
    than ten times as long as the median one of the others. So does a group of at most half of the
    nodes whose contributions have almost the same direction. A direction that most nodes have in
    common is what they learn, and none is named. Contributions of 0 are left out: idle nodes are no
    measure of length.

    Args:
        contributions: what each node added after its weight, shape ``(n, entries)``.
        whole: what all added together, shape ``(entries,)``; their sum by default.
        nodes: how many there are, if more than ``n``; the others' contributions are shorter.
        noise: standard deviation of what is added to each entry of the sum besides.
    """
    whole = contributions.sum(axis=0) if whole is None else whole
    norms = np.linalg.norm(contributions, axis=1)
    active = np.flatnonzero(norms > 0)
    energy = float(whole @ whole) + len(whole) * noise**2
    if len(active) < 2 or energy == 0:
        return None
    along = contributions @ whole / energy
    longest = int(np.argmax(along))
    aligned = active[along[active] * math.sqrt(energy) > _SAME * norms[active]]
    shorter = np.full(max(nodes - len(norms), 0), norms[active].min())
    for rows in (np.array([longest]), aligned):
        others = np.concatenate([np.delete(norms, rows), shorter])
        others = others[others > 0]
        length = float(np.linalg.norm(contributions[rows].sum(axis=0)))
        share, few = float(along[rows].sum()), len(rows) <= len(others)
        if few and share > _MOST and length > _ALIGNED * norms[rows].sum():
            times = length / float(np.median(others))
            if times > _TIMES:
                return Dominant(tuple(rows.tolist()), min(share, 1.0), times)
    return None


def compared_entries(layout: Layout, model: ArrayRecord | NDArray[np.floating]) -> Floats:
    """The entries of a model, or of its flat vector ``(dim,)``, that are compared in a round."""
    step = max(1, layout.dim // ROUND_ENTRIES)
    if isinstance(model, ArrayRecord):
        return layout.flatten(model, step).astype(np.float64)
    parts = [values[::step] for values in layout.split(model).values()]
    return np.concatenate(parts, dtype=np.float64)


@dataclasses.dataclass(frozen=True)
class RoundUpdates:
    """Entries of the real clients' updates of a round, as the strategy averages them.

    Attributes:
        nodes: that sent them.
        contents: the ``id`` of each reply's content.
        weights: of the replies in an average, shape ``(n,)``; their sum is 1.
        entries: of the updates, clipped if the server clips them, shape ``(n, entries)``.
    """

    nodes: Sequence[int]
    contents: Sequence[int]
    weights: Floats
    entries: Floats

    @classmethod
    def of(cls, run: AuditedRun, state: RoundState, real: Sequence[Message]) -> RoundUpdates | None:
        """Those of replies that can be read; ``None`` if it is not known what replies are."""
        wrapped, layout = run.wrapped, state.layout
        step = max(1, layout.dim // ROUND_ENTRIES)
        rows, replies = list[NDArray[np.floating]](), list[Message]()
        for reply in real:
            with contextlib.suppress(ValueError):
                row = model_record(reply, layout, wrapped.arrays_key(), step)[1]
                if np.isfinite(row).all():
                    rows.append(row)
                    replies.append(reply)
        if not rows:
            return None
        entries = np.array(rows, np.float64)
        before = layout.flatten(state.arrays, step)
        if np.any(before):
            kind = run.kind or kind_of_replies(rows, before)
            if kind is None:
                return None
            if kind == "model":
                entries -= before
        if wrapped.clips_on_server:
            norms = math.sqrt(step) * np.linalg.norm(entries, axis=1, keepdims=True)
            entries *= np.minimum(1.0, state.clip_norm / np.maximum(norms, np.finfo(float).tiny))
        given = np.nan_to_num(np.array(weights(replies, wrapped.weighted_by()), np.float64))
        given = np.maximum(given, 0.0)
        given = given / given.sum() if given.sum() > 0 else np.full(len(given), 1 / len(given))
        nodes = [reply.metadata.src_node_id for reply in replies]
        return cls(nodes, [id(reply.content) for reply in replies], given, entries)


def note_dominant(run: AuditedRun, state: RoundState, updates: RoundUpdates) -> None:
    """A node, or a group with one direction, that is most of a round's energy is a fault."""
    contributions = updates.weights[:, None] * updates.entries
    found = find_dominant(contributions, noise=run.wrapped.noise_std() or 0.0)
    if found is None:
        return
    text = (
        f"{_named([updates.nodes[row] for row in found.rows])} moved the model"
        f" {found.times:.3g} times as far as the median other node, with weights, and had"
        f" {found.share:.0%} of the energy of all"
    )
    run.fault(state.index, text, FaultKind.DOMINANT_UPDATE)
    if FaultKind.DOMINANT_UPDATE not in run.warned:
        run.warned.add(str(FaultKind.DOMINANT_UPDATE))
        logger.warning("Audit, round %d, an update hides the others: %s", state.index + 1, text)


class NodeContributions:
    """What each node added to the model over a run: some entries of the sum of its updates.

    Takes at most 64 times 8 KiB: of the nodes that moved the model most.

    Args:
        seed: of the entries that are kept.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._sums: dict[int, Floats] = {}
        self._others = np.zeros(0)

    def _kept(self, entries: NDArray[np.floating]) -> NDArray[np.floating]:
        """The entries that are kept, of those that are compared in a round: the last axis."""
        count = entries.shape[-1]
        places = generator(self._seed, _SAMPLED).permutation(count)[:RUN_ENTRIES]
        return entries[..., places]

    def add(self, updates: RoundUpdates, shares: Mapping[int, float] | None) -> None:
        """Take in a round.

        Args:
            updates: of the real clients.
            shares: of the replies in what was released, by the ``id`` of their content; ``None`` if
                they are not known.
        """
        entries = self._kept(updates.entries)
        if len(self._others) != entries.shape[1]:
            self._others = np.zeros(entries.shape[1])
        for node, content, weight, row in zip(
            updates.nodes, updates.contents, updates.weights, entries, strict=True
        ):
            share = weight if shares is None else shares.get(content, 0.0)
            added = share * row
            self._sums[node] = self._sums[node] + added if node in self._sums else added
        norms = {node: float(np.linalg.norm(added)) for node, added in self._sums.items()}
        for node in sorted(norms, key=norms.__getitem__, reverse=True)[_MOST_NODES:]:
            self._others = self._others + self._sums.pop(node)

    def dominant(
        self, moved: NDArray[np.floating] | None, nodes: int
    ) -> tuple[Dominant, str] | None:
        """Who dominates what the model moved, and their names; ``None`` if nobody does.

        Args:
            moved: the final model less the initial one, in the entries that are compared in a
                round; ``None`` if that is not the sum of contributions, which then stands for it.
            nodes: how many took part.
        """
        if not self._sums:
            return None
        contributions = np.array(list(self._sums.values()))
        if moved is None:
            whole = contributions.sum(axis=0) + self._others
        else:
            whole = self._kept(moved).astype(np.float64)
        found = find_dominant(contributions, whole, nodes)
        if found is None:
            return None
        names = list(self._sums)
        return found, _named([names[row] for row in found.rows])

    def state(self) -> dict[str, NDArray[Any]]:
        """Named arrays from which `restore` goes on."""
        sums = np.array(list(self._sums.values()))
        names = np.array([node % 2**64 for node in self._sums], np.uint64)
        return {"ids": names, "sums": sums, "others": self._others}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        self._sums = dict(zip(state["ids"].tolist(), state["sums"], strict=True))
        self._others = state["others"]


def _named(nodes: Sequence[int]) -> str:
    """Such as "node 7" or "12 nodes with one direction (7, 8, 9, …)"."""
    if len(nodes) == 1:
        return f"node {nodes[0]}"
    more = ", …" if len(nodes) > _NAMED else ""
    names = ", ".join(map(str, nodes[:_NAMED]))
    return f"{len(nodes)} nodes with one direction ({names}{more})"
