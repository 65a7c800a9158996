"""Noise that clients add themselves: what they promise, or what most of them seem to add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Message

from fl_epe.auditing import FaultKind
from fl_epe.checks import NamedArrays
from fl_epe.flower.dominance import RoundUpdates
from fl_epe.flower.layout import Layout
from fl_epe.flower.replies import MOST_READ, are_noise, base_of, model_record
from fl_epe.flower.state import RoundState, logger
from fl_epe.noise import LocalDp, PromisedNoise

if TYPE_CHECKING:
    from fl_epe.flower.audited_run import AuditedRun

_LITTLE = (
    0.7  # of the median node's noise: less is not by chance, nor for want of an update
)
_FEWEST = 5  # nodes of which most can be told from one


def announce_promise(promise: LocalDp) -> None:
    """Log what the numbers of a promise amount to, before the first round."""
    log = logger.warning if promise.fault() else logger.info
    log("Audit: %s", promise.sentence())


def check_replies(run: AuditedRun, state: RoundState, real: Sequence[Message]) -> None:
    """Test each node's first reply of a round; the first failure of a node is logged.

    Replies that cannot be read are left out: they are faults elsewhere. Without a promise nodes are
    compared with each other.
    """
    layout = run.whole
    if layout is None or state.updates is None:
        return
    if run.settings.client_noise is None:
        _compare_nodes(run, state, state.updates)
        return
    before = layout.flatten(state.arrays)
    promised = run.promised = run.promised or _begin(run, layout)
    known = promised.faults
    base = base_of(state.updates.kind, before)
    readable = set(state.updates.contents)
    replies = {
        r.metadata.src_node_id: r for r in reversed(real) if id(r.content) in readable
    }
    for node in sorted(replies):
        _, reply = model_record(replies[node], layout, run.wrapped.arrays_key())
        if np.isfinite(reply).all():
            if base is not None:
                reply -= base  # a vector of its own
            promised.add(node, reply)
    for who, text in promised.faults.items():
        if who not in known:
            run.faults.add(state.index, FaultKind.NOISE_NOT_PROMISED, text)
            logger.warning(
                "Audit, round %d, noise is not as promised: %s", state.index + 1, text
            )


def _compare_nodes(run: AuditedRun, state: RoundState, updates: RoundUpdates) -> None:
    for node, times in less_noise(updates).items():
        if node not in run.less_noise:
            run.less_noise.add(node)
            text = (
                f"node {node}: {times:.2g} times the noise that other nodes seem to add"
            )
            run.faults.add(state.index, FaultKind.NOISE_UNLIKE_OTHERS, text)
            logger.warning("Audit, round %d, %s", state.index + 1, text)


def less_noise(updates: RoundUpdates) -> dict[int, float]:
    """Nodes with less noise than the others, whose updates look like noise and nothing else.

    Args:
        updates: of a round.

    Returns:
        By node its noise over that of the median node, below 0.7. Nothing where the others' updates
        do not look like noise, or of fewer than five nodes.
    """
    sizes = np.sqrt(np.mean(updates.entries**2, axis=1))
    if len(sizes) < _FEWEST:
        return {}
    times = sizes / max(float(np.median(sizes)), np.finfo(float).tiny)
    little = times < _LITTLE
    if not little.any() or not are_noise(list(updates.entries[~little][:MOST_READ])):
        return {}
    return {
        updates.nodes[row]: float(times[row]) for row in np.flatnonzero(little).tolist()
    }


def _begin(run: AuditedRun, layout: Layout) -> PromisedNoise:
    promise = run.settings.client_noise
    assert promise is not None  # noqa: S101 - else nothing is tested
    sizes = {name: math.prod(layout.shapes[name]) for name in layout.moved}
    return PromisedNoise(promise, sizes, seed=run.seed)


def restore_promise(run: AuditedRun, layout: Layout, state: NamedArrays) -> None:
    """Go on from the state of an audit that was saved."""
    if state:
        run.promised = _begin(run, layout)
        run.promised.restore(state)


def promise_findings(run: AuditedRun) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is seen of the noise of clients, in sentences, and what is wrong with it."""
    promise = run.settings.client_noise
    if promise is None:
        return (), ()
    sentences, faults = ((), ()) if run.promised is None else run.promised.findings()
    amount = f"Noise of clients: {promise.sentence()}."
    return (amount, *sentences), (*filter(None, [promise.fault()]), *faults)
