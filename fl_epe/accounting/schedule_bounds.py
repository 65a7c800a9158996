"""Upper bounds on ε for a whole schedule, before anything runs.

A schedule states what it guarantees as a `fl_epe.schedules.PrivacyLaw`; the theorems are in
`upper_bounds.py`. All bounds hold for clients and for canaries.

Examples:
    >>> from fl_epe.schedules import Poisson
    >>> bound = tightest(upper_bounds(Poisson(10, 0.1), 1.0, 1e-5, 1000), rounds_known=False)
    >>> bound.adjacency
    'add-or-remove'
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.accounting.expected_score_law import expected_score_law
from fl_epe.accounting.upper_bounds import (
    UpperBound,
    fixed_size_epsilon,
    gaussian_epsilon,
    poisson_epsilon,
    random_participations_epsilon,
)
from fl_epe.checks import check_count, check_probability
from fl_epe.schedules import SCHEDULES, Composed, PrivacyLaw, Schedule


@functools.lru_cache(maxsize=4096)
def upper_bounds(
    schedule: Schedule, noise_multiplier: float, delta: float, population: int
) -> tuple[UpperBound, ...]:
    """Every analytical ε that follows from a schedule.

    Rounds known: a limit R on participations gives √R/z-GDP (Dong, Roth, Su 2019); for a client
    drawn at random δ is the mean over its number of participations, by the schedule's law of it.
    Rounds unknown: independent coins give `poisson_epsilon`, cohorts of fixed size
    `fixed_size_epsilon`.

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


def tightest(found: tuple[UpperBound, ...], *, rounds_known: bool) -> UpperBound | None:
    """The bound with the smallest ε; ``None`` if none applies.

    Args:
        found: from `upper_bounds`.
        rounds_known: whether the adversary knows the client's rounds. A bound for known rounds
            holds for unknown rounds as well.
    """
    holds = [bound for bound in found if bound.rounds_known or not rounds_known]
    return min(holds, key=lambda bound: bound.epsilon, default=None)


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


def _bounds(law: PrivacyLaw, z: float, delta: float) -> Iterator[UpperBound]:
    times = "once" if law.most == 1 else f"{law.most} times"
    epsilon = gaussian_epsilon(z, delta, law.most)
    yield UpperBound(epsilon, True, "zero-out", f"takes part at most {times}")
    if counts := law.counts:
        pmf = _binomial_pmf(counts.rounds, counts.rate)
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
def _count_pmf(schedule: Schedule, population: int) -> NDArray[np.float64] | None:
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


def _binomial_pmf(rounds: int, rate: float) -> NDArray[np.float64]:
    pmf = np.asarray(scipy.stats.binom.pmf(np.arange(rounds + 1), rounds, rate), np.float64)
    return np.asarray(pmf / pmf.sum())
