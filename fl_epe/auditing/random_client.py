"""ε of the attack on a random client, and of the most exposed of many.

Canaries leave footprints of different size where participations or clip norms differ. The few
large ones decide δ, so the ε of the mean footprint says little about the attack on a random client.
Here the footprints are put together (`fl_epe.accounting.known_footprint_epsilon`), times the
scale κ that the scores show (`footprint_fit`). Clients in general follow the law of the schedule;
where none is known, the canaries stand for them. Derivation and coverage: docs/notes/mixtures.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.accounting import (
    FootprintLaw,
    epsilon_two_gaussians,
    footprint_law,
    known_footprint_delta,
    known_footprint_epsilon,
    largest_footprint,
    simulated_law,
    unknown_footprint_epsilon,
)
from fl_epe.auditing.epsilon_estimate import EpsilonEstimate
from fl_epe.auditing.estimators import FootprintFit, footprint_fit
from fl_epe.auditing.other_canaries import without_others
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.scores import Scores
from fl_epe.auditing.statistics import ThreatModel, round_footprints
from fl_epe.config import RunConfig
from fl_epe.schedules import SCHEDULES, Schedule, make_schedule, schedule_options

Floats = NDArray[np.float64]

_UNKNOWN_POPULATION = 10**6  # where nobody says how many clients: only rounding depends on it
_FEW = 30  # canaries that carry δ; with fewer, those that were not seen may matter more


@dataclasses.dataclass(frozen=True)
class ExposedOfMany:
    """The most exposed of many clients who follow the schedule.

    Attributes:
        clients: how many there are.
        estimate: ε of the largest footprint that any of them has, with probability 97.5% where
            ``confidence`` is 95%; with the interval of κ. So with ``confidence`` none of the
            clients has an ε above ``estimate.high``.
        simulated: whether populations were simulated, as the schedule has no law in closed form.
    """

    clients: int
    estimate: EpsilonEstimate
    simulated: bool


@dataclasses.dataclass(frozen=True)
class RandomClient:
    """ε of the attack on a random client.

    Attributes:
        source: whose footprints: "schedule", clients whose rounds the schedule draws, or
            "canaries", clients from whom the canaries are a random sample.
        known: of an adversary who knows the client's rounds, and so its footprint. The interval
            has κ's error and, without a schedule, that of the sample of footprints.
        unknown: of an adversary who does not know the footprint; interval of κ alone.
        mean: of a client with the mean footprint; interval as for ``known``.
        canaries: as ``known``, for one of the canaries that took part, drawn at random.
        canaries_unknown: as ``unknown``, for one of them.
        most_exposed: of the canary with the largest footprint.
        largest: of the most exposed of the real clients; ``None`` without a schedule.
        equal: whether all footprints are equal, up to 1%: then all of this is one number.
        few: whether fewer than 30 canaries carry δ, so that without a schedule the upper end is
            that of clients who took part in every round and were not seen.
    """

    source: Literal["schedule", "canaries"]
    known: EpsilonEstimate
    unknown: EpsilonEstimate
    mean: EpsilonEstimate
    canaries: EpsilonEstimate
    canaries_unknown: EpsilonEstimate
    most_exposed: EpsilonEstimate
    largest: ExposedOfMany | None
    equal: bool
    few: bool = False


@dataclasses.dataclass(frozen=True)
class RunSchedules:
    """Who takes part when in a run.

    Attributes:
        canaries: the canaries' schedule.
        clients: the real clients' schedule.
        population: number of real clients; ``None`` if it is not known.
    """

    canaries: Schedule
    clients: Schedule
    population: int | None = None

    @classmethod
    def of(cls, record: AuditRecord) -> RunSchedules | None:
        """From the settings in a record; ``None`` if they do not tell, as for deployments."""
        config = record.provenance.config
        names = [field.name for field in dataclasses.fields(RunConfig) if field.name in config]
        if "participation" in names and "clients" in names:
            with contextlib.suppress(ValueError, TypeError, OSError):  # a file from elsewhere
                run = RunConfig.from_dict({name: config[name] for name in names})
                return cls(run.canary_schedule(), run.client_schedule(), run.clients)
            return None
        kind, mechanism = record.mechanism.participation, record.mechanism
        if kind not in SCHEDULES or any(o.needed for o in schedule_options(kind).values()):
            return None
        with contextlib.suppress(ValueError):
            schedule = make_schedule(kind, record.rounds, mechanism.canary_participations)
            return cls(schedule, schedule)
        return None


def random_client(
    record: AuditRecord,
    delta: float | None = None,
    *,
    threat: ThreatModel = "final",
    confidence: float = 0.95,
    schedules: RunSchedules | None = None,
    clients: int | None = None,
    scores: Scores | None = None,
) -> RandomClient:
    """ε of the attack on a random client of a run.

    Args:
        record: the audit record of the run.
        delta: target δ; the record's by default.
        threat: "final" (the adversary sees the final model) or "all" (every round's).
        confidence: of the intervals, and of the statement about the most exposed client.
        schedules: who takes part when; by default what the record's settings say.
        clients: of how many clients to tell the most exposed; the run's by default.
        scores: the threat's default scores, if you have them.

    Raises:
        ValueError: as `footprint_fit`.
    """
    delta = record.delta if delta is None else delta
    fit = footprint_fit(record, delta, threat=threat, confidence=confidence, scores=scores)
    record = without_others(record)
    weights, realised = round_footprints(record, threat)
    config = record.provenance.config
    heavier = (config.get("heaviest_share") or 0) > 1.1 * (
        config.get("heaviest_canary_share") or math.inf
    )
    if heavier or record.mechanism.canary_weights is not None:
        schedules = None  # clients differ by more than their rounds
    else:
        schedules = schedules or RunSchedules.of(record)
    view = _View(fit, delta, confidence, threat)
    sample = FootprintLaw.of(realised)
    law = None
    if schedules is not None:
        law = view.law(schedules.canaries, weights, schedules.population)
    if schedules is None or law is None:
        found = view.from_canaries(sample, len(realised), view.sized(weights.sum()))
        return dataclasses.replace(found, equal=found.equal and not heavier)
    many = clients or schedules.population or _UNKNOWN_POPULATION
    largest = view.largest(schedules.clients, weights, many)
    return view.from_law(law, sample, largest)


@dataclasses.dataclass(frozen=True)
class _View:
    """What all results for one adversary share."""

    fit: FootprintFit
    delta: float
    confidence: float
    threat: ThreatModel

    def sized(self, summed: float) -> float:
        """The footprint of a sum over rounds."""
        return float(np.sqrt(summed)) if self.threat == "all" else float(summed)

    def law(self, schedule: Schedule, weights: Floats, clients: int | None) -> FootprintLaw | None:
        """Law of a client's footprint; simulated where there is none in closed form."""
        added = _padded(weights, schedule.rounds)
        if added is None:
            return None
        found = footprint_law(schedule, added, clients or _UNKNOWN_POPULATION)
        if found is None:
            found = simulated_law(schedule, added, min(clients or 10_000, 10_000))
        return found.root() if found is not None and self.threat == "all" else found

    def largest(self, schedule: Schedule, weights: Floats, clients: int) -> ExposedOfMany | None:
        padded = _padded(weights, schedule.rounds)
        half = (1 + self.confidence) / 2  # the other half of the risk is κ's
        found = None if padded is None else largest_footprint(schedule, padded, clients, half)
        if found is None:
            return None
        words = f"largest footprint of {clients:,} clients"
        return ExposedOfMany(clients, self.single(self.sized(found[0]), words), found[1])

    def from_law(
        self, law: FootprintLaw, sample: FootprintLaw, largest: ExposedOfMany | None
    ) -> RandomClient:
        canaries, canaries_unknown = self.of_canaries(sample)
        return RandomClient(
            "schedule",
            known=self.mixture(law, known_footprint_epsilon, "known footprints of the schedule"),
            unknown=self.mixture(law, unknown_footprint_epsilon, "footprints of the schedule"),
            mean=self.single(law.mean, "mean footprint of the schedule"),
            canaries=canaries,
            canaries_unknown=canaries_unknown,
            most_exposed=self.fit.most_exposed,
            largest=largest,
            equal=law.equal,
        )

    def from_canaries(self, sample: FootprintLaw, count: int, most: float) -> RandomClient:
        canaries, canaries_unknown = self.of_canaries(sample)
        known, few = self.with_spread(canaries, sample, count, most)
        mean = self.single(sample.mean, "mean footprint of the canaries")
        spread = np.sqrt(sample.shares @ (sample.footprints - sample.mean) ** 2)
        wide = self.quantile * self.fit.scale * float(spread) / np.sqrt(count)
        down, up = (np.hypot((e - self.fit.scale) * sample.mean, wide) for e in self.ends)
        shift = self.fit.scale * sample.mean
        low, high = (float(_epsilon(s, self.delta)) for s in (shift - down, shift + up))
        return RandomClient(
            "canaries",
            known=known,
            unknown=canaries_unknown,
            mean=dataclasses.replace(mean, low=low, high=high),
            canaries=canaries,
            canaries_unknown=canaries_unknown,
            most_exposed=self.fit.most_exposed,
            largest=None,
            equal=sample.equal,
            few=few,
        )

    def of_canaries(self, sample: FootprintLaw) -> tuple[EpsilonEstimate, EpsilonEstimate]:
        """Of one of the canaries: with a footprint that is known, and with one that is not."""
        return (
            self.mixture(sample, known_footprint_epsilon, "known footprints of the canaries"),
            self.mixture(sample, unknown_footprint_epsilon, "footprints of the canaries"),
        )

    def with_spread(
        self, plain: EpsilonEstimate, sample: FootprintLaw, count: int, most: float
    ) -> tuple[EpsilonEstimate, bool]:
        """The interval with the error of the sample of footprints, and whether few carry δ."""
        if plain.epsilon == 0 or not np.isfinite(plain.epsilon):
            return plain, False
        sizes = self.fit.scale * sample.footprints
        each = np.array([known_footprint_delta([m], plain.epsilon) for m in sizes])
        mean = float(sample.shares @ each)
        step = 1e-4 * plain.epsilon
        ends = [
            known_footprint_delta(sizes, plain.epsilon + s, weights=sample.shares)
            for s in (-step, step)
        ]
        slope = (ends[0] - ends[1]) / (2 * step)
        error = self.quantile * float(np.sqrt(sample.shares @ (each - mean) ** 2 / count))
        wide = error / slope if slope > 0 else (np.inf if error > 0 else 0.0)
        low = max(plain.epsilon - float(np.hypot(plain.epsilon - plain.low, wide)), 0.0)
        high = plain.epsilon + float(np.hypot(plain.high - plain.epsilon, wide))
        few = not sample.equal and count * mean**2 / float(sample.shares @ each**2) < _FEW
        if few:
            unseen = 1 - ((1 - self.confidence) / 2) ** (1 / count)
            both = self.fit.high * np.array([sample.footprints[-1], most])
            high = known_footprint_epsilon(both, self.delta, weights=[1 - unseen, unseen])
        return dataclasses.replace(plain, low=low, high=high), few

    @property
    def ends(self) -> tuple[float, float]:
        """Lower and upper end of κ."""
        return self.fit.low, self.fit.high

    @property
    def quantile(self) -> float:
        return float(scipy.special.ndtri((1 + self.confidence) / 2))

    def mixture(
        self, law: FootprintLaw, epsilon_of: Callable[..., float], words: str
    ) -> EpsilonEstimate:
        """ε at κ and at both ends of its interval."""
        middle, low, high = (
            epsilon_of(max(scale, 0.0) * law.footprints, self.delta, weights=law.shares)
            for scale in (self.fit.scale, *self.ends)
        )
        method = f"footprint regression, {words}"
        return EpsilonEstimate(middle, low, high, self.delta, self.confidence, method)

    def single(self, footprint: float, words: str) -> EpsilonEstimate:
        middle, low, high = (
            float(_epsilon(scale * footprint, self.delta)) for scale in (self.fit.scale, *self.ends)
        )
        method = f"footprint regression, {words}"
        return EpsilonEstimate(middle, low, high, self.delta, self.confidence, method)


def _epsilon(shift: float, delta: float) -> float:
    return float(epsilon_two_gaussians(0.0, 1.0, max(shift, 0.0), 1.0, delta))


def _padded(weights: Floats, rounds: int) -> Floats | None:
    """Weights of all rounds of a schedule; rounds that a stopped run never reached add nothing."""
    if len(weights) > rounds:
        return None
    return np.append(weights, np.zeros(rounds - len(weights)))
