"""The record of a run whose released vectors went through a `CanaryScorer`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.record_parts import (
    CanaryCosines,
    ClientLog,
    Floats,
    Mechanism,
    Norms,
    Provenance,
)
from fl_epe.canaries import CanaryScorer

Ids = NDArray[np.int64]


def record_from_scorer(
    scorer: CanaryScorer,
    observed_ids: Ids,
    *,
    start: NDArray[np.floating],
    final: NDArray[np.floating],
    delta_norms: Floats,
    delta_series: str = "delta",
    presence: NDArray[np.bool_],
    delta: float,
    mechanism: Mechanism,
    clients: ClientLog,
    metrics: dict[str, Floats],
    provenance: Provenance,
) -> AuditRecord:
    """Score the final model, and collect all cosines and norms.

    The ``scorer`` has scored the released means as its series "mean", and where they are known
    "residual" and the model deltas, whose series is ``delta_series``. Of its canaries those of
    ``observed_ids`` took part; the others are unobserved. ``start`` and ``final`` are the initial
    and the final model; the other arguments are fields of `AuditRecord` and `Norms`.
    """
    scorer.add("final", final)
    scorer.add("displacement", final - start)
    unobserved_ids = np.setdiff1d(np.arange(scorer.canaries.count), observed_ids)
    return AuditRecord(
        dim=scorer.canaries.dim,
        delta=delta,
        observed=_cosines(scorer, observed_ids, delta_series),
        unobserved=_cosines(scorer, unobserved_ids, delta_series),
        presence=presence,
        norms=_norms(scorer, delta_norms),
        mechanism=mechanism,
        clients=clients,
        metrics=metrics,
        provenance=provenance,
    )


def _cosines(scorer: CanaryScorer, ids: Ids, delta_series: str) -> CanaryCosines:
    def of(series: str) -> Floats:
        return scorer.cosines(series)[..., ids]

    return CanaryCosines(
        means=of("mean"),
        final=of("final")[-1],  # a record in the middle of the run scored others before
        displacement=of("displacement")[-1],
        deltas=of(delta_series) if len(scorer.norms(delta_series)) else None,
        residuals=of("residual") if len(scorer.norms("residual")) else None,
        ids=ids,
    )


def _norms(scorer: CanaryScorer, delta_norms: Floats) -> Norms:
    residuals = scorer.norms("residual")
    return Norms(
        means=scorer.norms("mean"),
        deltas=delta_norms,
        final=float(scorer.norms("final")[-1]),
        displacement=float(scorer.norms("displacement")[-1]),
        residuals=residuals if len(residuals) else None,
    )
