"""A record in numbers: what ``report.json`` holds and every report shows.

`summarize` computes everything once. Infinite numbers become ``None`` in `RunSummary.to_dict`, as
JSON cannot hold them.
"""

from __future__ import annotations

import math

import numpy as np

from fl_epe.accounting import UpperBound, analytical_epsilon, gaussian_epsilon
from fl_epe.auditing import (
    AuditRecord,
    EpsilonEstimate,
    Scores,
    ThreatModel,
    all_bounds,
    epsilon_from_record,
    epsilon_of,
    footprint_fit,
    gaussian_test,
    headline_method,
    lower_bound,
    others_share,
    scores_from_record,
    unknown_rounds_estimate,
    unknown_rounds_law,
)
from fl_epe.reporting.summary_types import (
    AnalyticalSummary,
    EveryRoundSummary,
    FinalSummary,
    MetricsSummary,
    RunSummary,
    StatisticSummary,
)

PAPER_METHOD = "jeffreys"
"""The lower bound of the paper's rows; it is not valid."""


def summarize(
    record: AuditRecord, delta: float | None = None, confidence: float = 0.95
) -> RunSummary:
    """Every number of the report, from the record alone.

    Args:
        record: the audit record of a run.
        delta: target δ; the record's by default.
        confidence: of the intervals (two-sided) and of the bounds (one-sided).
    """
    delta = record.delta if delta is None else delta
    return RunSummary(
        task=record.provenance.config.get("task"),
        delta=delta,
        confidence=confidence,
        dim=record.dim,
        rounds=record.rounds,
        num_canaries=record.num_canaries,
        unobserved=record.unobserved.count,
        participation=record.mechanism.participation,
        noise_multiplier=record.mechanism.noise_multiplier,
        cohort_size=record.mechanism.cohort_size,
        canary_share=float(record.presence.sum() / record.rounds / record.mechanism.cohort_size),
        analytical=_analytical(record, delta),
        final=_final(record, delta, confidence),
        every_round=_every_round(record, delta, confidence),
        metrics=_metrics(record),
        faults=tuple(record.provenance.faults),
        lost_count_as_zero="canaries_come_from"
        not in record.provenance.config,  # else the strategy says
        versions=record.provenance.versions,
        others_share=_others_share(record),
        others_out=record.norms.sums is not None,
    )


def _others_share(record: AuditRecord) -> float:
    """Mean share of the other canaries in the energy of the means, over rounds with canaries."""
    shares = others_share(record)[record.presence.any(axis=1)]
    return float(shares.mean()) if len(shares) else 0.0


def _raw(
    record: AuditRecord, delta: float, confidence: float, threat: ThreatModel
) -> EpsilonEstimate | None:
    """The headline with all canaries left in; ``None`` if the headline is that."""
    taken_out = record.norms.sums if threat == "all" else record.norms.part
    if taken_out is None:
        return None
    return epsilon_from_record(record, delta, threat=threat, confidence=confidence, raw=True)


def _analytical(record: AuditRecord, delta: float) -> AnalyticalSummary:
    known, (adjacency, reason) = _upper_bound(record, delta)
    return AnalyticalSummary(
        epsilon=known.epsilon if known else None,
        adjacency=known.adjacency if known else adjacency,
        assumption=known.assumption if known else reason,
        participations=record.mechanism.canary_participations,
        client_participations=record.provenance.config.get("client_participations"),
        largest_share=_largest_share(record),
        caveat=record.provenance.config.get("caveat"),
        canary_epsilon=_canary_epsilon(record, delta),
    )


def _upper_bound(record: AuditRecord, delta: float) -> tuple[UpperBound | None, tuple[str, str]]:
    """The analytical ε of the run, and the adjacency and reason to print if there is none."""
    if record.mechanism.noise_multiplier is None:
        return None, ("any", "the noise is not known")
    bound = analytical_epsilon(
        record.mechanism.participation,
        record.mechanism.noise_multiplier,
        delta,
        participations=_participations(record),
        sampling_rate=min(1.0, record.mechanism.canary_participations / record.rounds),
        rounds=record.rounds,
    )
    return bound, (
        "none",
        f"no tight bound is known for {record.mechanism.participation!r} schedules",
    )


def _participations(record: AuditRecord) -> int:
    """The most rounds in which a canary takes part."""
    if record.mechanism.participation in ("epochs", "poisson"):
        return math.ceil(record.mechanism.canary_participations)
    return int(record.presence.sum(axis=0).max())


