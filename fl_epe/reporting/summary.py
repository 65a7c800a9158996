"""`summarize`: the answers of a record with their warnings, for reports, pages and JSON.

Examples:
    >>> from fl_epe.limit import limit_record
    >>> from fl_epe.schedules import ShuffledEpochs
    >>> record = limit_record(ShuffledEpochs(20, 4), 1.0, 1e-5, num_canaries=10, beside=90)
    >>> summary = summarize(record)
    >>> summary.status, [answer.adversary.sees for answer in summary.answers]
    ('ok', ['final', 'all'])
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    Adversary,
    Analytical,
    Answer,
    AuditRecord,
    answer,
    answer_metrics,
    answers,
)
from fl_epe.reporting.numbers import JSON
from fl_epe.reporting.reliability import (
    SEES,
    ReportWarning,
    Status,
    status_of,
    warnings_of,
)

CONFIDENCE = 0.95
"""The confidence of a report's intervals (two-sided) and lower bounds (one-sided)."""

SMALL_DELTA = 1e-5
"""A δ that is usual in larger runs."""

# With a larger δ, ε is also given at `SMALL_DELTA`.
_LARGE_DELTA = 1e-4

# Values of a record's design that are not shown as settings, or that are shown already.
_NOT_SHOWN = ("task", "num_canaries", "chance_accuracy", "chance_loss")


@dataclasses.dataclass(frozen=True)
class Summary:
    """The answers of a run, and their status.

    Attributes:
        answers: the answers for an adversary who sees the final model, and for one who sees
            every round's model.
        warnings: reasons why the answers are unreliable or need an explanation, the most
            important first.
        delta: the target δ of every ε.
        record: the record of the run; ``None`` if there is none.
        answers_with_known_rounds: if rounds are secret, the answers for adversaries who know
            them; else empty.
        at_small_delta: the answers at δ = 10⁻⁵, if δ is far above; else empty.
        faults: the first messages about faults, such as lost updates or rounds without an audit.
        fault_counts: the number of faults of each kind.
        plan: what the audit was planned to do, in sentences.
        settings: the settings of the run, as JSON values.
    """

    answers: tuple[Answer, Answer]
    warnings: tuple[ReportWarning, ...]
    delta: float
    record: AuditRecord | None = None
    answers_with_known_rounds: tuple[Answer, ...] = ()
    at_small_delta: tuple[Answer, ...] = ()
    faults: tuple[str, ...] = ()
    fault_counts: dict[str, int] = dataclasses.field(default_factory=dict)
    plan: tuple[str, ...] = ()
    settings: JSON = dataclasses.field(default_factory=dict)

    @property
    def status(self) -> Status:
        """The status of the most important warning, or "ok"."""
        return status_of(self.warnings)

    @property
    def exit_status(self) -> int:
        """Exit status of a command that reports the run: 0 if the status is "ok", else 3."""
        if self.status == "ok":
            return 0
        return 3

    @property
    def unit(self) -> str:
        """The short name of the unit of privacy: `full_unit` without its brackets."""
        return self.full_unit.partition(" (")[0]

    @property
    def full_unit(self) -> str:
        """The unit of privacy, such as "hospital", "client (node)" or "example"."""
        if self.record:
            return self.record.mechanism.participation.unit
        return "client"

    @property
    def task(self) -> str | None:
        """What was trained, in words; ``None`` if it is not known."""
        if self.record:
            return self.record.design.task
        return self.settings.get("task")

    def metrics(self) -> dict[str, float | str]:
        """The status, and the finite numbers of the answers by their names in metrics."""
        metrics = answer_metrics(self.answers).items()
        finite_metrics = {
            name: value for name, value in metrics if math.isfinite(value)
        }
        return {"status": self.status, **finite_metrics}

    def faults_by_kind(self) -> list[tuple[str, int]]:
        """The kinds of faults that happened and how often, the most frequent first."""
        kinds = [
            (kind, count) for kind, count in self.fault_counts.items() if count
        ]
        return sorted(kinds, key=lambda pair: (-pair[1], pair[0]))

    def held_out(self) -> list[tuple[str, str]]:
        """Names and last values of the task's metric, ROC AUC and loss on held-out data."""
        if self.record is None:
            return []
        names = {
            "eval_accuracy": self.record.design.metric,
            "eval_auc": "ROC AUC",
            "eval_loss": "loss",
        }
        last_values = []
        for series, name in names.items():
            values = self.record.metrics.get(series, np.empty(0))
            if name and len(values) and math.isfinite(values[-1]):
                last = float(values[-1])
                text = f"{last:.1%}" if name == "accuracy" else f"{last:.4g}"
                last_values.append((name.replace("_", " "), text))
        return last_values

    def performance(self) -> list[str]:
        """Sentences on the values of `held_out`, without full stops.

        The accuracy of a constant prediction is given too, if the model's is closer to it than
        to 1.
        """
        # The metric comes first, if the model was evaluated.
        lines = [
            f"The model's {name} on held-out data: {value}"
            for name, value in self.held_out()
        ]
        if lines and self.record is not None:
            chance = self.record.design.chance_accuracy
            if (
                chance
                and self.record.metrics["eval_accuracy"][-1] < (1 + chance) / 2
            ):
                lines[0] += f" (majority class: {chance:.1%})"
        return lines


