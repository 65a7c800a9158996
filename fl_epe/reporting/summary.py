"""A record in numbers: what ``report.json`` holds and every report shows.

`summarize` computes everything once. Infinite numbers become ``None`` in `RunSummary.to_dict`, as
JSON cannot hold them.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    STATISTICS,
    AuditRecord,
    EpsilonEstimate,
    GaussianFit,
    NotMeasured,
    Scores,
    View,
    average_case_client,
    divergence,
    epsilon_from_record,
    epsilon_of,
    expected_score_fit,
    gaussian_by_group,
    gaussian_test,
    installed_versions,
    others_share,
    scores_for_claim,
    secret_rounds,
    seen_by,
    unknown_rounds_estimate,
    wider_than_known,
)
from fl_epe.auditing.bounds import all_bounds, lower_bound, method_by_design
from fl_epe.reporting.summary_parts import AnalyticalSummary, MetricsSummary, analytical, metrics_of
from fl_epe.reporting.summary_types import (
    Part,
    RunSummary,
    SideSummary,
    StatisticSummary,
    Status,
    Unmeasured,
)
from fl_epe.reporting.verdict import chosen_method, with_claims

# The lower bound of the paper's rows; it is not valid.
PAPER_METHOD = "jeffreys"

_PAPER = {"final": "model", "all": "maximum"}


def summarize(
    record: AuditRecord, delta: float | None = None, confidence: float = 0.95
) -> RunSummary:
    """Every number of the report, from the record alone.

    Args:
        record: the audit record of a run.
        delta: target δ; the record's by default.
        confidence: of the intervals (two-sided) and of the bounds (one-sided).
    """
    record = record.in_order()
    delta = record.delta if delta is None else delta
    showed, made = record.findings, record.provenance
    final = _side(seen_by(record, FINAL_MODEL), delta, confidence)
    every_round = _side(seen_by(record, EVERY_ROUND), delta, confidence)
    status, reasons = _status(divergence(record), final, every_round, showed.step_faults)
    if status == "ok" and showed.doubts:
        status, reasons = "doubtful", showed.doubts
    shares = others_share(record)[record.presence.any(axis=1)]
    places = record.rounds * record.mechanism.cohort_size
    heaviest, canary = showed.heaviest_share, showed.heaviest_canary_share
    made_by = {"started": made.started, "ended": made.ended, "commands": list(made.commands)}
    summary = RunSummary(
        status=status,
        reasons=reasons,
        task=record.design.task,
        delta=delta,
        confidence=confidence,
        dim=record.dim,
        rounds=record.rounds,
        num_canaries=record.num_canaries,
        unobserved=record.unobserved.count,
        participation=record.mechanism.participation,
        noise_multiplier=record.mechanism.noise_multiplier,
        cohort_size=record.mechanism.cohort_size,
        canary_share=float(record.presence.sum() / places) if places > 0 else None,
        analytical=analytical(record, delta),
        final=final,
        every_round=every_round,
        metrics=metrics_of(record),
        idle_rounds=int((record.norms.means == 0).sum()),
        faults=made.faults,
        plan=showed.plan,
        lost_count_as_zero=record.design.canaries_come_from is None,  # else the strategy says
        versions=made.versions,
        others_share=float(shares.mean()) if len(shares) else 0.0,
        others_out=record.norms.sums is not None,
        stopped=_stopped(record),
        fault_counts=made.fault_counts,
        run={name: value for name, value in made_by.items() if value},
        heavier=heaviest / canary if heaviest and canary else None,
        settings=record.design.to_settings(),
    )
    return with_claims(record, summary)


def summarize_unmeasured(
    reason: str,
    *,
    delta: float,
    config: Mapping[str, Any] | None = None,
    faults: Sequence[str] = (),
    fault_counts: Mapping[str, int] | None = None,
) -> RunSummary:
    """The summary of a run that left no record, as the audit saw no model that it could read.

    Args:
        reason: why nothing was measured, in a sentence.
        delta: target δ.
        config: settings of the run, as JSON values; a ``plan`` among them is shown.
        faults: what went wrong, in sentences.
        fault_counts: how often each kind of fault happened.
    """
    config, nothing = config or {}, Unmeasured(reason.strip().rstrip("."))
    no_theorem = AnalyticalSummary(
        epsilon=None,
        adjacency="any",
        assumption="the run left no record",
        client_participations=config.get("client_participations"),
        caveat=config.get("caveat"),
    )
    return RunSummary(
        status="not measured",
        reasons=(nothing.reason,),
        task=config.get("task"),
        delta=delta,
        confidence=0.95,
        analytical=no_theorem,
        final=SideSummary(nothing, nothing, nothing),
        every_round=SideSummary(nothing, nothing),
        metrics=MetricsSummary(),
        versions=installed_versions(),
        noise_multiplier=config.get("noise_multiplier"),
        faults=tuple(faults),
        plan=tuple(config.get("plan", ())),
        fault_counts=dict(fault_counts or {}),
        settings=dict(config),
    )


def _status(
    diverged: tuple[str, ...], final: SideSummary, every_round: SideSummary, faults: tuple[str, ...]
) -> tuple[Status, tuple[str, ...]]:
    """A run is measured if both headlines are."""
    missing = [
        side.headline.reason
        for side in (final, every_round)
        if isinstance(side.headline, Unmeasured)
    ]
    reasons = tuple(dict.fromkeys([*diverged, *missing, *faults]))
    status: Status = "not measured" if missing else "faulty" if faults else "ok"
    return ("diverged" if diverged else status), reasons


def _stopped(record: AuditRecord) -> dict[str, Any] | None:
    if (found := record.findings.stopped) is None:
        return None
    return {
        "after": found.after,
        **{
            name: getattr(found.estimate, name)
            for name in ("epsilon", "low", "high", "delta", "confidence", "method")
        },
        "rule": str(record.design.stop_when),
        "rounds": record.design.num_rounds,
    }


def _raw(view: View, delta: float, confidence: float) -> EpsilonEstimate | None:
    """The headline with all canaries left in; ``None`` if the headline is that."""
    record, adversary = view.record, view.adversary
    taken_out = record.norms.sums if adversary.sees == "all" else record.norms.part
    if not np.any(taken_out):
        return None
    return epsilon_from_record(
        record, delta, leave_one_out=False, adversary=adversary, confidence=confidence
    )


def _side(view: View, delta: float, confidence: float) -> SideSummary:
    record, sees = view.record, view.adversary.sees
    paper = _measured(view, _PAPER[sees], delta, confidence, paper=True)
    model = _measured(view, "model", delta, confidence) if sees == "final" else None
    headline = _measured(view, None, delta, confidence)
    if isinstance(headline, Unmeasured):
        return SideSummary(headline, paper, model)
    fit = client = unknown = full = known = mean_score = None
    if record.signal_known() and (sees == "all" or record.mechanism.server.linear):
        fit = expected_score_fit(view, delta, confidence=confidence)
        client = average_case_client(view, delta, confidence=confidence)
        if sees == "all":
            unknown = unknown_rounds_estimate(view, fit) if secret_rounds(record) else None
            full = _full_knowledge(record, delta, confidence)
    bounds = all_bounds(headline.scores, delta, confidence, coins=_coins(record))
    # Where expected scores are equal the mean score says it all; and where they do not explain how
    # wide the scores are, its estimate, which says so.
    if client is not None and not client.equal and not wider_than_known(headline.scores):
        mean_score = headline.estimate
        headline = dataclasses.replace(headline, estimate=client.known)
    sampled = record.mechanism.participation == "poisson"
    if sampled and unknown is not None and record.mechanism.canary_participations < record.rounds:
        known = headline.estimate
        headline, bounds = _claimed(record, headline, unknown, delta, confidence)
    return SideSummary(
        headline=headline,
        paper=paper,
        model=model,
        bounds=bounds,
        expected_scores=fit,
        unknown_rounds=unknown,
        known_rounds=known,
        full_knowledge=full,
        raw=_raw(view, delta, confidence),
        average_case_client=client,
        mean_score=mean_score,
    )


def _full_knowledge(
    record: AuditRecord, delta: float, confidence: float
) -> StatisticSummary | None:
    """For an adversary who also knows the real clients' sum, if that was recorded."""
    others_known = record.observed.residuals is not None and record.norms.sums is not None
    if not others_known or not record.mechanism.sum_noise_multiplier:
        return None
    scores = seen_by(record, STATISTICS["full-knowledge"]).scores()
    method = method_by_design(scores, delta, confidence)
    return _statistic(scores, delta, confidence, method)


