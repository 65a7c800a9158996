"""The high-dimensional limit: the record of a schedule, without training.

In high dimension, canaries are orthogonal to each other and to everything else. An audit
therefore sees only k × T numbers of a run: each canary's share of each released mean, plus N(0,
1).

A canary that takes part in round t adds ``C_t/n`` to a mean whose norm is that of the noise and
the real updates together. Per coordinate and in units of ``C_t/n``, the noise has variance z²
and the real updates add ``r_t``, so the canary's expected score is ``a_t = 1/√(z² + r_t)``. In
the final model, it is the sum over its rounds of ``w_t C_t / √((z² + r)·Σ_t w_t² C_t²)``, with
the rounds' weights ``w_t`` and the variance ``r`` that the real updates add there. If the noise
dominates, r = 0. `RealUpdates.of` measures r in a run, so that the limit predicts that run. The
derivation is in docs/notes/limit.md.

Examples:
    >>> from fl_epe.schedules import ShuffledEpochs
    >>> record = limit_record(ShuffledEpochs(4, 2), noise_multiplier=0.5, delta=1e-5)
    >>> scores = auditing.seen_by(record).expected_scores.observed
    >>> round(float(scores[0]), 6)  # two rounds of 1, over noise √4 · 0.5
    2.0
"""

import dataclasses
import math
from typing import Self, TypedDict, Unpack

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fl_epe import auditing
from fl_epe.checks import Booleans, Floats, check_fraction, raise_invalid
from fl_epe.mechanism import discounted_sums, sgd_weights
from fl_epe.schedules import Schedule, presence
from fl_epe.seeding import generator

# The dimension can be any large number, as scores are cosines times its square root.
_DIM = 10**9

# Random streams.
_PARTICIPATION = 0
_SCORES = 1
_CLIENTS = 2

# The second key of the stream _PARTICIPATION, for the canaries that share a place's rounds.
_CANARIES_OF_PLACES = 1


@dataclasses.dataclass(frozen=True, eq=False)
class RealUpdates:
    """The variance that the real clients' updates add to released means and models.

    The variances are per coordinate, in units of (clip norm / cohort size)², like z² for the noise.

    Attributes:
        every_round: the variance in the released mean of each round, ≥ 0, shape ``(T,)``.
        final: the variance in θ_T − θ_0, ≥ 0. It is far larger than in one round if round
            updates are correlated.
    """

    every_round: Floats
    final: float

    @classmethod
    def of(cls, record: auditing.AuditRecord) -> Self:
        """The real updates of a run, from the norms of its means and of its displacement.

        One canary's update counts as part of them; the other canaries' are projected out
        (`Signals.leave_one_out`).

        Raises:
            ValueError: if the run's noise multiplier is unknown, if its clip norms or the server's
                steps are unknown or 0, or if its server was not SGD.
        """
        mechanism = record.mechanism
        z = mechanism.sum_noise_multiplier
        if z is None:
            raise_invalid(
                "sum_noise_multiplier", z, "of the record to be known"
            )
        if not record.signal_known():
            raise_invalid(
                "clip_norms",
                np.min(mechanism.clip_norms, initial=math.inf),
                "(or contributions) of the record to be known",
            )
        norms = auditing.seen_by(record).signals.leave_one_out.norms
        unit = mechanism.clip_norms / mechanism.cohort_size
        weights = record.round_weights() * unit
        sum_of_squared_weights = float(np.sum(weights**2))
        if not np.all(unit > 0):
            raise_invalid(
                "clip_norms",
                np.min(mechanism.clip_norms, initial=math.inf),
                "of the record > 0 and known in every round",
            )
        if not 0 < sum_of_squared_weights < math.inf:
            rates = np.asarray(mechanism.server.learning_rates, np.float64)
            raise_invalid(
                "server.learning_rates",
                np.max(rates, initial=0.0),
                "of the record > 0 and known",
            )
        noise_matrix = np.eye(record.rounds)
        if mechanism.strategy is not None:
            noise_matrix = _noise_matrix(mechanism.strategy)
        round_noise = z**2 * np.sum(noise_matrix**2, axis=1)
        final_noise = z**2 * np.sum((weights @ noise_matrix) ** 2)
        round_variances = (norms.means / unit) ** 2 / record.dim
        final_variance = norms.displacement**2 / record.dim
        final = (final_variance - final_noise) / sum_of_squared_weights
        return cls(
            np.maximum(round_variances - round_noise, 0.0), max(final, 0.0)
        )


