"""What the limit expects of each canary: the deterministic half of `simulated_record.py`.

A canary's expected score is a sum over its rounds of what one participation in each of them adds.
So a schedule's expected scores need one number for each round, and one row for each participation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.auditing import AuditRecord
from fl_epe.mechanism import ServerSGD, sgd_weights
from fl_epe.schedules import Cohort, Schedule, Trace, TraceSample
from fl_epe.seeding import generator

Floats = NDArray[np.float64]

PARTICIPATION = 0
"""The random stream that draws who takes part."""


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
        mechanism = record.mechanism
        z = mechanism.sum_noise_multiplier
        if z is None or not record.signal_known():
            raise ValueError(
                f"Expected sum_noise_multiplier={z} and clip_norms of the record to be known."
            )
        unit = mechanism.clip_norms / mechanism.cohort_size
        weighted = float(np.sum((record.round_weights() * unit) ** 2))
        every_round = (record.norms.means / unit) ** 2 / record.dim - z**2
        final = record.norms.displacement**2 / weighted / record.dim - z**2
        return cls(np.maximum(every_round, 0.0), max(final, 0.0))


def limit_like(record: AuditRecord) -> dict[str, Any]:
    """The clip norms, server, decay and real updates of a run, as `limit_record` takes them.

    Raises:
        ValueError: as `RealUpdates.of`.
    """
    real = RealUpdates.of(record)
    facts = record.mechanism.server
    server = ServerSGD(facts["learning_rate"], facts["momentum"])
    return {
        "clip_norms": record.mechanism.clip_norms,
        "server": server,
        "decay": record.learning_rates() / server.learning_rate,
        "real": real,
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Signal:
    """What a participation adds to a canary's scores, and what hides it.

    Attributes:
        norms: ``(T,)`` clip norms C_t.
        rates: ``(T,)`` the server's learning rates.
        unit: ``(T,)`` what a participation adds to each round's mean, C_t/n.
        hidden: ``(T,)`` deviation of each round's mean along a canary, per C_t/n.
        steps: ``(T,)`` what a participation in each round adds to θ_T − θ_0.
        final_hidden: deviation of θ_T − θ_0 along a canary, per length of ``steps``.
    """

    norms: Floats
    rates: Floats
    unit: Floats
    hidden: Floats
    steps: Floats
    final_hidden: float

    @classmethod
    def of(
        cls,
        rounds: int,
        noise_multiplier: float,
        clip_norms: ArrayLike,
        server: ServerSGD | None,
        decay: ArrayLike,
        real: RealUpdates | None,
        cohort_size: float,
    ) -> Signal:
        """From the arguments of `limit_record`, which are checked."""
        server = server or ServerSGD()
        real = real or RealUpdates(np.zeros(rounds), 0.0)
        norms = _per_round("clip_norms", clip_norms, rounds)
        rates = server.learning_rate * _per_round("decay", decay, rounds)
        hidden = _hidden(noise_multiplier, real, rounds)
        unit = norms / cohort_size
        steps = sgd_weights(rates, server.momentum) * unit
        final_hidden = float(np.sqrt(noise_multiplier**2 + real.final))
        return cls(norms, rates, unit, np.sqrt(hidden), steps, final_hidden)

    @property
    def moved(self) -> float:
        """Deviation of θ_T − θ_0 along a canary."""
        return float(np.linalg.norm(self.steps) * self.final_hidden)


@dataclasses.dataclass(frozen=True, eq=False)
class Participations:
    """Who takes part when, one row for each client in each of its rounds: nothing is T × k.

    Attributes:
        clients: number of clients, numbered from 0; some may have no row.
        round_ids: the round of each row, from 0, ascending.
        client_ids: the client of each row.
    """

    clients: int
    round_ids: NDArray[np.int64]
    client_ids: NDArray[np.int64]

    @classmethod
    def of(cls, clients: int, cohorts: Iterable[Cohort]) -> Participations:
        """From the cohort of each round."""
        rows = [cohort.copy() for cohort in cohorts]  # parts of large cohorts would keep these
        round_ids = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        return cls(clients, round_ids, np.concatenate(rows))

    @classmethod
    def draw(
        cls, schedule: Schedule, num_canaries: int, population: int | None, rng: np.random.Generator
    ) -> Participations:
        """Those of canaries, as `limit_record` draws them."""
        return cls.of(num_canaries, canary_cohorts(schedule, num_canaries, population, rng))

    def counts(self) -> NDArray[np.int64]:
        """How often each client takes part, ``(clients,)``."""
        return np.bincount(self.client_ids, minlength=self.clients)

    def footprints(self, final: Floats, every_round: Floats) -> tuple[Floats, Floats]:
        """Expected scores ``(clients,)`` of displacement and matched filter; 0 for who is absent.

        Args:
            final: from `limit_weights`.
            every_round: from `limit_weights`.
        """
        return self._sums(final), np.sqrt(self._sums(every_round))

    def _sums(self, per_round: Floats) -> Floats:
        sums = np.bincount(self.client_ids, per_round[self.round_ids], minlength=self.clients)
        return np.asarray(sums, np.float64)


def limit_weights(
    rounds: int,
    noise_multiplier: float,
    *,
    clip_norms: ArrayLike = 1.0,
    server: ServerSGD | None = None,
    decay: ArrayLike = 1.0,
    real: RealUpdates | None = None,
) -> tuple[Floats, Floats]:
    """What a participation in each round adds to expected scores, two of shape ``(T,)``.

    The first is for "final", where they add up to the expected displacement; the second for "all",
    where they add up to the square of the expected matched filter. The other arguments are those
    of `limit_record`, whose cohort size does not matter here.

    Raises:
        ValueError: if nothing hides the canaries, or if an argument is out of range.
    """
    signal = Signal.of(rounds, noise_multiplier, clip_norms, server, decay, real, 1.0)
    return signal.steps / signal.moved, signal.hidden**-2


def limit_footprints(
    schedule: Schedule,
    noise_multiplier: float,
    *,
    num_canaries: int = 1000,
    population: int | None = None,
    clip_norms: ArrayLike = 1.0,
    server: ServerSGD | None = None,
    decay: ArrayLike = 1.0,
    real: RealUpdates | None = None,
    seed: int = 0,
) -> tuple[Floats, Floats]:
    """Expected scores of the canaries of `limit_record` with these arguments, without drawing any.

    Returns:
        For "final" and for "all", ``(num_canaries,)`` each; 0 for a canary that never takes part.

    Raises:
        ValueError: if nothing hides the canaries, or if an argument is out of range.
    """
    weights = limit_weights(
        schedule.rounds,
        noise_multiplier,
        clip_norms=clip_norms,
        server=server,
        decay=decay,
        real=real,
    )
    rng = generator(seed, PARTICIPATION)
    return Participations.draw(schedule, num_canaries, population, rng).footprints(*weights)


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


def canary_cohorts(
    schedule: Schedule, num_canaries: int, population: int | None, rng: np.random.Generator
) -> Iterator[Cohort]:
    """Who of the canaries takes part, round by round.

    Laws of schedules treat all clients alike, so that the first k are k random ones.
    """
    if isinstance(schedule, Trace):
        if population not in (None, schedule.population):
            raise ValueError(
                f"Expected {population=} to be {schedule.population}, as in the trace."
            )
        return TraceSample(schedule).cohorts(num_canaries, rng)
    if population is None:
        return schedule.cohorts(num_canaries, rng)
    if population < num_canaries:
        raise ValueError(f"Expected population={population} >= num_canaries={num_canaries}.")
    cohorts = schedule.cohorts(population, rng)
    return (cohort[: np.searchsorted(cohort, num_canaries)] for cohort in cohorts)