def _claimed(
    record: AuditRecord,
    part: StatisticSummary,
    unknown: EpsilonEstimate,
    delta: float,
    confidence: float,
) -> tuple[StatisticSummary, dict[str, float]]:
    """The headline and all bounds for the adversary of privacy accounting, of unknown rounds."""
    scores = scores_for_claim(record)
    method = chosen_method(record, scores, delta, confidence, coins=False)
    bounds = all_bounds(scores, delta, confidence, coins=False)
    lower = bounds.get(method) if method else None
    name = None if lower is None else method
    return dataclasses.replace(part, estimate=unknown, lower_bound=lower, bound_method=name), bounds


def _measured(
    view: View, statistic: str | None, delta: float, confidence: float, *, paper: bool = False
) -> Part:
    """The results of a statistic, or why the record has none; never an ε that is not a number."""
    record = view.record
    try:
        scores = view.scores(statistic)
        if not scores.standard_null and scores.unobserved is None:
            count = record.unobserved.count
            found = "no canary was" if count == 0 else f"only {count} canary was"
            return Unmeasured(f"{found} left out for comparison; this statistic needs at least 2")
        method = (
            PAPER_METHOD
            if paper
            else chosen_method(record, scores, delta, confidence, coins=_coins(record))
        )
        part = _statistic(scores, delta, confidence, method, "fitted" if paper else "known")
    except NotMeasured as error:
        return Unmeasured(str(error))
    if math.isnan(part.estimate.epsilon):
        return Unmeasured(f"the estimate from {len(scores.observed)} scores is not a number")
    return dataclasses.replace(part, gaussian_by_participations=_gaussians(record, scores))


def _statistic(
    scores: Scores, delta: float, confidence: float, method: str | None, variance: str = "known"
) -> StatisticSummary:
    method, lower = method if scores.boundable else None, None
    if method is not None:
        lower = lower_bound(scores, delta, confidence=confidence, method=method)
    return StatisticSummary(
        scores=scores,
        estimate=epsilon_of(scores, delta, variance, confidence),
        lower_bound=lower,
        bound_method=method,
        gaussian=gaussian_test(scores.observed),
    )


def _gaussians(record: AuditRecord, scores: Scores) -> dict[int, GaussianFit]:
    counts = record.presence.sum(axis=0)
    if len(scores.observed) != len(counts):  # those that never took part are left out
        counts = counts[counts > 0]
    return gaussian_by_group(scores.observed, counts)


def _coins(record: AuditRecord) -> bool:
    """Whether coins decided who took part, and no canary has been dropped since."""
    return record.mechanism.inclusion == "coin" and bool(record.presence.any(axis=0).all())
