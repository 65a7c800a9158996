"""A record in numbers: what `report.json` holds and every report shows.

`summarize` computes everything once; the pages, tables and pictures read its attributes, and
`RunSummary.to_dict` is what is written to ``report.json``. An infinite number is a number here and
``None`` in the file, as JSON has no word for it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from fl_epe.accounting import UpperBound, analytical_epsilon, gaussian_epsilon
from fl_epe.auditing import (
    AuditRecord,
    BoundRow,
    EpsilonEstimate,
    FootprintFit,
    GaussianFit,
    Scores,
    all_bounds,
    epsilon_of,
    finite,
    footprint_fit,
    gaussian_test,
    lower_bound,
    scores_from_record,
    secret_law,
    secret_rounds_estimate,
)

BOUND_METHOD = "clopper-pearson"
"""The lower bound of the report: valid, and free of assumptions about the scores."""
PAPER_METHOD = "jeffreys"
"""The lower bound of the paper's rows; it does not keep its confidence."""

JSON = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class StatisticSummary:
    """What one statistic says.

    Attributes:
        scores: the statistic of every canary.
        estimate: ε with its interval.
        lower_bound: on ε; infinite where every finite ε is ruled out, ``None`` where there are
            neither unobserved scores nor an exact null.
        bound_method: of the lower bound.
        score_mean, score_std: of the observed scores.
        gaussian: test that they are Gaussian; ``None`` where there are too few.
    """

    scores: Scores
    estimate: EpsilonEstimate
    lower_bound: float | None
    bound_method: str
    score_mean: float
    score_std: float
    gaussian: GaussianFit | None

    def to_dict(self) -> JSON:
        """As JSON values."""
        test = self.gaussian
        return {
            **_estimate_dict(self.estimate),
            "lower_bound": finite(self.lower_bound),
            "lower_bound_unbounded": self.lower_bound == math.inf,
            "bound_method": self.bound_method,
            "score_mean": self.score_mean,
            "score_std": self.score_std,
            "gaussian": test and {"statistic": test.statistic, "p_value": test.p_value},
        }


@dataclasses.dataclass(frozen=True)
class FinalSummary:
    """What an adversary learns who sees the final model.

    Attributes:
        displacement: cosine with θ_T − θ_0, the headline.
        model: cosine with θ_T, known variance.
        paper: the same as the paper has it, with fitted variance and Jeffreys' bound.
        bounds: every lower bound that applies to the displacement.
        footprints: fit of the displacement to the canaries' footprints, where they are known.
    """

    displacement: StatisticSummary
    model: StatisticSummary
    paper: StatisticSummary
    bounds: tuple[BoundRow, ...]
    footprints: FootprintFit | None

    def to_dict(self) -> JSON:
        """As JSON values; the headline's stand at the top."""
        return {
            **self.displacement.to_dict(),
            "model": self.model.to_dict(),
            "paper": self.paper.to_dict(),
            "bounds": [row.to_dict() for row in self.bounds],
            **({"footprints": _footprint_dict(self.footprints)} if self.footprints else {}),
        }


@dataclasses.dataclass(frozen=True)
class EveryRoundSummary:
    """What an adversary learns who sees every round's model.

    Attributes:
        matched_filter: at the known rounds, the headline; ``None`` with fewer than two canaries
            that took part, and then only ``paper`` is left.
        paper: the maximum over rounds; ``None`` with fewer than two unobserved canaries.
        bounds: every lower bound that applies to the matched filter.
        footprints: fit of the matched filter to the canaries' footprints, where they are known.
        secret_rounds: ε for an adversary who does not know who took part when, where the
            schedule's law has a closed form.
        full_knowledge: what knowing the real clients' sum adds, where the run was made to tell.
    """

    matched_filter: StatisticSummary | None
    paper: StatisticSummary | None
    bounds: tuple[BoundRow, ...] = ()
    footprints: FootprintFit | None = None
    secret_rounds: EpsilonEstimate | None = None
    full_knowledge: StatisticSummary | None = None

    def to_dict(self) -> JSON:
        """As JSON values; the headline's stand at the top, and what is ``None`` is left out."""
        out = {} if self.matched_filter is None else self.matched_filter.to_dict()
        if self.paper is not None:
            out["paper"] = self.paper.to_dict()
        if self.matched_filter is not None:
            out["bounds"] = [row.to_dict() for row in self.bounds]
        if self.footprints is not None:
            out["footprints"] = _footprint_dict(self.footprints)
        if self.secret_rounds is not None:
            out["secret_rounds"] = _estimate_dict(self.secret_rounds)
        if self.full_knowledge is not None:
            out["full_knowledge"] = self.full_knowledge.to_dict()
        return out


