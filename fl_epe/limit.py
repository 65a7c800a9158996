"""The high-dimensional limit: a schedule to a record, without training.

In high dimension canaries are orthogonal to each other and to everything else, so all that an
audit sees of a run are k × T numbers: each canary's share of each released mean, plus N(0, 1).

A canary that takes part in round t adds ``C_t/n`` to a mean whose length is that of the noise and
of the real updates together. Per coordinate and in units of ``C_t/n``, the noise has variance z²
and the real updates add ``r_t``, so the canary's expected score is ``a_t = 1/√(z² + r_t)``. In the
final model it adds up over its rounds to ``Σ w_t C_t / √((z² + r)·Σ_t w_t² C_t²)``, with ``w_t``
the rounds' weights and ``r`` what the real updates add there. Where the noise dominates, r = 0;
`RealUpdates.of` measures r in a run, so that the limit predicts that run.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.mechanism import ServerSGD, sgd_weights
from fl_epe.participation import Schedule, presence
from fl_epe.record import AuditRecord
from fl_epe.schedules import Trace, TraceSample
from fl_epe.seeding import generator

Floats = NDArray[np.float64]

_DIM = 10**9  # any large number: scores are cosines times its root
_PARTICIPATION, _SCORES = 0, 1  # random streams


@dataclasses.dataclass(frozen=True, eq=False)
class RealUpdates:
    """What the real clients' updates add to the variance of what is released.

    In units of the clip norm over the cohort size, per coordinate, as z² is for the noise.

    Attributes:
        every_round: ``(T,)``, for the released mean of each round, ≥ 0.
        final: for θ_T − θ_0; far above the rounds' where updates agree with each other, ≥ 0.
    """

    every_round: Floats
    final: float

    @classmethod
    def of(cls, record: AuditRecord) -> RealUpdates:
        """As a run had them: from the norms of its means and of its displacement.

        Raises:
            ValueError: if the run's noise or clip norms are not known, or its server was not SGD.
        """
        z = record.sum_noise_multiplier
        if z is None or not record.signal_known():
            raise ValueError(
                f"Expected sum_noise_multiplier={z} and clip_norms of the record to be known."
            )
        unit = record.clip_norms / record.cohort_size
        weighted = float(np.sum((record.round_weights() * unit) ** 2))
        every_round = (record.mean_norms / unit) ** 2 / record.dim - z**2
        final = record.displacement_norm**2 / weighted / record.dim - z**2
        return cls(np.maximum(every_round, 0.0), max(final, 0.0))


def limit_record(
    schedule: Schedule,
    noise_multiplier: float,
    delta: float,
    *,
    canaries: int = 1000,
    unobserved: int = 1000,
    population: int | None = None,
    clip_norms: ArrayLike = 1.0,
    server: ServerSGD | None = None,
    decay: ArrayLike = 1.0,
    real: RealUpdates | None = None,
    seed: int = 0,
) -> AuditRecord:
    """The record of a run as dimension grows.

    Args:
        schedule: who takes part when. Of a `Trace`, canaries are random clients.
        noise_multiplier: z ≥ 0 of the clients' sum; > 0 unless ``real`` updates hide canaries.
        delta: target δ.
        canaries: observed canaries k.
        unobserved: unobserved canaries u.
        population: number of clients that the schedule is for, canaries among them; the canaries
            alone by default. Up to 10⁷ and more: only cohorts are held.
        clip_norms: the clip norm, or one for each round, shape ``(T,)``.
        server: learning rate and momentum; plain SGD by default.
        decay: factor of the server's learning rate in each round, shape ``(T,)``.
        real: the real clients' updates; by default the noise outweighs them.
        seed: of participation and scores.

    Raises:
        ValueError: if nothing hides the canaries, or if an argument is out of range.
    """
    rounds, server = schedule.rounds, server or ServerSGD()
    real = real or RealUpdates(np.zeros(rounds), 0.0)
    norms = _per_round("clip_norms", clip_norms, rounds)
    rates = server.learning_rate * _per_round("decay", decay, rounds)
    hidden = _hidden(noise_multiplier, real, rounds)
    cohort_size = schedule.cohort_size(canaries if population is None else population)
    taking_part = _presence(schedule, canaries, population, generator(seed, _PARTICIPATION))
    unit = norms / cohort_size
    steps = sgd_weights(rates, server.momentum) * unit
    signal = _Signal(np.sqrt(hidden), steps, np.sqrt(noise_multiplier**2 + real.final))
    rng = generator(seed, _SCORES)
    observed, observed_final = signal.scores(canaries, rng, taking_part)
    others, others_final = signal.scores(unobserved, rng)
    lengths = signal.hidden * unit * np.sqrt(_DIM)
    moved = signal.moved * np.sqrt(_DIM)
    return AuditRecord(
        dim=_DIM,
        delta=delta,
        cohort_size=cohort_size,
        noise_multiplier=noise_multiplier,
        sum_noise_multiplier=noise_multiplier,
        participation=TraceSample.kind if isinstance(schedule, Trace) else schedule.kind,
        canary_repeats=schedule.participations(),
        server=_server(server, rates),
        observed=observed,
        unobserved=others,
        presence=taking_part,
        clip_norms=norms,
        mean_norms=lengths,
        delta_norms=rates * _discounted(lengths, server.momentum),
        observed_final=observed_final,
        unobserved_final=others_final,
        observed_displacement=observed_final,
        unobserved_displacement=others_final,
        final_norm=moved,
        displacement_norm=moved,
        config={"task": "limit"},
        seeds={"limit": seed},
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Signal:
    """What a participation adds to a canary's scores, and what hides it.

    Attributes:
        hidden: ``(T,)`` deviation of each round's mean along a canary, per C_t/n.
        steps: ``(T,)`` what a participation in each round adds to θ_T − θ_0.
        final_hidden: deviation of θ_T − θ_0 along a canary, per length of ``steps``.
    """

    hidden: Floats
    steps: Floats
    final_hidden: float

    @property
    def moved(self) -> float:
        """Deviation of θ_T − θ_0 along a canary."""
        return float(np.linalg.norm(self.steps) * self.final_hidden)

    def scores(
        self, count: int, rng: np.random.Generator, presence: NDArray[np.bool_] | None = None
    ) -> tuple[Floats, Floats]:
        """Cosines with each round's mean, ``(T, count)``, and with θ_T − θ_0, ``(count,)``."""
        rounds = rng.standard_normal((len(self.hidden), count))
        # A part of the final noise is that of the rounds; the rest comes from real updates.
        weights = self.hidden * self.steps / self.moved
        share = float(np.linalg.norm(weights))
        weights /= max(share, 1.0)
        final = weights @ rounds
        final += np.sqrt(max(1 - share**2, 0.0)) * rng.standard_normal(count)
        if presence is not None:
            final += self.steps / self.moved @ presence
            for row, here, hidden in zip(rounds, presence, self.hidden, strict=True):
                row[here] += 1 / hidden
        rounds /= np.sqrt(_DIM)
        return rounds, final / np.sqrt(_DIM)


