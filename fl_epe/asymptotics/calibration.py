"""The noise multiplier for a wanted ε, in the limit of a large model.

The limit gives the expected score of a client for a noise multiplier z, and a score gives an ε.
Here this is solved for z. The result is an estimate of what random canaries would measure. For a
guarantee take z from an analytical bound (`fl_epe.accounting`).
Method and intervals: docs/notes/limit.md.

Examples:
    >>> from fl_epe.schedules import Poisson
    >>> advice = noise_for_epsilon(Poisson(rounds=10, rate=0.5), 2.0, 1e-5, num_canaries=100)
    >>> advice.low < advice.noise_multiplier < advice.high
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

from fl_epe.accounting import epsilon_two_gaussians, footprint_law, known_footprint_epsilon
from fl_epe.asymptotics.expected_scores import (
    PARTICIPATION,
    LimitSetting,
    Participations,
    RealUpdates,
    limit_weights,
)
from fl_epe.auditing import ThreatModel
from fl_epe.checks import check_probability
from fl_epe.schedules import Schedule
from fl_epe.seeding import generator

Floats = NDArray[np.float64]

THREATS = ("final", "all")
WHO = ("mean", "most-exposed")

_DRAWS = 16  # of the schedule, to find the most exposed client of each
_MANY_CLIENTS = 10**6  # where nobody says how many
_EPSILONS = (1e-9, 1e12)
_LEAST_NOISE = 1e-100  # used for z = 0, as real updates may be zero in some round


@dataclasses.dataclass(frozen=True)
class NoiseAdvice:
    """A noise multiplier for a wanted ε, its interval, and what a run with it would measure.

    Attributes:
        noise_multiplier: z of the clients' sum.
        low: lower end of z's confidence interval, which covers the randomness of the schedule.
        high: upper end of it.
        epsilon: ε of the expected score at ``noise_multiplier``; just below the target, or further
            below it if no noise is needed.
        measured_low: lower end of the interval that a run with the expected scores would report.
        measured_high: upper end of it.
        participations: expected participations of the client whom ``who`` names.
        target_epsilon: the ε that was wanted.
        delta: δ.
        threat: "final" or "all".
        who: "mean" or "most-exposed".
        num_canaries: clients that were drawn, and canaries in a run that would measure ε.
        confidence: of both intervals.
        notes: assumptions and warnings, one sentence or two each.
    """

    noise_multiplier: float
    low: float
    high: float
    epsilon: float
    measured_low: float
    measured_high: float
    participations: float
    target_epsilon: float
    delta: float
    threat: ThreatModel
    who: str
    num_canaries: int
    confidence: float
    notes: tuple[str, ...]


def noise_for_epsilon(
    schedule: Schedule,
    target_epsilon: float,
    delta: float,
    *,
    threat: ThreatModel = "final",
    who: str = "mean",
    num_canaries: int = 2000,
    population: int | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    **setting: Unpack[LimitSetting],
) -> NoiseAdvice:
    """The noise multiplier at which a schedule's canaries are expected to measure an ε.

    Args:
        schedule: who takes part when. Of a `fl_epe.schedules.Trace`, canaries are random clients.
        target_epsilon: ε that is wanted, in [1e-9, 1e12].
        delta: δ in (0, 1).
        threat: "final" (the adversary sees the final model) or "all" (every round's, and knows
            who took part when).
        who: "mean", the mean canary, or "most-exposed", the one with the largest expected score.
        num_canaries: clients to draw from the schedule, at least 2.
        population: number of clients that the schedule is for; ``num_canaries`` by default.
        confidence: of the intervals, in (0, 1).
        seed: of the schedule's draws.
        setting: see `LimitSetting`.

    Raises:
        ValueError: if an argument is out of range, or if no canary takes part.
    """
    _check(target_epsilon, delta, threat, who, num_canaries, confidence)
    rngs = (generator(seed, PARTICIPATION, d) for d in range(_DRAWS if who != "mean" else 1))
    draws = tuple(Participations.draw(schedule, num_canaries, population, rng) for rng in rngs)
    client = _Client(draws, threat, who, schedule, population, setting)
    return _advice(client, target_epsilon, delta, confidence)


def _advice(client: _Client, target_epsilon: float, delta: float, confidence: float) -> NoiseAdvice:
    wanted = _shift_for(target_epsilon, delta)
    width = float(scipy.stats.t.ppf((1 + confidence) / 2, client.samples - 1))
    z, low, high = (
        _noise_for(lambda z, side=side: client.expected(z, side), wanted)  # type: ignore[misc]
        for side in (0.0, -width, width)
    )
    shifts = client.expected(z) + client.error(z, confidence) * np.array([0.0, -1.0, 1.0])
    shifts = np.maximum(shifts, 0.0)
    found = np.asarray(epsilon_two_gaussians(0.0, 1.0, shifts, 1.0, delta))
    epsilon, measured_low, measured_high = found.tolist()
    return NoiseAdvice(
        noise_multiplier=z,
        low=low,
        high=high,
        epsilon=epsilon,
        measured_low=measured_low,
        measured_high=measured_high,
        participations=client.participations(z),
        target_epsilon=target_epsilon,
        delta=delta,
        threat=client.threat,
        who=client.who,
        num_canaries=client.draws[0].clients,
        confidence=confidence,
        notes=(*_notes(client, z, delta), *client.random_client_notes(z, delta, confidence)),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Client:
    """The client whom ``who`` names, and its expected score as a function of z.

    Attributes:
        draws: participations of all clients, from one draw of the schedule or several.
        threat: "final" or "all".
        who: "mean" or "most-exposed".
        schedule: who takes part when.
        population: number of clients, if it is known.
        setting: for `limit_weights`.
    """

    draws: tuple[Participations, ...]
    threat: ThreatModel
    who: str
    schedule: Schedule
    population: int | None
    setting: LimitSetting

    def __post_init__(self) -> None:
        if self.samples < 2 or not all(len(draw.client_ids) for draw in self.draws):
            raise ValueError(
                f"Expected num_canaries={self.draws[0].clients} to be enough that some take part."
            )

    @property
    def real(self) -> RealUpdates | None:
        """The real updates, if they are not left out."""
        return self.setting.get("real")

    @property
    def samples(self) -> int:
        """Number of values over which the expected score is averaged."""
        return len(self.draws) if self.who == "most-exposed" else int(self._meant.sum())

    def expected(self, noise_multiplier: float, deviations: float = 0.0) -> float:
        """Mean of the values plus so many standard errors; not below 0."""
        values = self.values(noise_multiplier)
        error = float(values.std(ddof=1)) / math.sqrt(len(values))
        return max(float(values.mean()) + deviations * error, 0.0)

    def values(self, noise_multiplier: float) -> Floats:
        """The footprint of each client, or the largest footprint of each draw."""
        footprints = self._footprints(noise_multiplier)
        if self.who == "most-exposed":
            return np.array([values.max() for values in footprints])
        return footprints[0][self._meant]

    def error(self, noise_multiplier: float, confidence: float) -> float:
        """Half the interval of the score that a run with so many canaries reports."""
        quantile = float(scipy.stats.norm.ppf((1 + confidence) / 2))
        if self.who == "mean":
            return quantile / math.sqrt(self.samples)
        # As `fl_epe.auditing.estimators.footprint_fit` does: one scale for all scores.
        footprints = self._footprints(noise_multiplier)
        energy = float(np.mean([np.sum(values**2) for values in footprints]))
        return quantile / math.sqrt(energy) * self.expected(noise_multiplier)

    def participations(self, noise_multiplier: float) -> float:
        """Mean participations of the client."""
        if self.who == "mean":
            return float(self.draws[0].counts()[self._meant].mean())
        footprints = self._footprints(noise_multiplier)
        pairs = zip(self.draws, footprints, strict=True)
        return float(np.mean([draw.counts()[values.argmax()] for draw, values in pairs]))

    def _footprints(self, noise_multiplier: float) -> list[Floats]:
        z = max(noise_multiplier, _LEAST_NOISE)
        if self.real is not None and self.threat == "all":
            return self._computed(z)
        # The same factor applies to all rounds.
        added = 0.0 if self.real is None else self.real.final
        factor = math.sqrt((1 + added) / (z**2 + added))
        return [factor * values for values in self._unit]

    @functools.cached_property
    def _unit(self) -> list[Floats]:
        return self._computed(1.0)

    def _computed(self, z: float) -> list[Floats]:
        weights = limit_weights(self.schedule.rounds, z, **self.setting)
        which = THREATS.index(self.threat)
        return [draw.footprints(*weights)[which] for draw in self.draws]

    def random_client_notes(self, noise_multiplier: float, delta: float, level: float) -> list[str]:
        """What a random client and the most exposed of all have; nothing where both are equal."""
        z = max(noise_multiplier, _LEAST_NOISE)
        weights = limit_weights(self.schedule.rounds, z, **self.setting)[THREATS.index(self.threat)]
        many = self.population or _MANY_CLIENTS
        law = footprint_law(self.schedule, weights, many)
        if law is None:
            return []
        law = law.root() if self.threat == "all" else law
        if law.equal:
            return []
        known = known_footprint_epsilon(law.footprints, delta, weights=law.shares)
        most = _epsilon(law.largest(many, level), delta)
        return [
            f"At that z, a client picked at random whose rounds the adversary knows has ε = "
            f"{known:.3g}, and with {level:.0%} confidence none of {many:,} clients has an ε "
            f"above {most:.3g}."
        ]

    @functools.cached_property
    def _meant(self) -> NDArray[np.bool_]:
        """The clients of the first draw over whom an audit takes the mean."""
        counts = self.draws[0].counts()
        return counts > 0 if self.threat == "all" else np.ones_like(counts, bool)


def _noise_for(level: Callable[[float], float], wanted: float) -> float:
    """The smallest z, up to rounding, at which the expected score is at most ``wanted``.

    Args:
        level: expected score by z, which falls as z grows.
        wanted: a score > 0.
    """
    if level(0.0) <= wanted:
        return 0.0

    def miss(log_z: float) -> float:
        return math.log(level(math.exp(log_z)) / wanted)

    z = math.exp(_root(miss, "noise_multiplier"))
    while level(z) > wanted:
        z *= 1 + 1e-12
    return z


@functools.lru_cache(maxsize=64)
def _shift_for(epsilon: float, delta: float) -> float:
    """The largest shift between two Gaussians whose ε is at most ``epsilon``."""

    def miss(log_shift: float) -> float:
        return math.log1p(_epsilon(math.exp(log_shift), delta) / epsilon) - math.log(2)

    shift = math.exp(_root(miss, "target_epsilon"))
    while _epsilon(shift, delta) > epsilon:
        shift *= 1 - 1e-12
    return shift


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


def _notes(client: _Client, z: float, delta: float) -> list[str]:
    notes = ["This is an estimate for random canaries, not a guarantee of differential privacy."]
    if z == 0:
        notes.append(
            "Real updates alone hide random canaries well enough. Without noise there is no "
            "guarantee: an attack that knows more about the updates finds its client."
        )
    if client.real is None:
        notes.append("Real updates are left out; they would lower ε.")
    else:
        notes.append(
            "Real updates and clip norms are held as they were measured, although another noise "
            "multiplier would change them."
        )
    if client.who == "most-exposed":
        values = client.values(z)
        least, most = (_epsilon(float(value), delta) for value in (values.min(), values.max()))
        notes.append(
            f"Most exposed of {client.draws[0].clients:,} clients: its ε was {least:.3g} to "
            f"{most:.3g} in {len(values)} draws of the schedule. Among more clients it is larger."
        )
    return notes


def _check(
    target_epsilon: float,
    delta: float,
    threat: ThreatModel,
    who: str,
    num_canaries: int,
    confidence: float,
) -> None:
    least, most = _EPSILONS
    if not least <= target_epsilon <= most:
        raise ValueError(f"Expected target_epsilon={target_epsilon} in [{least:g}, {most:g}].")
    check_probability("delta", delta)
    check_probability("confidence", confidence)
    if threat not in THREATS:
        raise ValueError(f"Expected threat={threat!r} to be one of {THREATS}.")
    if who not in WHO:
        raise ValueError(f"Expected who={who!r} to be one of {WHO}.")
    if num_canaries < 2:
        raise ValueError(f"Expected num_canaries={num_canaries} >= 2.")
