"""ε of the attack on an average-case client, and of the worst case of many.

Canaries leave expected scores of different size where participations or clip norms differ. The few
large ones decide δ, so the ε of the mean expected score says little about the attack on an
average-case client. Here the expected scores are put together
(`fl_epe.accounting.known_expected_score_epsilon`), times the scale κ that the scores show
(`expected_score_fit`). Clients in general follow the law of the schedule; where none is known, the
canaries stand for them. Derivation and coverage: docs/notes/mixtures.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import scipy

from fl_epe.accounting import (
    ExpectedScoreLaw,
    draws_whole,
    expected_score_law,
    known_expected_score_delta,
    known_expected_score_epsilon,
    simulated_law,
    unknown_expected_score_epsilon,
)
from fl_epe.auditing.epsilon_estimate import EpsilonEstimate, estimate_at
from fl_epe.auditing.estimators import ExpectedScoreFit, expected_score_fit
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.view import View
from fl_epe.checks import Floats
from fl_epe.schedules import Schedule, make_schedule

_DRAWN = 10_000  # clients, at most, of a law that is not known in closed form
_UNKNOWN_POPULATION = 10**6  # where nobody says how many clients: only rounding depends on it
_FEW = 30  # canaries that carry δ; with fewer, those that were not seen may matter more


@dataclasses.dataclass(frozen=True)
class ExposedOfMany:
    """The worst case of many clients who follow the schedule.

    Attributes:
        clients: how many there are.
        estimate: ε of the largest expected score that any of them has, with probability 97.5% where
            ``confidence`` is 95%; with the interval of κ. So with ``confidence`` none of the
            clients has an ε above ``estimate.high``.
        simulated: whether populations were simulated, as the schedule has no law in closed form.
    """

    clients: int
    estimate: EpsilonEstimate
    simulated: bool


@dataclasses.dataclass(frozen=True)
class AverageCaseClient:
    """ε of the attack on an average-case client.

    Attributes:
        source: whose expected scores: "schedule", clients whose rounds the schedule draws, or
            "canaries", clients from whom the canaries are a random sample.
        known: of an adversary who knows the client's rounds, and so its expected score. The
            interval has κ's error and, without a schedule, that of the sample of expected scores.
        unknown: of an adversary who does not know the expected score; interval of κ alone.
        mean: of a client with the mean expected score; interval as for ``known``.
        canaries: as ``known``, for one of the canaries that took part, drawn at random.
        canaries_unknown: as ``unknown``, for one of them.
        worst_case: of the canary with the largest expected score.
        largest: of the worst case of the real clients; ``None`` without a schedule.
        equal: whether all expected scores are equal, up to 1%: then all of this is one number.
        few: whether fewer than 30 canaries carry δ, so that without a schedule the upper end is
            that of clients who took part in every round and were not seen.
    """

    source: Literal["schedule", "canaries"]
    known: EpsilonEstimate
    unknown: EpsilonEstimate
    mean: EpsilonEstimate
    canaries: EpsilonEstimate
    canaries_unknown: EpsilonEstimate
    worst_case: EpsilonEstimate
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
        design, participations = record.design, record.mechanism.canary_participations
        clients, rounds, each = design.num_clients, design.num_rounds, design.clients_per_round
        with contextlib.suppress(OSError, ValueError):  # an edited file, or a kind with options
            if design.schedule is None or clients is None:
                schedule = make_schedule(
                    record.mechanism.participation, record.rounds, participations
                )
                return cls(schedule, schedule)
            if rounds is not None and each is not None:
                return cls(
                    make_schedule(design.schedule, rounds, participations),
                    make_schedule(design.schedule, rounds, rounds * each / clients),
                    clients,
                )
        return None


def average_case_client(
    view: View,
    delta: float | None = None,
    *,
    confidence: float = 0.95,
    schedules: RunSchedules | None = None,
    clients: int | None = None,
) -> AverageCaseClient:
    """ε of the attack on an average-case client of a run.

    Args:
        view: of an adversary on the record of the run.
        delta: target δ; the record's by default.
        confidence: of the intervals, and of the statement about the worst-case client.
        schedules: the participation schedule; by default the one in the record's settings.
        clients: of how many clients to tell the worst case; the run's by default.

    Raises:
        ValueError: as `expected_score_fit`.
    """
    record = view.record
    delta = record.delta if delta is None else delta
    fit = expected_score_fit(view, delta, confidence=confidence)
    realised = view.all_expected_scores
    of_canary = record.findings.heaviest_canary_share or math.inf
    heavier = (record.findings.heaviest_share or 0) > 1.1 * of_canary
    more = heavier or record.mechanism.canary_weights is not None  # than rounds differs
    schedules = None if more else schedules or RunSchedules.of(record)
    client, sample = _Client(fit, delta, confidence, view), ExpectedScoreLaw.of(realised)
    canaries, canaries_unknown = client.mixtures(sample, "canaries")
    law = None
    if schedules is not None:
        many = schedules.population or _UNKNOWN_POPULATION
        law = client.law(schedules.canaries, many, min(schedules.population or _DRAWN, _DRAWN))
    largest, few = None, False
    if schedules is None or law is None:
        most = float(view.expected_of(np.ones((record.rounds, 1), bool))[0])
        known, few = client.with_spread(canaries, sample, len(realised), most)
        unknown, mean = canaries_unknown, client.mean_of(sample, len(realised))
        equal = sample.equal and not heavier
    else:
        known, unknown = client.mixtures(law, "schedule")
        mean, equal = client.single(law.mean, "mean expected score of the schedule"), law.equal
        many = clients or schedules.population or _UNKNOWN_POPULATION
        largest = client.largest(schedules.clients, many)
    return AverageCaseClient(
        "canaries" if law is None else "schedule",
        known=known,
        unknown=unknown,
        mean=mean,
        canaries=canaries,
        canaries_unknown=canaries_unknown,
        worst_case=fit.worst_case,
        largest=largest,
        equal=equal,
        few=few,
    )


@dataclasses.dataclass(frozen=True)
class _Client:
    fit: ExpectedScoreFit
    delta: float
    confidence: float
    view: View

    def law(
        self, schedule: Schedule, clients: int, drawn: int, confidence: float = 0.95
    ) -> ExpectedScoreLaw | None:
        """Law of a client's expected score; of ``drawn`` clients if none is in closed form."""
        view = self.view
        if (missing := schedule.rounds - view.record.rounds) < 0:
            return None
        if not view.adds_up(schedule):
            return view.drawn_law(schedule, drawn, confidence=confidence)
        added = np.append(view.weights, np.zeros(missing))  # a stopped run never reached the last
        found = expected_score_law(schedule, added, clients)
        found = found or simulated_law(schedule, added, drawn, confidence=confidence)
        return found.root() if found is not None and view.adversary.sees == "all" else found

    def largest(self, schedule: Schedule, clients: int) -> ExposedOfMany | None:
        half = (1 + self.confidence) / 2  # the other half of the risk is κ's
        if not (self.view.adds_up(schedule) or draws_whole(schedule, clients, half)):
            return None
        law = self.law(schedule, clients, clients, half)
        if law is None or (largest := law.largest(clients, half)) is None:
            return None
        words = f"largest expected score of {clients:,} clients"
        return ExposedOfMany(clients, self.single(largest, words), law.drawn > 0)

    def mixtures(self, law: ExpectedScoreLaw, of: str) -> tuple[EpsilonEstimate, EpsilonEstimate]:
        """With a known expected score, and with an unknown one."""
        words = f"expected scores of the {of}"
        return (
            self.mixture(law, known_expected_score_epsilon, f"known {words}"),
            self.mixture(law, unknown_expected_score_epsilon, words),
        )

    def mean_of(self, sample: ExpectedScoreLaw, count: int) -> EpsilonEstimate:
        """At the mean of a sample of expected scores, whose error widens the interval."""
        spread = np.sqrt(sample.shares @ (sample.expected_scores - sample.mean) ** 2)
        wide = self.quantile * self.fit.scale * float(spread) / np.sqrt(count)
        down, up = (
            np.hypot((e - self.fit.scale) * sample.mean, wide)
            for e in (self.fit.low, self.fit.high)
        )
        shift = self.fit.scale * sample.mean
        shifts = np.array([shift, shift - down, shift + up])
        return self.at(shifts, "mean expected score of the canaries")

    def with_spread(
        self, plain: EpsilonEstimate, sample: ExpectedScoreLaw, count: int, most: float
    ) -> tuple[EpsilonEstimate, bool]:
        """The interval with the error of the sample of expected scores, and whether few carry δ."""
        if plain.epsilon == 0 or not np.isfinite(plain.epsilon):
            return plain, False
        sizes = self.fit.scale * sample.expected_scores
        each = np.array([known_expected_score_delta([m], plain.epsilon) for m in sizes])
        mean = float(sample.shares @ each)
        step = 1e-4 * plain.epsilon
        ends = [
            known_expected_score_delta(sizes, plain.epsilon + s, weights=sample.shares)
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
            both = self.fit.high * np.array([sample.expected_scores[-1], most])
            high = known_expected_score_epsilon(both, self.delta, weights=[1 - unseen, unseen])
        return dataclasses.replace(plain, low=low, high=high), few

    @property
    def quantile(self) -> float:
        return float(scipy.special.ndtri((1 + self.confidence) / 2))

    def mixture(
        self, law: ExpectedScoreLaw, epsilon_of: Callable[..., float], words: str
    ) -> EpsilonEstimate:
        known = epsilon_of is known_expected_score_epsilon
        middle, low, high = (
            epsilon_of(max(scale, 0.0) * law.expected_scores, self.delta, weights=law.shares)
            for scale in (self.fit.scale, self.fit.low, self.fit.high)
        )
        return EpsilonEstimate(
            middle,
            low,
            high,
            self.delta,
            self.confidence,
            f"expected score regression, {words}",
            dataclasses.replace(self.view.adversary, knows_rounds=known),
        )

    def single(self, expected_score: float, words: str) -> EpsilonEstimate:
        scales = np.array([self.fit.scale, self.fit.low, self.fit.high])
        return self.at(scales * expected_score, words)

    def at(self, shifts: Floats, words: str) -> EpsilonEstimate:
        method = f"expected score regression, {words}"
        return estimate_at(shifts, self.delta, self.confidence, method, self.view.adversary)