def _per_round(name: str, values: ArrayLike, rounds: int) -> Floats:
    given = np.asarray(values, np.float64)
    if given.shape not in ((), (rounds,)):
        raise ValueError(f"Expected {name}.shape={given.shape} to be () or (rounds={rounds},).")
    if not np.all((given > 0) & np.isfinite(given)):
        raise ValueError(f"Expected {name}={given} > 0 and finite.")
    return np.array(np.broadcast_to(given, rounds))


def _hidden(noise_multiplier: float, real: RealUpdates, rounds: int) -> Floats:
    """Variance z² + r_t that hides a canary in each round, ``(T,)``."""
    if not 0 <= noise_multiplier < np.inf:
        raise ValueError(f"Expected noise_multiplier={noise_multiplier} >= 0 and finite.")
    if np.shape(real.every_round) != (rounds,):
        raise ValueError(
            f"Expected real.every_round.shape={np.shape(real.every_round)} to be (rounds={rounds},)"
        )
    hidden = noise_multiplier**2 + real.every_round
    if not np.all(hidden > 0) or not noise_multiplier**2 + real.final > 0:
        raise ValueError(
            f"Expected noise_multiplier={noise_multiplier} > 0, or real updates in every round."
        )
    return np.asarray(hidden)


def _presence(
    schedule: Schedule, canaries: int, population: int | None, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Who of the canaries takes part when, ``(T, k)``.

    Laws of schedules treat all clients alike, so that the first k are k random ones.
    """
    if isinstance(schedule, Trace):
        if population not in (None, schedule.population):
            raise ValueError(
                f"Expected {population=} to be {schedule.population}, as in the trace."
            )
        return presence(TraceSample(schedule), canaries, rng)
    if population is None:
        return presence(schedule, canaries, rng)
    if population < canaries:
        raise ValueError(f"Expected population={population} >= canaries={canaries}.")
    out = np.zeros((schedule.rounds, canaries), bool)
    for row, cohort in zip(out, schedule.cohorts(population, rng), strict=True):
        row[cohort[: np.searchsorted(cohort, canaries)]] = True
    return out


def _server(server: ServerSGD, rates: Floats) -> dict[str, object]:
    constants = {"name": "sgd", **dataclasses.asdict(server)}
    if np.all(rates == server.learning_rate):
        return constants
    return {**constants, "learning_rates": rates.tolist()}


def _discounted(lengths: Floats, momentum: float) -> Floats:
    """Norms of the server's velocity: each a discounted sum of orthogonal means."""
    squares = np.empty(len(lengths))
    total = 0.0
    for t, length in enumerate(lengths):
        total = momentum**2 * total + length**2
        squares[t] = total
    return np.sqrt(squares)
