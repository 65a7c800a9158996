"""The noise multiplier for a wanted ε, in the limit of a large model.

The limit gives the expected score of a client for a noise multiplier z, and a score gives an ε.
Here this is solved for z. The result is an estimate of what random canaries would measure. For a
guarantee take z from an analytical bound (`fl_epe.accounting`).
Method and intervals: docs/notes/limit.md.

Examples:
    >>> from fl_epe.schedules import Poisson
    >>> advice = noise_for_epsilon(Poisson(rounds=10, rate=0.5), 2.0, 1e-5, num_canaries=100)
    >>> advice.measured_low < advice.epsilon <= 2.0 < advice.measured_high
    True
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Unpack

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.accounting import (
    ExpectedScoreLaw,
    UpperBound,
    epsilon_two_gaussians,
    known_expected_score_epsilon,
    tightest,
)
from fl_epe.auditing import FINAL_MODEL, Adversary
from fl_epe.checks import ArgumentError, Floats, check_probability, raise_invalid
from fl_epe.limit.measure import bounds_with, client_law, score_law
from fl_epe.limit.simulated_record import LimitSetting
from fl_epe.schedules import Schedule, trace_of

_MANY_CLIENTS = 10**6  # where nobody says how many
_LEAST_NOISE = 1e-60  # used for z = 0, as real updates may be zero in some round


@dataclasses.dataclass(frozen=True)
class NoiseAdvice:
    """A noise multiplier for a wanted ε, and what a run with it would measure.

    Attributes:
        noise_multiplier: z of the clients' sum.
        epsilon: ε of the client; just below the target, or further below it if no noise is needed.
        measured_low: lower end of the interval that a run with the expected scores would report.
        measured_high: upper end of it.
        participations: expected participations of the client; of the worst case, what none of the
            clients exceeds.
        target_epsilon: the ε that was wanted.
        delta: δ.
        adversary: who attacks.
        worst_case: whether ε is that of the worst case of all clients, not of a client drawn at
            random.
        clients: number of clients.
        num_canaries: canaries in a run that would measure ε.
        confidence: of the interval, and of what no client exceeds.
        analytical: the tightest bounds for the client at that z, for rounds that the adversary
            knows and, if another, for unknown rounds.
        notes: assumptions and warnings, one sentence or two each.
    """

    noise_multiplier: float
    epsilon: float
    measured_low: float
    measured_high: float
    participations: float
    target_epsilon: float
    delta: float
    adversary: Adversary
    worst_case: bool
    clients: int
    num_canaries: int
    confidence: float
    analytical: tuple[UpperBound, ...]
    notes: tuple[str, ...]


def noise_for_epsilon(
    schedule: Schedule,
    target_epsilon: float,
    delta: float,
    *,
    adversary: Adversary = FINAL_MODEL,
    worst_case: bool = False,
    num_canaries: int = 2000,
    population: int | None = None,
    confidence: float = 0.95,
    strategy: Floats | None = None,
    **setting: Unpack[LimitSetting],
) -> NoiseAdvice:
    """The noise multiplier at which a schedule's canaries are expected to measure an ε.

    Args:
        schedule: the participation schedule.
        target_epsilon: ε that is wanted, in [1e-9, 1e12].
        delta: δ in (0, 1).
        adversary: who sees the final model, or every round's, and knows who took part when.
        worst_case: whether ε is what none of the clients exceeds with this confidence, not that of
            a client drawn at random.
        num_canaries: canaries of a run that would measure, at least 2.
        population: number of clients; of a trace its own, otherwise a million by default.
        confidence: of the interval and of the worst-case client, in (0, 1).
        strategy: of correlated noise, shape ``(T, T)``.
        setting: see `LimitSetting`.

    Raises:
        ValueError: if an argument is out of range, if no canary takes part, or if the schedule has
            no law and drawing clients would take minutes.
    """
    if not 1e-9 <= target_epsilon <= 1e12:
        raise_invalid("target_epsilon", target_epsilon, "in [1e-09, 1e+12]")
    check_probability("delta", delta)
    check_probability("confidence", confidence)
    if not adversary.knows_rounds or adversary.knows_others:
        raise_invalid("adversary", adversary, "to know the rounds, and not the other clients")
    if num_canaries < 2:
        raise_invalid("num_canaries", num_canaries, ">= 2")
    trace = trace_of(schedule)
    clients = (population or _MANY_CLIENTS) if trace is None else trace.population
    client = _Client(schedule, adversary, clients, delta, confidence, strategy, setting)
    counts = client.law_of(np.ones(schedule.rounds))
    if num_canaries * (1 - float(counts.shares[counts.expected_scores == 0].sum())) < 1:
        raise ValueError(f"Expected num_canaries={num_canaries} to be enough that some take part.")
    epsilon = client.worst_case if worst_case else client.average_case
    z = _noise_for(epsilon, target_epsilon)
    law = client.law(z)
    spread = float(scipy.special.ndtri((1 + confidence) / 2)) / math.sqrt(
        num_canaries * float(law.shares @ law.expected_scores**2)
    )
    often = counts.largest(clients, confidence) if worst_case else counts.mean
    bounds = [
        bound
        for bound in bounds_with(schedule, z, delta, clients, strategy)
        if not (worst_case and bound.averages)
    ]
    both = [tightest(bounds, rounds_known=known) for known in (True, False)]
    return NoiseAdvice(
        noise_multiplier=z,
        epsilon=epsilon(z),
        measured_low=epsilon(z, max(1 - spread, 0.0)),
        measured_high=epsilon(z, 1 + spread),
        participations=float(counts.expected_scores[-1]) if often is None else often,
        target_epsilon=target_epsilon,
        delta=delta,
        adversary=adversary,
        worst_case=worst_case,
        clients=clients,
        num_canaries=num_canaries,
        confidence=confidence,
        analytical=tuple(dict.fromkeys(both)),
        notes=tuple(_notes(client, z, worst_case)),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Client:
    """A client, and its ε as a function of z."""

    schedule: Schedule
    adversary: Adversary
    clients: int
    delta: float
    confidence: float
    strategy: Floats | None
    setting: LimitSetting

    def average_case(self, noise_multiplier: float, scale: float = 1.0) -> float:
        """ε of a client drawn at random, with all expected scores times ``scale``."""
        law = self.law(noise_multiplier)
        sizes = scale * law.expected_scores
        return known_expected_score_epsilon(sizes, self.delta, weights=law.shares)

    def worst_case(self, noise_multiplier: float, scale: float = 1.0) -> float:
        """ε that no client exceeds, with all expected scores times ``scale``."""
        largest = self.law(noise_multiplier).largest(self.clients, self.confidence)
        if largest is None:
            raise ArgumentError(
                "Expected fewer {population}, as their scores have no law in closed form: to draw "
                "all of them would take minutes.",
                population=self.clients,
            )
        return float(epsilon_two_gaussians(0.0, 1.0, scale * largest, 1.0, self.delta))

    def law(self, noise_multiplier: float) -> ExpectedScoreLaw:
        z, real = max(noise_multiplier, _LEAST_NOISE), self.setting.get("real")
        if real is not None and (self.adversary.sees == "all" or self.strategy is not None):
            return self._computed(z)
        # The same factor applies to all rounds.
        added = 0.0 if real is None else real.final
        return self._unit.scaled(math.sqrt((1 + added) / (z**2 + added)))

    @functools.cached_property
    def _unit(self) -> ExpectedScoreLaw:
        return self._computed(1.0)

    def _computed(self, z: float) -> ExpectedScoreLaw:
        sees, clients, strategy = self.adversary.sees, self.clients, self.strategy
        return score_law(self.schedule, z, sees, clients, self.confidence, strategy, **self.setting)

    def law_of(self, weights: NDArray[np.float64]) -> ExpectedScoreLaw:
        """The law of the sum of ``weights`` over a client's rounds."""
        return client_law(self.schedule, weights, self.clients, self.confidence)


