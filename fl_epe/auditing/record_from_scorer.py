"""The record of a run whose released vectors went through a `CanaryScorer`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.measured_null import MeasuredNull, NullTally
from fl_epe.auditing.other_canaries import measure_others
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
from fl_epe.mechanism import norm

Ids = NDArray[np.int64]

_LARGEST = 1e30  # a model beyond overflows in float32 where it is scored: as good as infinite


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
    null: NullTally | None = None,
) -> AuditRecord:
    """Score the final model, and collect all cosines and norms.

    The ``scorer`` has scored the released means as its series "mean", and where they are known
    "residual" and the model deltas, whose series is ``delta_series``. Of its canaries those of
    ``observed_ids`` took part; the others are unobserved. ``start`` and ``final`` are the initial
    and the final model; ``null`` followed further canaries; the other arguments are fields of
    `AuditRecord` and `Norms`.

    A run without rounds, without canaries that took part, or with a final model that is not finite
    has a record too. Norms of such a model, and cosines with it, are NaN.
    """
    known = norm(final) < _LARGEST
    at_the_end: dict[str, Floats] = {}
    if known:
        for name, statistic in (("final", "model"), ("displacement", "displacement")):
            vector = final if name == "final" else final - start
            dots, length = scorer.add(name, vector), norm(vector)
            if dots is not None and scorer.others and length > 0:
                scale = math.sqrt(len(final)) / length
                at_the_end[statistic] = scale * dots[scorer.canaries.count :]
    unobserved_ids = np.setdiff1d(np.arange(scorer.canaries.count), observed_ids)
    series = ("final", "displacement", delta_series, "residual")
    cosines = {name: scorer.cosines(name) for name in series if len(scorer.norms(name))}
    cosines["mean"] = scorer.cosines("mean")  # of no rows without a round
    if not known:
        unknown = np.full((1, scorer.canaries.count), np.nan)
        cosines |= {"final": unknown, "displacement": unknown}
    record = AuditRecord(
        dim=scorer.canaries.dim,
        delta=delta,
        observed=_of_side(cosines, observed_ids, delta_series),
        unobserved=_of_side(cosines, unobserved_ids, delta_series),
        presence=presence,
        norms=_norms(scorer, delta_norms, known),
        mechanism=mechanism,
        clients=clients,
        metrics=metrics,
        provenance=provenance,
        null=MeasuredNull() if null is None else null.finish(at_the_end),
    )
    return measure_others(record, scorer.canaries)


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


def _norms(scorer: CanaryScorer, delta_norms: Floats, known: bool) -> Norms:
    residuals = scorer.norms("residual")
    final, displacement = (
        float(scorer.norms(name)[-1]) if known else math.nan for name in ("final", "displacement")
    )
    return Norms(
        means=scorer.norms("mean"),
        deltas=delta_norms,
        final=final,
        displacement=displacement,
        residuals=residuals if len(residuals) else None,
    )