class LimitSetting(TypedDict, total=False):
    """The settings on which a run's scores depend besides schedule and noise.

    Attributes:
        clip_norms: the clip norm, or that of each round, shape ``(T,)`` (default: 1).
        learning_rates: the server's learning rate, or that of each round, shape ``(T,)``
            (default: 1). A common factor changes no score.
        momentum: the momentum of the server's SGD, in [0, 1) (default: 0).
        strategy: the strategy matrix of correlated noise, lower triangular, shape ``(T, T)``
            (default: ``None``).
        real: the variances of real clients' updates (default: 0, as the noise dominates).
        count_inverse_variance: for an adaptive clip norm, whose noisy count shares the privacy
            budget: the last term of 1/z² = 1/z_sum² + 1/z_count², see
            `fl_epe.mechanism.AdaptiveClip` (default: 0, no count). It changes the theoretical
            bound, but no score.
    """

    clip_norms: ArrayLike
    learning_rates: ArrayLike
    momentum: float
    strategy: Floats | None
    real: RealUpdates | None
    count_inverse_variance: float


@dataclasses.dataclass(frozen=True, eq=False)
class _Signal:
    """The contribution of a participation to a canary's scores, and the residual of a run.

    The residual consists of noise and real updates. All norms and standard deviations are for a
    cohort of one client; they are inversely proportional to the cohort size.

    Attributes:
        norms: the norm of a participation's contribution to each round's mean, C_t, ``(T,)``.
        server: the server's learning rates and momentum.
        residual: the standard deviation of each round's mean along a canary in units of C_t,
            ``(T,)``.
        factor: a matrix ``(T, T)`` with rows of norm 1, whose inner products are the cosines of
            the residuals; ``None`` if rounds are independent.
        final: the contribution of a participation in each round to θ_T − θ_0, ``(T,)``.
        final_residual: the standard deviation of θ_T − θ_0 along a canary.
        unexplained: the part of its variance that the rounds' residuals do not explain, as a
            fraction; < 0 if these have more variance.
    """

    norms: Floats
    server: auditing.ServerStep
    residual: Floats
    factor: Floats | None
    final: Floats
    final_residual: float
    unexplained: float

    @classmethod
    def of(
        cls, rounds: int, noise_multiplier: float, setting: LimitSetting
    ) -> Self:
        """The signal of a setting, whose values are checked here."""
        norms = _per_round("clip_norms", setting.get("clip_norms", 1.0), rounds)
        rates = _per_round(
            "learning_rates", setting.get("learning_rates", 1.0), rounds
        )
        momentum = setting.get("momentum", 0.0)
        check_fraction("momentum", momentum)
        real = setting.get("real") or RealUpdates(np.zeros(rounds), 0.0)
        if np.shape(real.every_round) != (rounds,):
            raise_invalid(
                "real.every_round",
                real.every_round,
                f"of shape (rounds={rounds},)",
            )
        variances = noise_multiplier**2 + real.every_round
        final_variance = noise_multiplier**2 + real.final
        has_residual = np.all(variances > 0) and final_variance > 0
        if not (has_residual and 0 <= noise_multiplier < math.inf):
            raise_invalid(
                "noise_multiplier",
                noise_multiplier,
                "> 0 and finite, or 0 with real updates in every round",
            )
        final = sgd_weights(rates, momentum) * norms
        # Summed over differences, because 1 minus the explained fraction is less exact.
        unexplained_variance = float(final**2 @ (real.final - real.every_round))
        strategy = setting.get("strategy")
        factor = None
        if strategy is None:
            residual = np.sqrt(variances)
            final_residual = math.sqrt(float(np.sum(final**2)) * final_variance)
        else:
            noise = noise_multiplier * _noise_matrix(strategy)
            covariance = noise @ noise.T + np.diag(real.every_round)
            factor = np.asarray(np.linalg.cholesky(covariance), np.float64)
            residual = np.linalg.norm(factor, axis=1)
            explained_variance = float(np.sum((final @ factor) ** 2))
            final_residual = math.sqrt(
                explained_variance + unexplained_variance
            )
            factor /= residual[:, None]
        return cls(
            norms=norms,
            server=auditing.ServerStep("sgd", rates, momentum),
            residual=residual,
            factor=factor,
            final=final,
            final_residual=final_residual,
            unexplained=unexplained_variance / final_residual**2,
        )

    def correlation(self) -> auditing.RoundCorrelation:
        """The correlation of the rounds, which is known exactly."""
        if self.factor is None:
            # A round's residual has no part of earlier rounds.
            return auditing.RoundCorrelation(np.ones((len(self.norms), 1)))
        # A row of the record's factor starts at its own round and goes back in time.
        reversed_factor = np.zeros_like(self.factor)
        for t, row in enumerate(self.factor):
            reversed_factor[t, : t + 1] = row[t::-1]
        return auditing.RoundCorrelation(reversed_factor)


