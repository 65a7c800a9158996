"""The types behind a report: what `summarize` computes and ``report.json`` holds."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from fl_epe.auditing import (
    AverageCaseClient,
    EpsilonEstimate,
    ExpectedScoreFit,
    GaussianFit,
    Scores,
)
from fl_epe.auditing.bounds import bound_rows
from fl_epe.reporting.average_case_client import average_case_client_dict
from fl_epe.reporting.guarantee import AnalyticalSummary
from fl_epe.reporting.metrics import MetricsSummary
from fl_epe.reporting.numbers import JSON, as_json
from fl_epe.reporting.verdict_types import Claims

Status = Literal["ok", "doubtful", "faulty", "not measured", "diverged"]
"""What a report is worth; of several the last one."""

SCHEMA = 1
"""Of ``report.json``: it grows where a key gets another meaning, not where one is added."""


@dataclasses.dataclass(frozen=True)
class StatisticSummary:
    """The results of one statistic.

    Attributes:
        scores: the statistic of every canary.
        estimate: ε with its interval.
        lower_bound: on ε; infinite if every finite ε is ruled out, ``None`` without unobserved
            scores and an exact null, or with too few scores.
        bound_method: of the lower bound, chosen before the scores are seen; ``None`` without one.
        gaussian: test that the observed scores are Gaussian; ``None`` if there are too few.
        gaussian_by_participations: the same test for canaries of equal participations, as all
            together are a mixture; without groups that are too small.
    """

    scores: Scores
    estimate: EpsilonEstimate
    lower_bound: float | None
    bound_method: str | None
    gaussian: GaussianFit | None
    gaussian_by_participations: dict[int, GaussianFit] = dataclasses.field(default_factory=dict)

    @property
    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of the observed scores."""
        return float(self.scores.observed.mean()), float(self.scores.observed.std(ddof=1))

    def to_dict(self) -> JSON:
        """As JSON values."""
        test = self.gaussian
        mean, deviation = self.moments
        return {
            **as_json(self.estimate),
            "lower_bound": as_json(self.lower_bound),
            "lower_bound_unbounded": self.lower_bound == math.inf,
            "bound_method": self.bound_method,
            "score_mean": mean,
            "score_std": deviation,
            "gaussian": test and {"statistic": test.statistic, "p_value": test.p_value},
            "gaussian_by_participations": [
                {
                    "participations": count,
                    "canaries": found.count,
                    "statistic": found.statistic,
                    "p_value": found.p_value,
                }
                for count, found in self.gaussian_by_participations.items()
            ],
        }


@dataclasses.dataclass(frozen=True)
class Unmeasured:
    """A statistic that has no ε.

    Attributes:
        reason: why, as a sentence without its full stop.
    """

    reason: str

    def to_dict(self) -> JSON:
        """As JSON values: the headline's keys, all ``None``, and the reason."""
        empty = ("epsilon", "low", "high", "method", "lower_bound")
        return {**dict.fromkeys(empty), "reason": self.reason}


Part = StatisticSummary | Unmeasured
"""The results of a statistic, or why there are none."""


@dataclasses.dataclass(frozen=True)
class SideSummary:
    """Results for an adversary, who sees the final model or every round's.

    Attributes:
        headline: the cosine with θ_T − θ_0, or the matched filter at the known rounds. With Poisson
            sampling the ε and the lower bound of every round are those of the likelihood ratio at
            unknown rounds, as in privacy accounting.
        paper: the cosine with θ_T, or the maximum over rounds, with fitted Gaussians and Jeffreys'
            bound.
        model: of the final model, the cosine with θ_T with known variance.
        bounds: every lower bound that applies to the headline, by its method.
        expected_scores: fit of the headline to the canaries' expected scores, if they are known.
        unknown_rounds: ε for an adversary who does not know who took part when; ``None`` if the
            schedule has no closed form for it.
        known_rounds: for an adversary who knows the rounds, where the headline does not.
        full_knowledge: for an adversary who knows all but the canary, if it was recorded.
        raw: the mean score's ε with all canaries left in; ``None`` if the headline is that.
        average_case_client: of the attack on an average-case client, which is the headline;
            ``None`` where expected scores are not known.
        mean_score: ε of the mean score, where the headline is another number.
    """

    headline: Part
    paper: Part
    model: Part | None = None
    bounds: dict[str, float] = dataclasses.field(default_factory=dict)
    expected_scores: ExpectedScoreFit | None = None
    unknown_rounds: EpsilonEstimate | None = None
    known_rounds: EpsilonEstimate | None = None
    full_knowledge: StatisticSummary | None = None
    raw: EpsilonEstimate | None = None
    average_case_client: AverageCaseClient | None = None
    mean_score: EpsilonEstimate | None = None

    def to_dict(self, verdict: str | None = None) -> JSON:
        """As JSON values, the headline's at the top level, without results that are ``None``."""
        fit, client = self.expected_scores, self.average_case_client
        further = {
            "model": self.model and self.model.to_dict(),
            "expected_scores": fit
            and {
                "scale": fit.scale,
                "scale_low": fit.low,
                "scale_high": fit.high,
                "mean": as_json(fit.mean),
                "worst_case": as_json(fit.worst_case),
            },
            "secret_rounds": as_json(self.unknown_rounds),
            "known_rounds": as_json(self.known_rounds),
            "full_knowledge": self.full_knowledge and self.full_knowledge.to_dict(),
            "raw": as_json(self.raw),
            "average_case_client": client and average_case_client_dict(client),
            "mean_score": as_json(self.mean_score),
        }
        return {
            **self.headline.to_dict(),
            "paper": self.paper.to_dict(),
            "bounds": bound_rows(self.bounds, verdict),
            **{name: found for name, found in further.items() if found is not None},
        }