@dataclasses.dataclass(frozen=True)
class AnalyticalSummary:
    """The analytical ε, and what a reader must know to compare it with the others.

    Attributes:
        epsilon: an upper bound; infinite without noise, ``None`` where no theorem is known.
        adjacency: which two runs it tells apart.
        assumption: what it takes for granted.
        participations: how often a canary takes part, on average.
        client_participations: how often a real client did, where that was counted.
        largest_share: the largest share of a canary in a released mean, over the C/n that the
            noise is meant for; ``None`` where it is not known.
        caveat: what a strategy says about its own noise.
        canary_epsilon: analytical ε of what canaries do, who have no part in the count that moves
            the clip norm; ``None`` where it is not known.
    """

    epsilon: float | None
    adjacency: str
    assumption: str
    participations: float
    client_participations: float | None
    largest_share: float | None
    caveat: str | None
    canary_epsilon: float | None

    def to_dict(self) -> JSON:
        """As JSON values."""
        return {
            "epsilon": finite(self.epsilon),
            "unbounded": self.epsilon == math.inf,
            "adjacency": self.adjacency,
            "assumption": self.assumption,
            "participations": self.participations,
            "client_participations": self.client_participations,
            "largest_share": self.largest_share,
            "caveat": self.caveat,
            "canary_epsilon": finite(self.canary_epsilon),
        }


