"""The metrics that an audit adds to a round: ε so far, and whether it is reliable."""

import math
from typing import Any

from flwr.app import MetricRecord

from fl_epe.auditing import FaultKind, answer_metrics
from fl_epe.flower.audited_run import AuditedRun

_ENDS = ("", "-low", "-high", "-proved")
_STATUSES = ("unreliable", "faulty")
OURS = {
    *(f"epsilon-{sees}{end}" for sees in ("final", "all") for end in _ENDS),
    *(f"epsilon-{status}" for status in _STATUSES),
    "epsilon-analytical",
}
"""The names of metrics that are reserved for the audit."""


def epsilons(run: AuditedRun) -> dict[str, float]:
    """ε after the round and the theoretical bound, as metrics.

    After the last round, these are the metrics of the report. With an ε, "epsilon-unreliable"
    and "epsilon-faulty" are 1 if the report has such a warning, else 0. Faults that only the
    scores of all rounds show are known after the last round, and noise is checked after 1, 2,
    4, 8, … rounds.
    """
    recording = run.recording
    z, _ = recording.noise_multipliers()
    metrics = recording.auditor.metrics_so_far(
        z, run.wrapped.expected_replies()
    )
    statuses: dict[str, bool] = {}
    if recording.auditor.canaries_seen and run.state.index == run.state.rounds:
        from fl_epe.reporting import summarize  # slow to import

        summary = summarize(run.record())
        metrics = answer_metrics(summary.answers)
        warned = {warning.status for warning in summary.warnings}
        statuses = {status: status in warned for status in _STATUSES}
    elif not math.isnan(metrics["epsilon-all"]):
        statuses = {
            "unreliable": any(run.outcome.doubts()),
            "faulty": recording.noise_fails(),
        }
    finite = {
        name: value for name, value in metrics.items() if math.isfinite(value)
    }
    return finite | {
        f"epsilon-{status}": int(is_so) for status, is_so in statuses.items()
    }


def rename_ours(run: AuditedRun, metrics: Any) -> Any:
    """A strategy's metrics, with the prefix "clients-" for reserved names, which is a fault."""
    if not isinstance(metrics, MetricRecord):
        return metrics
    clashes = OURS & metrics.keys()
    if not clashes:
        return metrics
    text = f"clients have metrics with the audit's names: {', '.join(sorted(clashes))}"
    if run.faults.is_new(text):
        index = run.state.index
        text = f"{text}; the clients' metrics now begin with clients-"
        run.faults.book.add(index, FaultKind.METRICS_RENAMED, text)
    return MetricRecord(
        {
            f"clients-{name}" if name in clashes else name: value
            for name, value in metrics.items()
        }
    )