def _noise_for(level: Callable[[float], float], wanted: float) -> float:
    """The smallest z, up to rounding, at which ε is at most ``wanted``.

    Args:
        level: ε by z, which falls as z grows.
        wanted: ε > 0.
    """
    if level(0.0) <= wanted:
        return 0.0

    def miss(log_z: float) -> float:
        return math.log1p(min(level(math.exp(log_z)) / wanted, 1e300)) - math.log(2)

    low, high = -1.0, 1.0
    while not miss(low) >= 0 >= miss(high):
        low, high = (2 * low, low) if miss(low) < 0 else (high, 2 * high)
        if high - low > 500:
            raise ValueError("Expected noise_multiplier in [e^-512, e^512], found none that fits.")
    z = math.exp(scipy.optimize.brentq(miss, low, high, xtol=1e-13, rtol=1e-13))
    step = 1e-12
    while level(z) > wanted:
        z, step = z * (1 + step), 2 * step
    return z


def _notes(client: _Client, z: float, worst_case: bool) -> list[str]:
    notes = ["This is an estimate for random canaries, not a guarantee of differential privacy."]
    if z == 0:
        notes.append(
            "Real updates alone are enough against random canaries. Without noise there is no "
            "guarantee: an attack that knows more about the updates finds its client."
        )
    if client.setting.get("real") is None:
        notes.append("Real updates are left out; they would lower ε.")
    else:
        notes.append(
            "Real updates and clip norms are held as they were measured, although another noise "
            "multiplier would change them."
        )
    found = client.law(z)
    if found.drawn:
        notes.append(
            f"Scores have no law in closed form: those of {found.drawn:,} clients were drawn."
        )
    if worst_case and not found.equal:
        notes.append(f"At that z, a client drawn at random has ε = {client.average_case(z):.3g}.")
    elif found.whole and not found.equal:
        notes.append(
            f"At that z, with {client.confidence:.0%} confidence none of {client.clients:,} "
            f"clients has an ε above {client.worst_case(z):.3g}."
        )
    return notes
