"""What an audit adds to the metrics of a round: ε so far, and whether it is to be relied on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from flwr.app import MetricRecord

from fl_epe.auditing import FaultKind, answer_metrics
from fl_epe.flower.audit_record import noise_multipliers, run_doubts

if TYPE_CHECKING:
    from fl_epe.flower.audited_run import AuditedRun

_ENDS = ("", "-low", "-high", "-proved")
_STATUSES = ("unreliable", "faulty")
OURS = {
    *(f"epsilon-{sees}{end}" for sees in ("final", "all") for end in _ENDS),
    *(f"epsilon-{status}" for status in _STATUSES),
    "epsilon-analytical",
}
"""Names of the metrics that are the audit's alone."""


def epsilons(run: AuditedRun) -> dict[str, float]:
    """ε after the round and what theory allows, as metrics; at last those of the report.

    Beside an ε "epsilon-unreliable" and "epsilon-faulty" are 1 if that is its status, else 0. What
    only the scores of the whole run tell is known after the last round, and noise is looked at
    after 1, 2, 4, 8, … rounds.
    """
    z, _ = noise_multipliers(run)
    found = run.auditor.metrics_so_far(z, run.wrapped.expected_replies())
    statuses: dict[str, bool] = {}
    if run.auditor.canaries_seen and run.index == run.rounds:
        from fl_epe.reporting import summarize  # slow to import

        summary = summarize(run.record())
        found = answer_metrics(summary.answers)
        warned = {warning.status for warning in summary.warnings}
        statuses = {status: status in warned for status in _STATUSES}
    elif not math.isnan(found["epsilon-all"]):
        statuses = {"unreliable": any(run_doubts(run)), "faulty": run.noise_fails()}
    known = {name: value for name, value in found.items() if math.isfinite(value)}
    return known | {
        f"epsilon-{status}": int(is_so) for status, is_so in statuses.items()
    }


def rename_ours(run: AuditedRun, metrics: Any) -> Any:
    """A strategy's metrics, of which those with names of ours begin with "clients-"; a fault."""
    taken = OURS & metrics.keys() if isinstance(metrics, MetricRecord) else set()
    if not taken:
        return metrics
    text = f"clients have metrics with names of the audit's: {', '.join(sorted(taken))}"
    if text not in run.warned:
        run.warned.add(text)
        kind = FaultKind.METRICS_RENAMED
        run.faults.add(run.index, kind, f"{text}; theirs begin with clients- now")
    return MetricRecord(
        {
            f"clients-{name}" if name in taken else name: value
            for name, value in metrics.items()
        }
    )