def _noise_matrix(strategy: Floats) -> Floats:
    """The matrix that turns independent noise into the noise of each round, the inverse C⁻¹."""
    return np.asarray(
        scipy.linalg.solve_triangular(
            strategy, np.eye(len(strategy)), lower=True
        )
    )


def _per_round(name: str, values: ArrayLike, rounds: int) -> Floats:
    """A setting's value for each round, ``(rounds,)``, from those or from one for all rounds."""
    array = np.asarray(values, np.float64)
    if array.shape not in ((), (rounds,)):
        raise_invalid(name, array, f"of shape () or (rounds={rounds},)")
    if not np.all((array > 0) & np.isfinite(array)):
        raise_invalid(name, array, "> 0 and finite")
    return np.array(np.broadcast_to(array, rounds))


def limit_record(
    schedule: Schedule,
    noise_multiplier: float,
    delta: float,
    *,
    num_canaries: int = 1000,
    unobserved: int = 1000,
    beside: int = 0,
    round_share: float = 1.0,
    seed: int = 0,
    **setting: Unpack[LimitSetting],
) -> auditing.AuditRecord:
    """The record of a run in the limit of a large dimension.

    Args:
        schedule: the participation schedule of the canaries, and of the real clients ``beside``
            them. With a `Trace`, canaries are average-case clients.
        noise_multiplier: the noise multiplier z ≥ 0 of the clients' sum; > 0 unless there are
            real updates.
        delta: the target δ.
        num_canaries: the number of observed canaries k, if there are no real clients. If there
            are, it is the number of places of a `CanaryLoad`: a place is a set of rounds that
            follows the schedule, and several canaries may divide its rounds.
        unobserved: the number of unobserved canaries u.
        beside: the number of real clients besides the canaries. They follow the schedule, and
            are in the record's log. 0 for canaries alone.
        round_share: the fraction of a place's rounds in which its canaries take part, see
            `CanaryLoad`; unused without real clients.
        seed: the seed of participation and scores.
        setting: the further setting, see `LimitSetting`.

    Raises:
        TypeError: for an argument that does not exist.
        ValueError: if there is neither noise nor real updates, or if an argument is out of range.
    """
    unknown = setting.keys() - LimitSetting.__annotations__.keys()
    if unknown:
        raise TypeError(f"limit_record has no argument {min(unknown)!r}")
    # Scores do not depend on the cohort size, so real clients need not be in it.
    cohort_size = schedule.cohort_size(num_canaries)
    signal = _Signal.of(schedule.rounds, noise_multiplier, setting)
    law = schedule.law(beside or num_canaries)
    rng_of_places = generator(seed, _PARTICIPATION)
    if beside:
        log = _client_log(schedule, beside, generator(seed, _CLIENTS))
        design = auditing.Design(
            task="limit",
            num_clients=beside,
            num_rounds=schedule.rounds,
            clients_per_round=schedule.cohort_size(beside),
        )
        load = auditing.CanaryLoad(
            clients=beside,
            rounds=schedule.rounds,
            participations=schedule.participations(),
            places=num_canaries,
            round_share=round_share,
            secret=law.hidden,
        )
        places = presence(
            load.place_schedule(schedule), num_canaries, rng_of_places
        )
        canary_rounds = load.presence(
            places, generator(seed, _PARTICIPATION, _CANARIES_OF_PLACES)
        )
    else:
        log = auditing.ClientLog()
        design = auditing.Design(task="limit")
        canary_rounds = presence(schedule, num_canaries, rng_of_places)
    rng = generator(seed, _SCORES)
    mean_norms = signal.residual * signal.norms / cohort_size * np.sqrt(_DIM)
    displacement_norm = signal.final_residual / cohort_size * np.sqrt(_DIM)
    return auditing.AuditRecord(
        dim=_DIM,
        delta=delta,
        observed=_cosines(signal, canary_rounds.shape[1], rng, canary_rounds),
        unobserved=_cosines(signal, unobserved, rng),
        presence=canary_rounds,
        norms=auditing.Norms(
            mean_norms,
            _step_norms(mean_norms, signal),
            final=displacement_norm,
            displacement=displacement_norm,
        ),
        mechanism=auditing.Mechanism(
            cohort_size=cohort_size,
            noise_multiplier=round_noise_multiplier(
                noise_multiplier, setting.get("count_inverse_variance", 0)
            ),
            sum_noise_multiplier=noise_multiplier,
            participation=law.in_record(),
            canary_participations=schedule.participations(),
            server=signal.server,
            clip_norms=signal.norms,
            strategy=setting.get("strategy"),
        ),
        clients=log,
        design=design,
        correlation=signal.correlation(),
        provenance=auditing.Provenance(seeds={"limit": seed}),
    )