@dataclasses.dataclass(frozen=True)
class TableRow:
    """A row of the report's table.

    Attributes:
        sees: what the adversary sees, in words.
        name: the statistic, in words.
        part: its results, or why there are none.
        paper: whether this is the paper's method.
    """

    sees: str
    name: str
    part: Part
    paper: bool = False


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """Every number of a report.

    Attributes:
        status: "ok", "doubtful" (some canaries do not show up as they should), "faulty" (steps are
            not what the privacy accounting assumes), "not measured" (a headline ε has no number) or
            "diverged".
        reasons: why it is not "ok", as sentences without their full stops.
        task: what was trained, in words; ``None`` if the record does not say.
        delta: target δ of every ε.
        confidence: of the intervals (two-sided) and of the bounds (one-sided).
        dim, rounds: of the run; ``None`` if it left no record.
        num_canaries, unobserved: number of observed and of unobserved canaries; ``None`` without a
            record.
        participation: kind of schedule.
        noise_multiplier: z of the run, ``None`` if unknown.
        cohort_size: expected size of a cohort; ``None`` if it is not known.
        canary_share: share of canaries in a cohort; ``None`` if it is not known.
        analytical: the analytical ε.
        final: results for an adversary who sees the final model.
        every_round: results for an adversary who sees every round's model.
        metrics: the course of the training.
        idle_rounds: number of rounds in which the model did not move.
        faults: first messages about what went wrong: lost updates, rounds without an audit.
        fault_counts: how often each kind of fault happened.
        heavier: how many times the weight of the heaviest canary the heaviest client had; ``None``
            if nobody knows.
        run: when and by which commands the run was made; empty if the record does not say.
        plan: what an audit was going to do, in sentences.
        lost_count_as_zero: whether lost updates count as zero; if not, the strategy decides.
        versions: of the packages that matter.
        others_share: share of the other canaries in the energy of the rounds' means.
        others_out: whether they are projected out of one canary's residual.
        stopped: of a run that its rule ended early, the rule, the round, and the ε that was
            watched, with its interval; ``None`` for other runs.
        claims: the verdict, what each row states, and the dependence of the canaries.
    """

    status: Status
    reasons: tuple[str, ...]
    task: str | None
    delta: float
    confidence: float
    analytical: AnalyticalSummary
    final: SideSummary
    every_round: SideSummary
    metrics: MetricsSummary
    versions: dict[str, str]
    dim: int | None = None
    rounds: int | None = None
    num_canaries: int | None = None
    unobserved: int | None = None
    participation: str = "unknown"
    noise_multiplier: float | None = None
    cohort_size: float | None = None
    canary_share: float | None = None
    idle_rounds: int = 0
    faults: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    lost_count_as_zero: bool = False
    others_share: float = 0.0
    others_out: bool = True
    stopped: JSON | None = None
    claims: Claims = dataclasses.field(default_factory=Claims)
    fault_counts: dict[str, int] = dataclasses.field(default_factory=dict)
    run: JSON = dataclasses.field(default_factory=dict)
    heavier: float | None = None

    @property
    def headlines(self) -> tuple[Part, Part]:
        """Those of the final model and of every round."""
        return self.final.headline, self.every_round.headline

    def rows(self) -> list[TableRow]:
        """The rows of the table; the first two are the headlines."""
        final, every = self.final, self.every_round
        filtered = "matched filter" if every.known_rounds is None else "likelihood ratio"
        return [
            TableRow("final model", "displacement", final.headline),
            TableRow("every round", filtered, every.headline),
            TableRow("final model", "paper's cosine", final.paper, paper=True),
            TableRow("every round", "paper's maximum", every.paper, paper=True),
        ]

    def to_dict(self) -> JSON:
        """What ``report.json`` holds; ``None`` for a number that is infinite or unknown."""
        return {
            "schema": SCHEMA,
            "status": self.status,
            "exit_status": 0 if self.status == "ok" else 3,
            "reasons": list(self.reasons),
            "task": self.task,
            "delta": self.delta,
            "confidence": self.confidence,
            "dim": self.dim,
            "rounds": self.rounds,
            "canaries": self.num_canaries,
            "unobserved": self.unobserved,
            "participation": self.participation,
            "noise_multiplier": self.noise_multiplier,
            "cohort_size": as_json(self.cohort_size),
            "canary_share": as_json(self.canary_share),
            "others_share": self.others_share,
            "analytical": self.analytical.to_dict(),
            **self.claims.to_dict(),
            "final": self.final.to_dict(self.claims.named("final")),
            "all": self.every_round.to_dict(self.claims.named("all")),
            "metrics": self.metrics.to_dict(),
            "idle_rounds": self.idle_rounds,
            "faults": list(self.faults),
            "fault_counts": self.fault_counts,
            "plan": list(self.plan),
            "lost_count_as_zero": self.lost_count_as_zero,
            "versions": self.versions,
            "run": {name: self.run.get(name) for name in ("started", "ended", "commands")},
            **({"stopped": self.stopped} if self.stopped else {}),
        }
