"""The content of ``report.json``, whose JSON schema is ``report.schema.json``."""

from collections.abc import Iterable

from fl_epe.auditing import Answer, installed_versions
from fl_epe.checks import finite
from fl_epe.reporting.details import details
from fl_epe.reporting.numbers import JSON, as_json, finite_numbers
from fl_epe.reporting.reliability import canary_share
from fl_epe.reporting.summary import CONFIDENCE, SMALL_DELTA, Summary

SCHEMA = 1
"""Version of the format; it grows if a key changes its meaning, not if a key is added."""


def as_report(summary: Summary) -> JSON:
    """The report as JSON values; ``None`` for a number that is infinite or unknown."""
    record = summary.record

    def values(
        answers: Iterable[Answer], delta: float = summary.delta
    ) -> list[JSON]:
        return [answer_values(answer, delta) for answer in answers]

    return {
        "schema": SCHEMA,
        "status": summary.status,
        "exit_status": summary.exit_status,
        "warnings": as_json(summary.warnings),
        "answer": values(summary.answers),
        "run": _run(summary),
        "details": {
            "told_rounds": values(summary.answers_with_known_rounds),
            "at_small_delta": values(summary.at_small_delta, SMALL_DELTA),
            "fits": [as_json(answer.fit) for answer in summary.answers],
            "questions": dict(details(summary)),
            "plan": list(summary.plan),
            "faults": list(summary.faults),
            "fault_counts": summary.fault_counts,
            "settings": as_json(summary.settings),
            "versions": (
                installed_versions()
                if record is None
                else record.provenance.versions
            ),
        },
    }


def answer_values(answer: Answer, delta: float) -> JSON:
    """An answer as JSON values; ``unbounded`` has the names of its infinite numbers."""
    names = ("epsilon", "low", "high")
    numbers = {name: getattr(answer.estimate, name, None) for name in names}
    numbers["proved"] = answer.proved or None
    numbers["analytical"] = answer.analytical.epsilon
    return {
        "sees": answer.adversary.sees,
        "knows_rounds": answer.adversary.knows_rounds,
        "participations": finite(answer.participations),
        **finite_numbers(numbers),
        "reason": answer.reason or None,
        "extrapolated": answer.extrapolated,
        "adjacency": answer.analytical.adjacency,
        "assumption": answer.analytical.assumption,
        "proof": answer.proof,
        "delta": delta,
        "confidence": CONFIDENCE,
    }


def _run(summary: Summary) -> JSON:
    record = summary.record
    held_out = {
        name.replace(" ", "_"): value for name, value in summary.held_out()
    }
    values: JSON = {
        "task": summary.task,
        "unit": summary.unit,
        "held_out": held_out,
    }
    if record is None:
        return values | {
            "rounds": None,
            "started": None,
            "ended": None,
            "commands": [],
        }
    provenance = record.provenance
    return values | {
        "rounds": record.rounds,
        "stopped_by": record.design.stop_when
        if record.findings.stopped
        else None,
        "dim": record.dim,
        "clients": record.design.num_clients,
        "canaries": record.num_canaries,
        "unobserved": record.unobserved.count,
        "canary_share": canary_share(record),
        "participation": record.mechanism.participation.name,
        "noise_multiplier": record.mechanism.noise_multiplier,
        "started": provenance.started,
        "ended": provenance.ended,
        "commands": list(provenance.commands),
    }
