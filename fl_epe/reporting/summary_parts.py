"""The parts of a summary: the analytical ε, the training, and what the rows and the verdict state.

The schedule behind the analytical ε is that of the record's settings, and its ε is computed as for
a comparison. Records of deployments, and records whose settings name no schedule, have only the
count of participations.
"""

import dataclasses
import math
from typing import Literal

import numpy as np

from fl_epe.accounting import (
    UpperBound,
    analytical_epsilon,
    gaussian_epsilon,
    strategy_bound,
    tightest,
    upper_bounds,
)
from fl_epe.auditing import AuditRecord, RunSchedules
from fl_epe.reporting.numbers import JSON, as_json


@dataclasses.dataclass(frozen=True)
class AnalyticalSummary:
    """The analytical ε and its assumptions.

    Attributes:
        epsilon: an upper bound; infinite without noise, ``None`` if no theorem applies.
        adjacency: which two runs it compares.
        assumption: what else it assumes, in words.
        participations: mean participations of a canary; ``None`` if they are not known.
        client_participations: mean participations of a real client; ``None`` if not counted.
        largest_share: the largest share of a canary in a released mean, over the C/n for which
            the noise is calibrated; ``None`` if it is not known.
        caveat: what a strategy says about its own noise.
        canary_epsilon: analytical ε of a canary that is not in the count that adapts the clip
            norm; ``None`` if it is not known.
        rounds_known: whether it also holds against an adversary who knows the client's rounds, as
            the matched filter does; ``None`` if no theorem applies.
    """

    epsilon: float | None
    adjacency: str
    assumption: str
    participations: float | None = None
    client_participations: float | None = None
    largest_share: float | None = None
    caveat: str | None = None
    canary_epsilon: float | None = None
    rounds_known: bool | None = None

    def to_dict(self) -> JSON:
        """As JSON values."""
        return {**as_json(self), "unbounded": self.epsilon == math.inf}


def analytical(record: AuditRecord, delta: float) -> AnalyticalSummary:
    """The analytical ε of a run and its assumptions."""
    largest = _largest_share(record)
    found = _analytical_bound(record, delta, largest)
    bound = None if isinstance(found, str) else found
    clients, schedules = record.findings.client_participations, _schedules_of(record)
    if clients is None and schedules is not None:
        clients = schedules.clients.participations()
    return AnalyticalSummary(
        epsilon=bound.epsilon if bound else None,
        adjacency=bound.adjacency if bound else "any",
        assumption=found if isinstance(found, str) else found.assumption,
        participations=record.mechanism.canary_participations,
        client_participations=None if clients is None else float(clients),
        largest_share=largest,
        caveat=record.design.caveat,
        canary_epsilon=_canary_epsilon(record, delta) if (largest or 1.0) <= 1 else None,
        rounds_known=bound.rounds_known if bound else None,
    )


def _largest_share(record: AuditRecord) -> float | None:
    expected = record.design.noise_is_for
    contributions = record.mechanism.contributions
    if contributions is None or not expected or not record.signal_known():
        return None
    shares = contributions * expected / record.mechanism.clip_norms
    shares = shares[np.isfinite(shares) & record.presence.any(axis=1)]
    heaviest = record.findings.heaviest_share
    if heaviest is None or not len(shares):
        return None
    return max(float(np.max(shares)), float(heaviest * expected))


def _canary_epsilon(record: AuditRecord, delta: float) -> float | None:
    if (
        not record.mechanism.sum_noise_multiplier
        or record.mechanism.strategy is not None
        or record.mechanism.participation != "epochs"
        or record.design.canaries_vote
    ):
        return None
    return gaussian_epsilon(
        record.mechanism.sum_noise_multiplier,
        delta,
        math.ceil(record.mechanism.canary_participations),
    )


def _analytical_bound(
    record: AuditRecord, delta: float, largest_share: float | None = None
) -> UpperBound | str:
    """The analytical ε of a run with all that it assumes; without one, the reason.

    Args:
        record: the audit record of a run.
        delta: target δ.
        largest_share: how many times what the noise is for the heaviest client adds; ``None`` if
            nothing is known of that.
    """
    z = record.mechanism.noise_multiplier
    if z is None:
        return "the noise is not known"
    if z and largest_share is None and record.design.noise_is_for:
        return "what the heaviest client adds is not known"
    z /= max(1.0, largest_share or 1.0)
    if record.rounds == 0 or not record.presence.any():
        return "no canary took part"
    kind, schedules = record.mechanism.participation, _schedules_of(record)
    schedule = None if schedules is None else schedules.canaries
    named = schedule is not None and schedule.kind == kind and schedule.rounds >= record.rounds
    strategy, population = record.mechanism.strategy, record.design.num_clients
    population = population or record.num_canaries
    if strategy is not None:
        if schedule is None or not named:
            return "the schedule of correlated noise is not known"
        bound = strategy_bound(schedule, strategy, z, delta, population)
    elif schedule is None or not named or kind == "poisson":
        return _by_count(record, z, delta)
    else:
        bound = tightest(upper_bounds(schedule, z, delta, population), rounds_known=True)
    return dataclasses.replace(
        bound, assumption=f"the adversary knows the client's rounds; {bound.assumption}"
    )


def _schedules_of(record: AuditRecord) -> RunSchedules | None:
    return None if record.design.schedule is None else RunSchedules.of(record)