def _client_log(
    schedule: Schedule, clients: int, rng: np.random.Generator
) -> auditing.ClientLog:
    """A log of real clients that follow a schedule."""
    cohorts = list(schedule.cohorts(clients, rng))
    sizes = [len(cohort) for cohort in cohorts]
    return auditing.ClientLog(np.concatenate(cohorts), np.cumsum([0, *sizes]))


def round_noise_multiplier(
    sum_noise_multiplier: float, count_inverse_variance: float
) -> float:
    """The noise multiplier z of a round that releases its sum and a noisy count.

    Args:
        sum_noise_multiplier: the noise multiplier of the clients' sum, ≥ 0.
        count_inverse_variance: the term of the count in 1/z², see `LimitSetting`.
    """
    # 1/z² = 1/z_sum² + 1/z_count², without a division by 0.
    return sum_noise_multiplier / math.sqrt(
        1 + count_inverse_variance * sum_noise_multiplier**2
    )


def _cosines(
    signal: _Signal,
    count: int,
    rng: np.random.Generator,
    canary_rounds: Booleans | None = None,
) -> auditing.CanaryCosines:
    """The cosines of ``count`` canaries; θ_0 is zero, so that θ_T is the displacement.

    Without ``canary_rounds``, ``(T, count)``, the canaries take no part.
    """
    scores = rng.standard_normal((len(signal.residual), count))
    if signal.factor is not None:
        scores = signal.factor @ scores
    # If the final residual has more variance than the rounds explain, independent noise adds the
    # difference. If it has less, the part of the rounds is scaled down to variance 1.
    weights = signal.residual * signal.final / signal.final_residual
    surplus_of_rounds = max(-signal.unexplained, 0.0)
    final_scores = weights @ scores / np.sqrt(1 + surplus_of_rounds)
    independent = rng.standard_normal(count)
    final_scores += np.sqrt(max(signal.unexplained, 0.0)) * independent
    if canary_rounds is not None:
        final_scores += signal.final / signal.final_residual @ canary_rounds
        for t, residual in enumerate(signal.residual):
            scores[t, canary_rounds[t]] += 1 / residual
    cosines = scores / np.sqrt(_DIM)
    final_cosines = final_scores / np.sqrt(_DIM)
    return auditing.CanaryCosines(
        means=cosines, final=final_cosines, displacement=final_cosines
    )


def _step_norms(mean_norms: Floats, signal: _Signal) -> Floats:
    """The norms of the server's steps, each a discounted sum of the rounds' means.

    Args:
        mean_norms: the norms of the rounds' means, ``(T,)``.
        signal: the signal, with the server and the correlation of the rounds.
    """
    decay = signal.server.momentum
    if signal.factor is None:
        # The means are orthogonal, and their squares add up.
        norms = np.sqrt(discounted_sums(mean_norms**2, decay**2))
    else:
        vectors = discounted_sums(mean_norms[:, None] * signal.factor, decay)
        norms = np.linalg.norm(vectors, axis=1)
    return signal.server.learning_rates * norms