@dataclasses.dataclass(frozen=True)
class MetricsSummary:
    """How the training itself went.

    Attributes:
        clip_norm: of the last round; NaN where nothing was clipped.
        absent: updates that were lost.
        accuracy, loss: the last on held-out data; ``None`` where they were not measured.
    """

    clip_norm: float
    absent: int
    accuracy: float | None
    loss: float | None

    def to_dict(self) -> JSON:
        """As JSON values, without what was not measured."""
        out: JSON = {"clip_norm": finite(self.clip_norm), "absent": self.absent}
        measured = {"accuracy": self.accuracy, "loss": self.loss}
        return out | {name: finite(value) for name, value in measured.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class TableRow:
    """A row of the report's table.

    Attributes:
        sees: what the adversary sees, in words.
        name: the statistic, in words.
        part: its numbers.
        paper: it is the paper's way, beside the package's own.
    """

    sees: str
    name: str
    part: StatisticSummary
    paper: bool = False


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """Every number of a report.

    Attributes:
        task: what was trained, in words, where the record says.
        delta: target δ of every ε.
        confidence: of the intervals (two-sided) and of the bounds (one-sided).
        dim, rounds: of the run.
        canaries, unobserved: how many could take part, and how many never did.
        participation: kind of schedule.
        noise_multiplier: z of the run, ``None`` if unknown.
        cohort_size: expected size of a cohort.
        canary_share: share of canaries in it.
        analytical: what theory says.
        final: what an adversary learns who sees the final model.
        every_round: what one learns who sees every round's.
        metrics: how the training went.
        faults: first messages about lost updates.
        lost_count_as_zero: lost updates count as zero; else the wrapped strategy decides.
        versions: of the packages that matter.
    """

    task: str | None
    delta: float
    confidence: float
    dim: int
    rounds: int
    canaries: int
    unobserved: int
    participation: str
    noise_multiplier: float | None
    cohort_size: float
    canary_share: float
    analytical: AnalyticalSummary
    final: FinalSummary
    every_round: EveryRoundSummary
    metrics: MetricsSummary
    faults: tuple[str, ...]
    lost_count_as_zero: bool
    versions: dict[str, str]

    def rows(self) -> list[TableRow]:
        """The rows of the table, without those that the record has nothing for."""
        final, every = self.final, self.every_round
        rows = [TableRow("final model", "displacement", final.displacement)]
        if every.matched_filter is not None:
            rows.append(TableRow("every round", "matched filter", every.matched_filter))
        rows.append(TableRow("final model", "paper's cosine", final.paper, paper=True))
        if every.paper is not None:
            rows.append(TableRow("every round", "paper's maximum", every.paper, paper=True))
        return rows

    def to_dict(self) -> JSON:
        """What ``report.json`` holds; ``None`` for a number that is infinite or not known."""
        return {
            "task": self.task,
            "delta": self.delta,
            "confidence": self.confidence,
            "dim": self.dim,
            "rounds": self.rounds,
            "canaries": self.canaries,
            "unobserved": self.unobserved,
            "participation": self.participation,
            "noise_multiplier": self.noise_multiplier,
            "cohort_size": self.cohort_size,
            "canary_share": self.canary_share,
            "analytical": self.analytical.to_dict(),
            "final": self.final.to_dict(),
            "all": self.every_round.to_dict(),
            "metrics": self.metrics.to_dict(),
            "faults": list(self.faults),
            "lost_count_as_zero": self.lost_count_as_zero,
            "versions": self.versions,
        }


def summarize(
    record: AuditRecord, delta: float | None = None, confidence: float = 0.95
) -> RunSummary:
    """Every number of the report, from the record alone.

    Args:
        record: what a run left behind.
        delta: target δ; the record's by default.
        confidence: of the intervals (two-sided) and of the bounds (one-sided).
    """
    delta = record.delta if delta is None else delta
    return RunSummary(
        task=record.config.get("task"),
        delta=delta,
        confidence=confidence,
        dim=record.dim,
        rounds=record.rounds,
        canaries=record.canaries,
        unobserved=record.unobserved.shape[1],
        participation=record.participation,
        noise_multiplier=record.noise_multiplier,
        cohort_size=record.cohort_size,
        canary_share=float(record.presence.sum() / record.rounds / record.cohort_size),
        analytical=_analytical(record, delta),
        final=_final(record, delta, confidence),
        every_round=_every_round(record, delta, confidence),
        metrics=_metrics(record),
        faults=tuple(record.faults),
        lost_count_as_zero="canaries_come_from" not in record.config,  # else the strategy says
        versions=record.versions,
    )


def _analytical(record: AuditRecord, delta: float) -> AnalyticalSummary:
    known, (adjacency, reason) = _upper_bound(record, delta)
    return AnalyticalSummary(
        epsilon=known.epsilon if known else None,
        adjacency=known.adjacency if known else adjacency,
        assumption=known.assumption if known else reason,
        participations=record.canary_repeats,
        client_participations=record.config.get("client_participations"),
        largest_share=_largest_share(record),
        caveat=record.config.get("caveat"),
        canary_epsilon=_canary_epsilon(record, delta),
    )


def _upper_bound(record: AuditRecord, delta: float) -> tuple[UpperBound | None, tuple[str, str]]:
    """The analytical ε of the run; where there is none, the adjacency and the reason to print."""
    if record.noise_multiplier is None:
        return None, ("any", "the noise is not known")
    bound = analytical_epsilon(
        record.participation,
        record.noise_multiplier,
        delta,
        participations=_participations(record),
        sampling_rate=min(1.0, record.canary_repeats / record.rounds),
        rounds=record.rounds,
    )
    return bound, ("none", f"no tight bound is known for {record.participation!r} schedules")


def _participations(record: AuditRecord) -> int:
    """How often a canary takes part, at most."""
    if record.participation in ("epochs", "poisson"):
        return math.ceil(record.canary_repeats)
    return int(record.presence.sum(axis=0).max())


def _largest_share(record: AuditRecord) -> float | None:
    """Largest share of a canary in a released mean, over the C/n that the noise is meant for."""
    expected = record.config.get("noise_is_for")
    if record.contributions is None or not expected or not record.signal_known():
        return None
    return float(np.max(record.contributions * expected / record.clip_norms))


def _canary_epsilon(record: AuditRecord, delta: float) -> float | None:
    """Analytical ε of a canary, which takes no part in the count that moves the clip norm."""
    votes = record.config.get("canaries_vote", False)
    if not record.sum_noise_multiplier or record.participation != "epochs" or votes:
        return None
    return gaussian_epsilon(record.sum_noise_multiplier, delta, math.ceil(record.canary_repeats))


def _final(record: AuditRecord, delta: float, confidence: float) -> FinalSummary:
    """Against θ_T − θ_0 (the headline), and as the paper has it, against θ_T."""
    scores = scores_from_record(record, "final", "displacement")
    model = scores_from_record(record, "final", "model")
    linear = record.server.get("name") == "sgd" and record.displacement_norm > 0
    fits = linear and bool(record.presence.any()) and record.signal_known()
    return FinalSummary(
        displacement=_statistic(scores, delta, confidence),
        model=_statistic(model, delta, confidence),
        paper=_statistic(model, delta, confidence, PAPER_METHOD, variance="fitted"),
        bounds=all_bounds(scores, delta, confidence, _coins(record)),
        footprints=footprint_fit(record, delta, confidence=confidence, scores=scores)
        if fits
        else None,
    )


def _every_round(record: AuditRecord, delta: float, confidence: float) -> EveryRoundSummary:
    """Matched filter at the known rounds, and the paper's maximum over rounds.

    With fewer than two participants only the latter is left.
    """
    paper = full = fit = secret = None
    if record.unobserved.shape[1] >= 2:
        maximum = scores_from_record(record, "all", "maximum")
        paper = _statistic(maximum, delta, confidence, PAPER_METHOD)
    if record.presence.any(axis=0).sum() < 2:
        return EveryRoundSummary(None, paper)
    scores = scores_from_record(record, "all", "matched-filter")
    if record.signal_known():
        fit = footprint_fit(record, delta, threat="all", confidence=confidence, scores=scores)
        if secret_law(record):
            secret = secret_rounds_estimate(record, fit)
        if record.observed_residual is not None and record.sum_noise_multiplier:
            knowing = scores_from_record(record, "all", "full-knowledge")
            full = _statistic(knowing, delta, confidence)
    return EveryRoundSummary(
        matched_filter=_statistic(scores, delta, confidence),
        paper=paper,
        bounds=all_bounds(scores, delta, confidence, _coins(record)),
        footprints=fit,
        secret_rounds=secret,
        full_knowledge=full,
    )


def _statistic(
    scores: Scores,
    delta: float,
    confidence: float,
    bound_method: str = BOUND_METHOD,
    variance: str = "known",
) -> StatisticSummary:
    lower = None
    if scores.boundable:
        lower = lower_bound(scores, delta, confidence=confidence, method=bound_method)
    return StatisticSummary(
        scores=scores,
        estimate=epsilon_of(scores, delta, variance, confidence),
        lower_bound=lower,
        bound_method=bound_method,
        score_mean=float(scores.observed.mean()),
        score_std=float(scores.observed.std(ddof=1)),
        gaussian=gaussian_test(scores.observed),
    )


def _coins(record: AuditRecord) -> bool:
    """Canaries took part by coins, and none was dropped since, which would spoil them."""
    return record.inclusion == "coin" and bool(record.presence.any(axis=0).all())


def _metrics(record: AuditRecord) -> MetricsSummary:
    return MetricsSummary(
        clip_norm=float(record.clip_norms[-1]),
        absent=0 if record.absent is None else int(record.absent.sum()),
        accuracy=_last(record, "eval_accuracy"),
        loss=_last(record, "eval_loss"),
    )


def _last(record: AuditRecord, name: str) -> float | None:
    values = record.metrics.get(name, np.empty(0))
    return float(values[-1]) if len(values) else None


def _estimate_dict(estimate: EpsilonEstimate) -> JSON:
    """Without δ and the confidence, which are the same for all of the summary."""
    return {
        "epsilon": finite(estimate.epsilon),
        "low": finite(estimate.low),
        "high": finite(estimate.high),
        "method": estimate.method,
    }


def _footprint_dict(fit: FootprintFit) -> JSON:
    return {
        "scale": fit.scale,
        "scale_low": fit.low,
        "scale_high": fit.high,
        "mean": _estimate_dict(fit.mean),
        "most_exposed": _estimate_dict(fit.most_exposed),
    }
