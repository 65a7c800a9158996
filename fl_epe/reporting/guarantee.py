"""The analytical ε of a run: what its schedule guarantees, whoever happened to take part how often.

The schedule is that of the record's settings, and its ε is computed as for a comparison. Records of
deployments, and records whose settings name no schedule, have only the count of participations.
"""

from __future__ import annotations

import math

from fl_epe.accounting import UpperBound, analytical_epsilon, tightest, upper_bounds
from fl_epe.auditing import AuditRecord, RunSchedules
from fl_epe.schedules import Schedule


def analytical_bound(
    record: AuditRecord, delta: float, largest_share: float | None = None
) -> tuple[UpperBound | None, str, str]:
    """The analytical ε of a run; without one, ``None``. Then the adjacency, and the assumption.

    Args:
        record: the audit record of a run.
        delta: target δ.
        largest_share: how many times what the noise is for the heaviest client adds; ``None`` if
            nothing is known of that.
    """
    z = record.mechanism.noise_multiplier
    if z is None:
        return None, "any", "the noise is not known"
    if z and largest_share is None and record.design.noise_is_for:
        return None, "any", "what the heaviest client adds is not known"
    z /= max(1.0, largest_share or 1.0)
    if record.rounds == 0 or not record.presence.any():
        return None, "any", "no canary took part"
    schedule = _schedule_of(record)
    if schedule is None or schedule.kind == "poisson":
        return _by_count(record, z, delta)
    population = record.design.num_clients or record.num_canaries
    found = upper_bounds(schedule, z, delta, population)
    bound = tightest(found, rounds_known=True) or tightest(found, rounds_known=False)
    if bound is None:
        return _none_known(record)
    knows = "the adversary knows the client's rounds" if bound.rounds_known else ""
    return bound, bound.adjacency, "; ".join(filter(None, (knows, bound.assumption)))


def _schedule_of(record: AuditRecord) -> Schedule | None:
    """The canaries' schedule by the record's settings; ``None`` if they name none."""
    found = None if record.design.schedule is None else RunSchedules.of(record)
    if found is None or found.canaries.rounds < record.rounds:
        return None
    return found.canaries if found.canaries.kind == record.mechanism.participation else None


def _by_count(
    record: AuditRecord, noise_multiplier: float, delta: float
) -> tuple[UpperBound | None, str, str]:
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
        return _none_known(record)
    if expected:
        return bound, bound.adjacency, bound.assumption
    times = "once" if most == 1 else f"{most} times"
    counted = f"takes part at most {times}, the most of any observed canary"
    words = f"{bound.assumption}; {counted}, as the record names no schedule"
    return bound, bound.adjacency, words


def _none_known(record: AuditRecord) -> tuple[None, str, str]:
    kind = record.mechanism.participation
    return None, "none", f"no tight bound is known for {kind!r} schedules"