def _largest_share(record: AuditRecord) -> float | None:
    """Largest share of a canary in a released mean, over the C/n of the noise's calibration."""
    expected = record.provenance.config.get("noise_is_for")
    if record.mechanism.contributions is None or not expected or not record.signal_known():
        return None
    return float(np.max(record.mechanism.contributions * expected / record.mechanism.clip_norms))


def _canary_epsilon(record: AuditRecord, delta: float) -> float | None:
    """Analytical ε of a canary that is not in the count that adapts the clip norm."""
    votes = record.provenance.config.get("canaries_vote", False)
    if (
        not record.mechanism.sum_noise_multiplier
        or record.mechanism.participation != "epochs"
        or votes
    ):
        return None
    return gaussian_epsilon(
        record.mechanism.sum_noise_multiplier,
        delta,
        math.ceil(record.mechanism.canary_participations),
    )


def _final(record: AuditRecord, delta: float, confidence: float) -> FinalSummary:
    """Cosines with θ_T − θ_0 (the headline) and, as in the paper, with θ_T."""
    scores = scores_from_record(record, "final", "displacement")
    model = scores_from_record(record, "final", "model")
    linear = record.mechanism.server.get("name") == "sgd" and record.norms.displacement > 0
    fits = linear and bool(record.presence.any()) and record.signal_known()
    return FinalSummary(
        displacement=_statistic(scores, delta, confidence),
        model=_statistic(model, delta, confidence),
        paper=_statistic(model, delta, confidence, PAPER_METHOD, variance="fitted"),
        bounds=all_bounds(scores, delta, confidence, _coins(record)),
        footprints=footprint_fit(record, delta, confidence=confidence, scores=scores)
        if fits
        else None,
        raw=_raw(record, delta, confidence, "final"),
    )


def _every_round(record: AuditRecord, delta: float, confidence: float) -> EveryRoundSummary:
    """Matched filter at the known rounds, and the paper's maximum over rounds.

    With fewer than two canaries that took part, only the maximum is computed.
    """
    paper = full = fit = unknown = None
    if record.unobserved.count >= 2:
        maximum = scores_from_record(record, "all", "maximum")
        paper = _statistic(maximum, delta, confidence, PAPER_METHOD)
    if record.presence.any(axis=0).sum() < 2:
        return EveryRoundSummary(None, paper)
    scores = scores_from_record(record, "all", "matched-filter")
    if record.signal_known():
        fit = footprint_fit(record, delta, threat="all", confidence=confidence, scores=scores)
        if unknown_rounds_law(record):
            unknown = unknown_rounds_estimate(record, fit)
        if record.observed.residuals is not None and record.mechanism.sum_noise_multiplier:
            knowing = scores_from_record(record, "all", "full-knowledge")
            full = _statistic(knowing, delta, confidence)
    return EveryRoundSummary(
        matched_filter=_statistic(scores, delta, confidence),
        paper=paper,
        bounds=all_bounds(scores, delta, confidence, _coins(record)),
        footprints=fit,
        unknown_rounds=unknown,
        full_knowledge=full,
        raw=_raw(record, delta, confidence, "all"),
    )


def _statistic(
    scores: Scores,
    delta: float,
    confidence: float,
    bound_method: str | None = None,
    variance: str = "known",
) -> StatisticSummary:
    """The results of one statistic; its bound is `headline_method`'s unless one is given."""
    method = bound_method if scores.boundable else None
    if scores.boundable and method is None:
        count = None if scores.dim is not None else len(scores.both()[1])
        method = headline_method(len(scores.observed), count, delta, confidence=confidence)
    lower = None
    if method is not None:
        lower = lower_bound(scores, delta, confidence=confidence, method=method)
    return StatisticSummary(
        scores=scores,
        estimate=epsilon_of(scores, delta, variance, confidence),
        lower_bound=lower,
        bound_method=method,
        score_mean=float(scores.observed.mean()),
        score_std=float(scores.observed.std(ddof=1)),
        gaussian=gaussian_test(scores.observed),
    )


def _coins(record: AuditRecord) -> bool:
    """Whether coins decided who took part, and no canary has been dropped since."""
    return record.mechanism.inclusion == "coin" and bool(record.presence.any(axis=0).all())


def _metrics(record: AuditRecord) -> MetricsSummary:
    return MetricsSummary(
        clip_norm=float(record.mechanism.clip_norms[-1]),
        absent=0 if record.clients.absent is None else int(record.clients.absent.sum()),
        accuracy=_last(record, "eval_accuracy"),
        loss=_last(record, "eval_loss"),
    )


def _last(record: AuditRecord, name: str) -> float | None:
    values = record.metrics.get(name, np.empty(0))
    return float(values[-1]) if len(values) else None