def summarize(record: AuditRecord, delta: float | None = None) -> Summary:
    """The answers of a record, with their warnings.

    Args:
        record: the audit record of a run.
        delta: the target δ; the record's by default.
    """
    delta = record.delta if delta is None else delta
    run_answers = answers(record, delta, CONFIDENCE)
    answers_with_known_rounds: tuple[Answer, ...] = ()
    if not run_answers[0].adversary.knows_rounds:
        answers_with_known_rounds = tuple(
            answer(record, Adversary(sees), delta, CONFIDENCE) for sees in SEES
        )
    at_small_delta: tuple[Answer, ...] = ()
    if delta > _LARGE_DELTA:
        at_small_delta = answers(record, SMALL_DELTA, CONFIDENCE)
    return Summary(
        answers=run_answers,
        warnings=warnings_of(record, run_answers),
        delta=delta,
        record=record,
        answers_with_known_rounds=answers_with_known_rounds,
        at_small_delta=at_small_delta,
        faults=record.provenance.faults,
        fault_counts=record.provenance.fault_counts,
        plan=record.findings.plan,
        settings=record.design.to_settings(),
    )


def summarize_unmeasured(
    reason: str,
    *,
    delta: float,
    config: Mapping[str, Any] | None = None,
    faults: Sequence[str] = (),
    fault_counts: Mapping[str, int] | None = None,
) -> Summary:
    """The summary of a run without a record, because the audit received no readable model.

    Args:
        reason: why nothing was measured, in a sentence.
        delta: the target δ.
        config: the settings of the run, as JSON values; a ``plan`` among them is shown.
        faults: what went wrong, in sentences.
        fault_counts: the number of faults of each kind.
    """
    reason = reason.strip().removesuffix(".")
    settings = dict(config or {})
    no_theory = Analytical(
        epsilon=None,
        knows_rounds=True,
        adjacency="zero-out",
        assumption="the run left no record",
    )
    final_model, every_round = (
        Answer(
            adversary,
            participations=math.nan,
            analytical=no_theory,
            reason=reason,
        )
        for adversary in (FINAL_MODEL, EVERY_ROUND)
    )
    return Summary(
        answers=(final_model, every_round),
        warnings=(ReportWarning("not-measured", reason),),
        delta=delta,
        faults=tuple(faults),
        fault_counts=dict(fault_counts or {}),
        plan=tuple(settings.pop("plan", ())),
        settings=settings,
    )


def settings_of(record: AuditRecord) -> dict[str, str]:
    """The settings of a run in words, by name, without seeds.

    Settings of the design replace the others of the same name: "participation" is then the
    schedule with its options, not the name of the law alone.
    """
    mechanism = record.mechanism
    provenance = record.provenance
    values = {
        "task": record.design.task,
        "rounds": record.rounds,
        "participation": mechanism.participation.name,
        "canary_participations": mechanism.canary_participations,
        "noise_multiplier": mechanism.noise_multiplier,
        "canaries": record.num_canaries,
        "unobserved canaries": record.unobserved.count,
        "dimension": record.dim,
        "target_delta": record.delta,
        "canary_kind": provenance.canary_kind,
        "server": mechanism.server.name,
    }
    for name, value in record.design.to_settings().items():
        if name not in _NOT_SHOWN:
            values[name] = value
    for name, version in provenance.versions.items():
        values[f"version of {name}"] = version
    return in_words(values)


def in_words(values: Mapping[str, Any]) -> dict[str, str]:
    """Settings as text; those that are ``None`` are left out."""
    return {
        str(name): _words(value)
        for name, value in values.items()
        if value is not None
    }


def _words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return " ".join(_words(part) for part in value)
    return str(value)
