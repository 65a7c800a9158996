"""The record of a run whose released vectors went through a `CanaryScorer`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.leave_one_out import measure_others
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.record_parts import CanaryCosines, Floats, Norms
from fl_epe.canaries import CanaryScorer
from fl_epe.mechanism import norm

Ids = NDArray[np.int64]

OTHERS = "others"
"""Name of released means without canaries, in the place of "mean"."""

_LARGEST = 1e30  # a model beyond overflows in float32 where it is scored: as good as infinite


def record_from_scorer(
    scorer: CanaryScorer,
    observed_ids: Ids,
    *,
    start: NDArray[np.floating],
    final: NDArray[np.floating],
    delta_norms: Floats,
    delta_series: str = "delta",
    released: str = "mean",
    **fields: Any,
) -> AuditRecord:
    """Score the final model, and collect all cosines and norms.

    The ``scorer`` has scored what was ``released``, means or (`OTHERS`) means without canaries, and
    where they are known "residual" and the model updates, whose series is ``delta_series`` and
    whose norms are ``delta_norms``. Of its canaries those of ``observed_ids`` took part; the others
    are unobserved. ``start`` and ``final`` are the initial and the final model; ``fields`` are the
    other fields of `AuditRecord`.

    A run without rounds, without canaries that took part, or with a final model that is not finite
    has a record too. Norms of such a model, and cosines with it, are NaN.
    """
    known = norm(final) < _LARGEST
    if known:
        scorer.add("final", final)
        scorer.add("displacement", final - start)
    unobserved_ids = np.setdiff1d(np.arange(scorer.canaries.count), observed_ids)
    series = ("final", "displacement", delta_series, "residual")
    cosines = {name: scorer.cosines(name) for name in series if len(scorer.norms(name))}
    cosines["mean"] = scorer.cosines(released)  # of no rows without a round
    if not known:
        unknown = np.full((1, scorer.canaries.count), np.nan)
        cosines |= {"final": unknown, "displacement": unknown}
    record = AuditRecord(
        dim=scorer.canaries.dim,
        observed=_of_side(cosines, observed_ids, delta_series),
        unobserved=_of_side(cosines, unobserved_ids, delta_series),
        norms=_norms(scorer, delta_norms, known, released),
        **fields,
    )
    record = measure_others(record, scorer.canaries)
    return _with_own(record) if released == OTHERS else record


def _with_own(record: AuditRecord) -> AuditRecord:
    """The record of means without canaries, with each canary's own part in its rounds.

    All other canaries are known, so that nothing of them is left: `Norms.sums` is 0.
    """
    norms, added = record.norms.means, record.mechanism.contributions
    if added is None:
        added = record.mechanism.clip_norms / record.mechanism.cohort_size
    dots, own = record.observed.means * norms[:, None], record.presence * added[:, None]
    lengths = np.sqrt(norms[:, None] ** 2 + 2 * own * dots + own**2)
    means = np.divide(dots + own, lengths, out=np.zeros_like(dots), where=lengths > 0)
    here = (norms > 0) | record.presence.any(axis=1)
    alone = np.where(here, np.hypot(norms, added), 0.0)
    scale = np.divide(record.norms.deltas, norms, out=np.zeros_like(norms), where=norms > 0)
    return dataclasses.replace(
        record,
        observed=dataclasses.replace(record.observed, means=means, deltas=means, sums=None),
        unobserved=dataclasses.replace(record.unobserved, sums=None),
        norms=dataclasses.replace(
            record.norms, means=alone, deltas=scale * alone, sums=np.zeros(record.rounds)
        ),
    )


def _of_side(cosines: dict[str, Floats], ids: Ids, delta_series: str) -> CanaryCosines:
    mine = {name: values[..., ids] for name, values in cosines.items()}
    return CanaryCosines(
        means=mine["mean"],
        final=mine["final"][-1],  # a record in the middle of the run scored others before
        displacement=mine["displacement"][-1],
        deltas=mine.get(delta_series),
        residuals=mine.get("residual"),
        ids=ids,
    )


def _norms(scorer: CanaryScorer, delta_norms: Floats, known: bool, released: str) -> Norms:
    residuals = scorer.norms("residual")
    final, displacement = (
        float(scorer.norms(name)[-1]) if known else math.nan for name in ("final", "displacement")
    )
    return Norms(
        means=scorer.norms(released),
        deltas=delta_norms,
        final=final,
        displacement=displacement,
        residuals=residuals if len(residuals) else None,
    )
