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

from __future__ import annotations

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
    clients_law,
    epsilon_two_gaussians,
    known_expected_score_epsilon,
)
from fl_epe.auditing import FINAL_MODEL, Adversary
from fl_epe.checks import check_probability, raise_invalid
from fl_epe.limit.expected_scores import LimitSetting, RealUpdates, limit_weights
from fl_epe.schedules import Schedule, trace_of

Floats = NDArray[np.float64]

WHO = ("random", "mean", "worst-case")

_MANY_CLIENTS = 10**6  # where nobody says how many
_EPSILONS = (1e-9, 1e12)
_LEAST_NOISE = 1e-100  # used for z = 0, as real updates may be zero in some round


@dataclasses.dataclass(frozen=True)
class NoiseAdvice:
    """A noise multiplier for a wanted ε, and what a run with it would measure.

    Attributes:
        noise_multiplier: z of the clients' sum.
        epsilon: ε of the client whom ``who`` names; just below the target, or further below it if
            no noise is needed.
        measured_low: lower end of the interval that a run with the expected scores would report.
        measured_high: upper end of it.
        participations: expected participations of the client; "worst-case": what none of the
            clients exceeds.
        target_epsilon: the ε that was wanted.
        delta: δ.
        adversary: who attacks.
        who: "random", "mean" or "worst-case".
        clients: number of clients.
        num_canaries: canaries in a run that would measure ε.
        confidence: of the interval, and of what no client exceeds.
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
    who: str
    clients: int
    num_canaries: int
    confidence: float
    notes: tuple[str, ...]


def noise_for_epsilon(
    schedule: Schedule,
    target_epsilon: float,
    delta: float,
    *,
    adversary: Adversary = FINAL_MODEL,
    who: str = "random",
    num_canaries: int = 2000,
    population: int | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    **setting: Unpack[LimitSetting],
) -> NoiseAdvice:
    """The noise multiplier at which a schedule's canaries are expected to measure an ε.

    Args:
        schedule: the participation schedule.
        target_epsilon: ε that is wanted, in [1e-9, 1e12].
        delta: δ in (0, 1).
        adversary: who sees the final model, or every round's, and knows who
            took part when.
        who: "random", a client drawn at random; "mean", one with the mean expected score; or
            "worst-case", what none of the clients exceeds with this confidence.
        num_canaries: canaries of a run that would measure, at least 2.
        population: number of clients; of a trace its own, otherwise a million by default.
        confidence: of the interval and of the worst-case client, in (0, 1).
        seed: of the clients that are drawn where the schedule has no law in closed form.
        setting: see `LimitSetting`.

    Raises:
        ValueError: if an argument is out of range, if no canary takes part, or if the schedule has
            no law and drawing clients would take minutes.
    """
    _check(target_epsilon, delta, adversary, who, num_canaries, confidence)
    trace = trace_of(schedule)
    clients = (population or _MANY_CLIENTS) if trace is None else trace.population
    client = _Client(schedule, adversary, who, clients, delta, confidence, seed, setting)
    if num_canaries * (1 - client.absent) < 1:
        raise ValueError(f"Expected num_canaries={num_canaries} to be enough that some take part.")
    z = _noise_for(client.epsilon, target_epsilon)
    law = client.law(z)
    spread = float(scipy.special.ndtri((1 + confidence) / 2)) / math.sqrt(
        num_canaries * float(law.shares @ law.expected_scores**2)
    )
    return NoiseAdvice(
        noise_multiplier=z,
        epsilon=client.epsilon(z),
        measured_low=client.epsilon(z, max(1 - spread, 0.0)),
        measured_high=client.epsilon(z, 1 + spread),
        participations=client.participations,
        target_epsilon=target_epsilon,
        delta=delta,
        adversary=adversary,
        who=who,
        clients=clients,
        num_canaries=num_canaries,
        confidence=confidence,
        notes=tuple(_notes(client, z)),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Client:
    """The client whom ``who`` names, and its ε as a function of z."""

    schedule: Schedule
    adversary: Adversary
    who: str
    clients: int
    delta: float
    confidence: float
    seed: int
    setting: LimitSetting

    @property
    def real(self) -> RealUpdates | None:
        """The real updates, if they are not left out."""
        return self.setting.get("real")

    def epsilon(self, noise_multiplier: float, scale: float = 1.0, who: str | None = None) -> float:
        """ε at z, with all expected scores times ``scale``."""
        law, who = self.law(noise_multiplier), who or self.who
        if who == "random":
            sizes = scale * law.expected_scores
            return known_expected_score_epsilon(sizes, self.delta, weights=law.shares)
        if who == "mean":
            return _epsilon(scale * self._meant(law).mean, self.delta)
        largest = law.largest(self.clients, self.confidence)
        if largest is None:
            raise ValueError(
                f"Expected fewer than {self.clients:,} clients, as the schedule has no law in "
                "closed form: to draw all of them would take minutes."
            )
        return _epsilon(scale * largest, self.delta)

    def law(self, noise_multiplier: float) -> ExpectedScoreLaw:
        """The law of the expected score at z."""
        z = max(noise_multiplier, _LEAST_NOISE)
        if self.real is not None and self.adversary.sees == "all":
            return self._computed(z)
        # The same factor applies to all rounds.
        added = 0.0 if self.real is None else self.real.final
        factor = math.sqrt((1 + added) / (z**2 + added))
        return self._unit.scaled(factor)

    @functools.cached_property
    def _unit(self) -> ExpectedScoreLaw:
        return self._computed(1.0)

    def _computed(self, z: float) -> ExpectedScoreLaw:
        weights = limit_weights(self.schedule.rounds, z, **self.setting)
        found = self._of(weights[("final", "all").index(self.adversary.sees)])
        return found.root() if self.adversary.sees == "all" else found

    def _of(self, weights: Floats) -> ExpectedScoreLaw:
        largest = float(weights.max())  # a law of small numbers would lose the smallest
        found = clients_law(
            self.schedule,
            weights / largest,
            self.clients,
            confidence=self.confidence,
            seed=self.seed,
        )
        if found is None:
            raise ValueError(
                f"Expected a schedule with a law in closed form, or fewer rounds: to draw "
                f"clients of {self.schedule.kind!r} would take minutes."
            )
        return found.scaled(largest)

    @functools.cached_property
    def _counts(self) -> ExpectedScoreLaw:
        return self._of(np.ones(self.schedule.rounds))

    @property
    def absent(self) -> float:
        """Probability that a client never takes part."""
        law = self._counts
        return float(law.shares[law.expected_scores == 0].sum())

    @property
    def participations(self) -> float:
        """Mean participations of the client, or what none of the clients exceeds."""
        if self.who != "worst-case":
            return self._meant(self._counts).mean
        most = self._counts.largest(self.clients, self.confidence)
        return float(self._counts.expected_scores[-1]) if most is None else most

    def _meant(self, law: ExpectedScoreLaw) -> ExpectedScoreLaw:
        """The clients over whom an audit takes the mean."""
        here = law.expected_scores > 0
        if self.adversary.sees == "final" or self.who == "random" or np.all(here):
            return law
        return ExpectedScoreLaw.of(law.expected_scores[here], law.shares[here])


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

    z = math.exp(_root(miss, "noise_multiplier"))
    step = 1e-12
    while level(z) > wanted:
        z, step = z * (1 + step), 2 * step
    return z


def _root(miss: Callable[[float], float], name: str) -> float:
    """The zero of a monotone function ``miss`` of the logarithm of the argument ``name``."""
    low, high = -1.0, 1.0
    rising = miss(high) > miss(low)
    while high - low < 500:
        below, above = (miss(end) if rising else -miss(end) for end in (low, high))
        if below <= 0 <= above:
            return float(scipy.optimize.brentq(miss, low, high, xtol=1e-13, rtol=1e-13))
        low, high = (2 * low, low) if below > 0 else (high, 2 * high)
    raise ValueError(f"Expected {name} in [e^-512, e^512], found none that fits.")


def _epsilon(shift: float, delta: float) -> float:
    return float(epsilon_two_gaussians(0.0, 1.0, shift, 1.0, delta))


def _notes(client: _Client, z: float) -> list[str]:
    notes = ["This is an estimate for random canaries, not a guarantee of differential privacy."]
    if z == 0:
        notes.append(
            "Real updates alone are enough against random canaries. Without noise there is no "
            "guarantee: an attack that knows more about the updates finds its client."
        )
    if client.real is None:
        notes.append("Real updates are left out; they would lower ε.")
    else:
        notes.append(
            "Real updates and clip norms are held as they were measured, although another noise "
            "multiplier would change them."
        )
    found = client.law(z)
    if found.drawn:
        notes.append(f"The schedule has no law in closed form: {found.drawn:,} clients were drawn.")
    if found.equal:
        return notes
    words = {
        "random": "a client drawn at random has ε = {:.3g}",
        "mean": "one with the mean expected score has ε = {:.3g}",
        "worst-case": f"with {client.confidence:.0%} confidence none of {client.clients:,} "
        "clients has an ε above {:.3g}",
    }
    if not found.whole:
        del words["worst-case"]
    others = [
        text.format(client.epsilon(z, who=who)) for who, text in words.items() if who != client.who
    ]
    return [*notes, f"At that z, {', and '.join(others)}."]


def _check(
    target_epsilon: float,
    delta: float,
    adversary: Adversary,
    who: str,
    num_canaries: int,
    confidence: float,
) -> None:
    least, most = _EPSILONS
    if not least <= target_epsilon <= most:
        raise_invalid("target_epsilon", target_epsilon, f"in [{least:g}, {most:g}]")
    check_probability("delta", delta)
    check_probability("confidence", confidence)
    if not adversary.knows_rounds or adversary.knows_others:
        raise_invalid("adversary", adversary, "to know the rounds, and not the other clients")
    if who not in WHO:
        raise ValueError(f"Expected who={who!r} to be one of {WHO}.")
    if num_canaries < 2:
        raise_invalid("num_canaries", num_canaries, ">= 2")
