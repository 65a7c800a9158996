"""The analytical ε of a run: what its schedule guarantees, whoever happened to take part how often.

The schedule is that of the record's settings, and its ε is computed as for a comparison. Records of
deployments, and records whose settings name no schedule, have only the count of participations.
"""

import dataclasses
import math

import numpy as np

from fl_epe.accounting import (
    UpperBound,
    analytical_epsilon,
    gaussian_epsilon,
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
    found = analytical_bound(record, delta, largest)
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
        or record.mechanism.participation != "epochs"
        or record.design.canaries_vote
    ):
        return None
    return gaussian_epsilon(
        record.mechanism.sum_noise_multiplier,
        delta,
        math.ceil(record.mechanism.canary_participations),
    )


def analytical_bound(
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
    if schedule is None or schedule.rounds < record.rounds or schedule.kind != kind:
        schedule = None  # the settings name none of this run
    if schedule is None or kind == "poisson":
        return _by_count(record, z, delta)
    population = record.design.num_clients or record.num_canaries
    bound = tightest(upper_bounds(schedule, z, delta, population), rounds_known=True)
    words = f"the adversary knows the client's rounds; {bound.assumption}"
    return dataclasses.replace(bound, assumption=words)


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
    counted = f"takes part at most {times}, the most of any observed canary"
    words = f"{bound.assumption}; {counted}, as the record names no schedule"
    return dataclasses.replace(bound, assumption=words)
