"""What ``report.json`` holds; ``report.schema.json`` beside this file is its JSON schema."""

from collections.abc import Iterable

from fl_epe.auditing import Answer, installed_versions
from fl_epe.checks import finite
from fl_epe.reporting.details import details
from fl_epe.reporting.numbers import JSON, as_json, finite_numbers
from fl_epe.reporting.reliability import canary_share
from fl_epe.reporting.summary import SMALL_DELTA, Summary

SCHEMA = 1
"""It grows where a key gets another meaning, not where one is added."""


def as_report(summary: Summary) -> JSON:
    """As JSON values; ``None`` for a number that is infinite or unknown."""
    made = summary.record and summary.record.provenance

    def values(found: Iterable[Answer], delta: float = summary.delta) -> list[JSON]:
        return [answer_values(one, delta, summary.confidence) for one in found]

    return {
        "schema": SCHEMA,
        "status": summary.status,
        "exit_status": summary.exit_status,
        "warnings": as_json(summary.warnings),
        "answer": values(summary.answers),
        "run": _run(summary),
        "details": {
            "told_rounds": values(summary.told),
            "at_small_delta": values(summary.at_small_delta, SMALL_DELTA),
            "fits": [as_json(one.fit) for one in summary.answers],
            "questions": dict(details(summary)),
            "plan": list(summary.plan),
            "faults": list(summary.faults),
            "fault_counts": summary.fault_counts,
            "settings": as_json(summary.settings),
            "versions": made.versions if made else installed_versions(),
        },
    }


def answer_values(one: Answer, delta: float, confidence: float) -> JSON:
    """An answer as JSON values; ``unbounded`` names those of its numbers that are infinite."""
    ends = [getattr(one.estimate, name, None) for name in ("epsilon", "low", "high")]
    names = ("epsilon", "low", "high", "proved", "analytical")
    numbers = dict(
        zip(names, (*ends, one.proved or None, one.analytical.epsilon), strict=True)
    )
    return {
        "sees": one.adversary.sees,
        "knows_rounds": one.adversary.knows_rounds,
        "participations": finite(one.participations),
        **finite_numbers(numbers),
        "reason": one.reason or None,
        "extrapolated": one.extrapolated,
        "adjacency": one.analytical.adjacency,
        "assumption": one.analytical.assumption,
        "proof": one.proof,
        "delta": delta,
        "confidence": confidence,
    }


def _run(summary: Summary) -> JSON:
    record = summary.record
    held_out = {name.replace(" ", "_"): value for name, value in summary.held_out()}
    values: JSON = {"task": summary.task, "unit": summary.unit, "held_out": held_out}
    if record is None:
        return values | {"rounds": None, "started": None, "ended": None, "commands": []}
    made = record.provenance
    return values | {
        "rounds": record.rounds,
        "stopped_by": record.design.stop_when if record.findings.stopped else None,
        "dim": record.dim,
        "clients": record.design.num_clients,
        "canaries": record.num_canaries,
        "unobserved": record.unobserved.count,
        "canary_share": canary_share(record),
        "participation": record.mechanism.participation.name,
        "noise_multiplier": record.mechanism.noise_multiplier,
        "started": made.started,
        "ended": made.ended,
        "commands": list(made.commands),
    }
