"""Analytical upper bounds on ε for one client's participation, and for a whole schedule.

The noise multiplier z is the noise's standard deviation over the clip norm, so that one client
shifts the sum of clipped updates by at most 1/z standard deviations. Every bound holds against an
adversary who sees the model after each round, and so also against one who sees only the final one.
A schedule states what it guarantees as a `fl_epe.schedules.PrivacyLaw`; its bounds hold for clients
and for canaries.

Examples:
    >>> from fl_epe.schedules import Poisson
    >>> bound = tightest(upper_bounds(Poisson(10, 0.1), 1.0, 1e-5, 1000), rounds_known=False)
    >>> bound.adjacency
    'add-or-remove'
    >>> round(gaussian_epsilon(noise_multiplier=1.0, delta=1e-5), 3)
    4.377
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator

import numpy as np
import scipy

from fl_epe.accounting.expected_score_law import expected_score_law
from fl_epe.accounting.mixtures import known_expected_score_epsilon
from fl_epe.accounting.two_gaussians import epsilon_two_gaussians
from fl_epe.checks import Floats, check_count, check_probability, raise_invalid
from fl_epe.schedules import SCHEDULES, Composed, PrivacyLaw, Schedule

_COARSEST = 1e-2  # privacy-loss grid, in nats
_FINEST = 1e-6
_LARGEST_STEP = 500.0  # dp-accounting takes its exponential
_CLOSE_ENOUGH = 1e-2  # relative change of ε at which the grid is fine enough: the next is 1/25
_NO_NOISE = 1e-150  # as much as less, or none: with it ε is infinite
_MOST_CELLS = 2e5  # ε over the grid's step: a second or so of convolutions


@dataclasses.dataclass(frozen=True)
class UpperBound:
    """An analytical ε and its assumptions.

    Attributes:
        epsilon: in nats; infinite without noise, or with so little that it would overflow.
        rounds_known: whether it holds against an adversary who knows a client's rounds.
        adjacency: which two runs it tells apart: "zero-out", "add-or-remove" or "replace-one".
        assumption: what else it assumes, in words.
        averages: whether it is for a client whose participations are still to be drawn, with δ a
            mean over the draw. One who then takes part often has a larger ε.
    """

    epsilon: float
    rounds_known: bool
    adjacency: str
    assumption: str
    averages: bool = False


@functools.lru_cache(maxsize=4096)
def upper_bounds(
    schedule: Schedule, noise_multiplier: float, delta: float, population: int
) -> tuple[UpperBound, ...]:
    """Every analytical ε that follows from a schedule.

    Rounds known: a limit R on participations gives √R/z-GDP (Dong, Roth, Su 2019); for a client
    drawn at random δ is the mean over its number of participations, by the schedule's law of it.
    Rounds unknown: independent coins give `poisson_epsilon`, cohorts of fixed size RDP.

    Args:
        schedule: the participation schedule.
        noise_multiplier: z ≥ 0.
        delta: in (0, 1).
        population: number of clients, for cohorts of fixed size.

    Raises:
        ValueError: for an argument out of range.
    """
    check_count("population", population)
    law = schedule.privacy_law(population)
    found = list(_bounds(law, noise_multiplier, delta))
    pmf = None if law.counts else _count_pmf(schedule, population)
    if pmf is not None and pmf.max() < 1:  # else everybody takes part equally often
        words = "participations follow the schedule's law"
        epsilon = random_participations_epsilon(noise_multiplier, delta, pmf)
        found.append(UpperBound(epsilon, True, "zero-out", words, averages=True))
    return tuple(found)


def tightest(found: Iterable[UpperBound], *, rounds_known: bool) -> UpperBound:
    """The bound with the smallest ε.

    Args:
        found: from `upper_bounds`; one of them holds for known rounds.
        rounds_known: whether the adversary knows the client's rounds. A bound for known rounds
            holds for unknown rounds as well.
    """
    holds = [bound for bound in found if bound.rounds_known or not rounds_known]
    return min(holds, key=lambda bound: bound.epsilon)


def analytical_epsilon(
    kind: str,
    noise_multiplier: float,
    delta: float,
    *,
    participations: int = 1,
    sampling_rate: float = 1.0,
    rounds: int = 1,
) -> UpperBound | None:
    """The analytical ε of a run, from the kind of its schedule.

    Args:
        kind: one of `fl_epe.schedules.SCHEDULES`, or "deployment", where the strategy asks whom it
            wants.
        noise_multiplier: z ≥ 0.
        delta: in (0, 1).
        participations: for all but "poisson": the most rounds in which the client takes part.
        sampling_rate: for "poisson": probability of taking part in a round.
        rounds: for "poisson": number of rounds.

    Returns:
        The tight bound; ``None`` for any other ``kind``.

    Raises:
        ValueError: if an argument is out of range.
    """
    if kind == "poisson":
        epsilon = poisson_epsilon(noise_multiplier, sampling_rate, rounds, delta)
        words = "the adversary does not know who was sampled"
        return UpperBound(epsilon, False, "add-or-remove", words, averages=True)
    check_probability("delta", delta)
    if kind not in (*SCHEDULES, "deployment"):
        return None
    epsilon = gaussian_epsilon(noise_multiplier, delta, participations)
    return UpperBound(epsilon, True, "zero-out", "the adversary knows the client's rounds")


def gaussian_epsilon(noise_multiplier: float, delta: float, participations: int = 1) -> float:
    """ε of a client who takes part ``participations`` times, in rounds the adversary knows.

    R adaptively chosen Gaussian mechanisms compose to √R/z-GDP (Dong, Roth, Su 2019),
    which no analysis improves on. Adjacency: zero-out, the client's updates replaced by zero.

    Args:
        noise_multiplier: z ≥ 0.
        delta: in (0, 1).
        participations: number of rounds R ≥ 0 in which the client takes part.

    Raises:
        ValueError: if an argument is out of range.
    """
    _check(noise_multiplier, delta, participations=participations)
    shift = math.sqrt(participations) / max(noise_multiplier, _NO_NOISE)
    return float(epsilon_two_gaussians(0.0, 1.0, shift, 1.0, delta))


def random_participations_epsilon(
    noise_multiplier: float, delta: float, probabilities: Floats
) -> float:
    """ε of a client whose number of participations is random, in rounds the adversary knows.

    A client who takes part R times has √R/z-GDP. The rounds do not depend on the data, so δ(ε) is
    the mean of the one of `gaussian_epsilon` over R. Exact up to tails of probability below
    δ/1000, which are added to δ. Adjacency: zero-out.

    Args:
        noise_multiplier: z ≥ 0.
        delta: in (0, 1).
        probabilities: of 0, 1, 2, … participations, shape ``(most + 1,)``; they add up to 1.
    """
    beyond = np.cumsum(probabilities[::-1])[::-1]  # at least 0, 1, 2, …
    shifts = np.sqrt(np.arange(len(probabilities))) / max(noise_multiplier, _NO_NOISE)
    shifts[beyond <= delta / 1000] = math.inf
    return known_expected_score_epsilon(shifts, delta, weights=probabilities)


def poisson_epsilon(
    noise_multiplier: float,
    sampling_rate: float,
    rounds: int,
    delta: float,
    *,
    replace_one: bool = False,
) -> float:
    """ε of a client who takes part by secret coins, from dp-accounting's privacy-loss distribution.

    The distribution is rounded up (Doroshenko et al. 2022) on a grid that is refined until ε
    changes by less than 1%. A grid of a tenth of the step has an error of 1/25 to 1/100, so the
    answer is never below the exact ε, and above it by about 1% at most. If the ε without sampling
    exceeds 10⁸, that one is returned. Adjacency: add-or-remove, or replace-one.

    Args:
        noise_multiplier: z ≥ 0.
        sampling_rate: probability q of taking part in a round, in [0, 1].
        rounds: number of rounds, at least 0.
        delta: in (0, 1).
        replace_one: tell two runs apart in which one record is replaced by another, as who knows
            that a person took part and asks what their record says. In each step that samples the
            record the sums are up to two clip norms apart: the pair is (1 − q)·N(0, z²) +
            q·N(1, z²) against (1 − q)·N(0, z²) + q·N(−1, z²), so ε is about twice as large (Pradhan
            et al. 2025).

    Raises:
        ValueError: if an argument is out of range.
    """
    _check(noise_multiplier, delta, rounds=rounds)
    if not 0 <= sampling_rate <= 1:
        raise_invalid("sampling_rate", sampling_rate, "in [0, 1]")
    if sampling_rate == 0 or rounds == 0:
        return 0.0
    epsilon = gaussian_epsilon(noise_multiplier / (1 + replace_one), delta, rounds)  # not sampled
    if sampling_rate == 1 or epsilon == 0 or math.isinf(epsilon):
        return epsilon
    step = min(max(_COARSEST, epsilon / _MOST_CELLS), _LARGEST_STEP)
    while step >= _FINEST and epsilon <= 1.01 * _MOST_CELLS * step:
        finer = _pld_epsilon(noise_multiplier, sampling_rate, rounds, delta, replace_one, step)
        settled = abs(epsilon - finer) <= _CLOSE_ENOUGH * finer
        epsilon = min(epsilon, finer)
        if settled:
            break
        step /= 10
    return epsilon


def fixed_size_epsilon(
    noise_multiplier: float, population: int, cohort: int, rounds: int, delta: float
) -> float:
    """ε if every round draws a fresh cohort of fixed size, from dp-accounting's RDP.

    The bound is not tight (Wang, Balle, Kasiviswanathan 2019, Theorem 27). Adjacency: replace-one,
    which moves a round's sum by up to two clip norms.

    Args:
        noise_multiplier: z ≥ 0.
        population: number of clients.
        cohort: how many of them take part in a round, without replacement, in [1, population].
        rounds: number of rounds, at least 1.
        delta: in (0, 1).
    """
    unsampled = gaussian_epsilon(noise_multiplier / 2, delta, rounds)
    if cohort == population or unsampled == 0 or math.isinf(unsampled):
        return unsampled
    import dp_accounting  # slow to import
    from dp_accounting.rdp import RdpAccountant

    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier / 2)
    event = dp_accounting.SampledWithoutReplacementDpEvent(population, cohort, gaussian)
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    return min(unsampled, float(accountant.compose(event, rounds).get_epsilon(delta)))


def _bounds(law: PrivacyLaw, z: float, delta: float) -> Iterator[UpperBound]:
    times = "once" if law.most == 1 else f"{law.most} times"
    words = f"takes part at most {times}"
    yield UpperBound(gaussian_epsilon(z, delta, law.most), True, "zero-out", words)
    if counts := law.counts:
        pmf = scipy.stats.binom.pmf(np.arange(counts.rounds + 1), counts.rounds, counts.rate)
        words = f"participations are binomial{counts.condition}"
        epsilon = random_participations_epsilon(z, delta, pmf)
        yield UpperBound(epsilon, True, "zero-out", words, averages=True)
    if coins := law.coins:
        epsilon = poisson_epsilon(z, coins.rate, coins.rounds, delta)
        words = f"takes part by coins that the adversary does not see{coins.condition}"
        yield UpperBound(epsilon, False, "add-or-remove", words, averages=True)
    if drawn := law.cohorts:
        epsilon = fixed_size_epsilon(z, drawn.available, drawn.size, drawn.rounds, delta)
        words = f"unknown cohorts of fixed size{drawn.condition}"
        yield UpperBound(epsilon, False, "replace-one", words, averages=True)


@functools.lru_cache(maxsize=64)
def _count_pmf(schedule: Schedule, population: int) -> Floats | None:
    """Probabilities of 0, 1, 2, … participations of a client drawn at random.

    Where a cap leaves no closed form they are those without the cap, which only takes away.
    ``None`` if none is known.
    """
    law = expected_score_law(schedule, np.ones(schedule.rounds), population)
    if law is None:
        inner = schedule.schedule if isinstance(schedule, Composed) else None
        return None if inner is None else _count_pmf(inner, population)
    pmf = np.bincount(np.rint(law.expected_scores).astype(np.int64), law.shares)
    return np.asarray(pmf / pmf.sum(), np.float64)


@functools.lru_cache(maxsize=4096)  # a report asks for the same several times
def _pld_epsilon(
    noise: float, rate: float, rounds: int, delta: float, replaced: bool, step: float
) -> float:
    import dp_accounting  # slow to import
    from dp_accounting.pld import PLDAccountant

    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    relation = "REPLACE_ONE" if replaced else "ADD_OR_REMOVE_ONE"
    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation[relation], value_discretization_interval=step
    )
    return float(accountant.compose(event, rounds).get_epsilon(delta))


def _check(noise_multiplier: float, delta: float, **counts: int) -> None:
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise_invalid("noise_multiplier", noise_multiplier, ">= 0 and finite")
    check_probability("delta", delta)
    for name, count in counts.items():
        if count < 0:
            raise_invalid(name, count, ">= 0")