def _by_count(record: AuditRecord, noise_multiplier: float, delta: float) -> UpperBound | str:
    """From the most rounds in which an observed canary takes part, or Poisson sampling's rate."""
    kind, mean = record.mechanism.participation, record.mechanism.canary_participations
    expected = kind in ("epochs", "poisson")
    most = math.ceil(mean) if expected else int(record.presence.sum(axis=0).max())
    bound = analytical_epsilon(
        kind,
        noise_multiplier,
        delta,
        participations=most,
        sampling_rate=min(1.0, mean / record.rounds),
        rounds=record.rounds,
    )
    if bound is None:
        return f"no tight bound is known for {kind!r} schedules"
    if expected:
        return bound
    times = "once" if most == 1 else f"{most} times"
    words = (
        f"{bound.assumption}; takes part at most {times}, the most of any observed canary, as the "
        "record names no schedule"
    )
    return dataclasses.replace(bound, assumption=words)


@dataclasses.dataclass(frozen=True)
class MetricsSummary:
    """The course of the training.

    Attributes:
        clip_norm: of the last round; NaN without clipping.
        absent: number of lost updates.
        loss: the last one on held-out data; ``None`` if it was not measured.
        metric: what the task measures beside its loss; "" for nothing.
        value: the last one of that metric; ``None`` if it was not measured.
    """

    clip_norm: float = math.nan
    absent: int = 0
    loss: float | None = None
    metric: str = "accuracy"
    value: float | None = None

    @property
    def accuracy(self) -> float | None:
        """The last one on held-out data; ``None`` if it was not measured."""
        return self.value if self.metric == "accuracy" else None

    def held_out(self) -> list[tuple[str, str]]:
        """Names and last values of the metric, if there is one, and of the loss, for reading."""
        found = list[tuple[str, str]]()
        if self.value is not None and math.isfinite(self.value):
            shown = ".1%" if self.metric == "accuracy" else ".4g"
            found.append((self.metric.replace("_", " "), format(self.value, shown)))
        if self.loss is not None and math.isfinite(self.loss):
            found.append(("loss", f"{self.loss:.4g}"))
        return found

    def to_dict(self) -> JSON:
        """As JSON values, without what was not measured."""
        values: JSON = {"clip_norm": as_json(self.clip_norm), "absent": self.absent}
        if self.metric == "accuracy" and self.value is not None:
            values["accuracy"] = as_json(self.value)
        elif self.value is not None:
            values |= {"metric": self.metric, "value": as_json(self.value)}
        return values if self.loss is None else {**values, "loss": as_json(self.loss)}


def metrics_of(record: AuditRecord) -> MetricsSummary:
    """The course of the training, from a record."""
    metric = record.design.metric
    return MetricsSummary(
        clip_norm=float(record.mechanism.clip_norms[-1]) if record.rounds else math.nan,
        absent=0 if record.clients.absent is None else int(record.clients.absent.sum()),
        loss=_last(record, "eval_loss"),
        metric=metric,
        value=_last(record, "eval_accuracy") if metric else None,
    )


def _last(record: AuditRecord, name: str) -> float | None:
    values = record.metrics.get(name, np.empty(0))
    return float(values[-1]) if len(values) else None


# The adversaries of a report's headlines.
Sees = Literal["final", "all"]

# What the adversary of each adversary sees, in words.
SEES: dict[Sees, str] = {"final": "the final model", "all": "every round's model"}

# What a lower bound is worth: one is the verdict; others were not named before the run.
Role = Literal["verdict", "exploratory", "not a bound"]


@dataclasses.dataclass(frozen=True)
class Statement:
    """What one row of the table says, and for whom.

    Attributes:
        sees: what the adversary sees, in words.
        knows: what else the adversary knows.
        statistic: in words.
        adjacency: which two runs the row compares.
        unit: whose privacy: "client", or "example" if each canary stands for one.
        method: of the lower bound; ``None`` without one.
        assumption: of the lower bound, or of the estimate without one.
        theorem: that the lower bound rests on.
        role: of the lower bound.
        ceiling: the largest lower bound that so many canaries could have shown; ``None`` without
            a bound.
    """

    sees: str
    knows: str
    statistic: str
    adjacency: str
    unit: str
    method: str | None
    assumption: str
    theorem: str
    role: Role
    ceiling: float | None

    def to_dict(self) -> JSON:
        """As JSON values."""
        return {**as_json(self), "ceiling_unbounded": self.ceiling == math.inf}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The one lower bound that was named before the run.

    Attributes:
        rule: as it was named, such as "auto" or "final:weighted".
        recorded: whether the record says so; otherwise it is the rule by design, "auto".
        adversary: "final" or "all".
        epsilon: the bound; ``None`` if the run allows none.
        statement: of its row; ``None`` if that was not measured.
        reason: why there is no bound; empty if there is one.
    """

    rule: str
    recorded: bool
    adversary: Sees
    epsilon: float | None
    statement: Statement | None
    reason: str = ""

    @property
    def method(self) -> str | None:
        """The bound's method."""
        return self.statement.method if self.statement else None

    def to_dict(self) -> JSON:
        """As JSON values."""
        return {
            "rule": self.rule,
            "fixed_before_the_run": self.recorded,
            "adversary": self.adversary,
            "epsilon": as_json(self.epsilon),
            "unbounded": self.epsilon == math.inf,
            "method": self.method,
            "reason": self.reason,
            "statement": self.statement.to_dict() if self.statement else None,
        }
