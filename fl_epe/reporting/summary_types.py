"""The types behind a report: what `summarize` computes and ``report.json`` holds."""

import dataclasses
import math
from typing import Literal

from fl_epe.auditing import (
    AverageCaseClient,
    Dependence,
    EpsilonEstimate,
    ExpectedScoreFit,
    GaussianFit,
    Scores,
)
from fl_epe.auditing.bounds import bound_rows
from fl_epe.reporting.numbers import JSON, as_json
from fl_epe.reporting.summary_parts import (
    AnalyticalSummary,
    MetricsSummary,
    Sees,
    Statement,
    Verdict,
)

# What a report is worth; of several the last one.
Status = Literal["ok", "doubtful", "faulty", "not measured", "diverged"]

# Of ``report.json``: it grows where a key gets another meaning, not where one is added.
SCHEMA = 1


# Fields of a `RunSummary` that ``report.json`` has under the same name.
_PLAIN = (
    *("status", "reasons", "task", "delta", "confidence", "dim", "rounds", "unobserved"),
    *("participation", "noise_multiplier", "cohort_size", "canary_share", "others_share"),
    *("dependence", "idle_rounds", "faults", "fault_counts", "plan", "lost_count_as_zero"),
    "versions",
)


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
        mean, deviation = self.moments
        return {
            **as_json(self.estimate),
            "lower_bound": as_json(self.lower_bound),
            "lower_bound_unbounded": self.lower_bound == math.inf,
            "bound_method": self.bound_method,
            "score_mean": mean,
            "score_std": deviation,
            "gaussian": self.gaussian and _test(self.gaussian),
            "gaussian_by_participations": [
                {"participations": count, "canaries": found.count, **_test(found)}
                for count, found in self.gaussian_by_participations.items()
            ],
        }


def _test(found: GaussianFit) -> JSON:
    return {"statistic": found.statistic, "p_value": found.p_value}


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


# The results of a statistic, or why there are none.
Part = StatisticSummary | Unmeasured


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
            "average_case_client": client and _client_dict(client),
            "mean_score": as_json(self.mean_score),
        }
        return {
            **self.headline.to_dict(),
            "paper": self.paper.to_dict(),
            "bounds": bound_rows(self.bounds, verdict),
            **{name: found for name, found in further.items() if found is not None},
        }


def _client_dict(found: AverageCaseClient) -> JSON:
    names = ("known", "unknown", "mean", "canaries", "canaries_unknown", "worst_case")
    out: JSON = {"expected_scores_of": found.source, "equal": found.equal}
    out |= {name: as_json(getattr(found, name)) for name in names}
    if (largest := found.largest) is not None:
        out["largest"] = {
            "clients": largest.clients,
            "simulated": largest.simulated,
            **as_json(largest.estimate),
        }
    return out


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
        settings: of the run, as JSON values.
        verdict: the lower bound that was named before the run; ``None`` without a record.
        statements: what each row of the table states.
        dependence: of "unobserved" and "observed" canaries, as far as it was measured.
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
    settings: JSON = dataclasses.field(default_factory=dict)
    verdict: Verdict | None = None
    statements: tuple[Statement, ...] = ()
    dependence: dict[str, Dependence] = dataclasses.field(default_factory=dict)
    fault_counts: dict[str, int] = dataclasses.field(default_factory=dict)
    run: JSON = dataclasses.field(default_factory=dict)
    heavier: float | None = None

    @property
    def headlines(self) -> tuple[Part, Part]:
        """Those of the final model and of every round."""
        return self.final.headline, self.every_round.headline

    @property
    def unit(self) -> str:
        """Whose privacy: "client", or "example" if each canary stands for one."""
        return next((statement.unit for statement in self.statements), "client")

    def headline(self, adversary: Sees) -> Part:
        """That of one adversary."""
        return self.headlines[0 if adversary == "final" else 1]

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
        named = {self.verdict.adversary: self.verdict.method} if self.verdict else {}
        return {
            "schema": SCHEMA,
            **{name: as_json(getattr(self, name)) for name in _PLAIN},
            "canaries": self.num_canaries,
            "exit_status": 0 if self.status == "ok" else 3,
            "analytical": self.analytical.to_dict(),
            "verdict": self.verdict and self.verdict.to_dict(),
            "rows": [statement.to_dict() for statement in self.statements],
            "final": self.final.to_dict(named.get("final")),
            "all": self.every_round.to_dict(named.get("all")),
            "metrics": self.metrics.to_dict(),
            "run": {name: self.run.get(name) for name in ("started", "ended", "commands")},
            **({"stopped": as_json(self.stopped)} if self.stopped else {}),
        }
