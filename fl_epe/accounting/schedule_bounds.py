"""Upper bounds on ε for a whole schedule, before anything runs.

A schedule says what it promises (`fl_epe.schedules.PrivacyLaw`), and `upper_bounds.py` has the
theorems that need no more than that. All bounds hold for clients as much as for canaries.
"""

from __future__ import annotations

import functools

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.accounting.upper_bounds import (
    UpperBound,
    fixed_size_epsilon,
    gaussian_epsilon,
    poisson_epsilon,
    random_participations_epsilon,
)
from fl_epe.checks import check_probability
from fl_epe.schedules import SCHEDULES, PrivacyLaw, Schedule

DEPLOYMENT = "deployment"
"""The kind that a record names where clients take part whenever a strategy asks them."""


@functools.lru_cache(maxsize=4096)
def upper_bounds(
    schedule: Schedule, noise_multiplier: float, delta: float, population: int
) -> tuple[UpperBound, ...]:
    """Every analytical ε that a schedule's promises allow; none if nothing limits a client.

    Rounds known: a limit R on participations gives √R/z-GDP (Dong, Roth, Su 2019); where the
    number of participations is binomial, δ is a mean over it. Rounds unknown: independent coins
    have the Poisson accountant (at the rate of the busiest class of devices, or at what drop-out
    leaves), cohorts of fixed size the bound of `fixed_size_epsilon` (with time zones: within the
    open hours of a zone that is known). Drop-out only helps.

    Args:
        schedule: who takes part when.
        noise_multiplier: z ≥ 0.
        delta: in (0, 1).
        population: number of clients m, for cohorts of fixed size.

    Raises:
        ValueError: for an argument out of range.
    """
    if population < 1:
        raise ValueError(f"Expected population={population} >= 1.")
    law = schedule.privacy_law(population)
    bounds = (
        _limited(law, noise_multiplier, delta),
        _counted(law, noise_multiplier, delta),
        _coins(law, noise_multiplier, delta),
        _cohorts(law, noise_multiplier, delta),
    )
    return tuple(bound for bound in bounds if bound is not None)


def tightest(found: tuple[UpperBound, ...], *, rounds_known: bool) -> UpperBound | None:
    """The smallest ε that holds against an adversary who knows the rounds, or does not.

    What holds where the rounds are known holds where they are unknown as well.
    """
    holds = [bound for bound in found if bound.rounds_known or not rounds_known]
    return min(holds, key=lambda bound: bound.epsilon, default=None)


def analytical_epsilon(
    kind: str,
    noise_multiplier: float,
    delta: float,
    *,
    participations: int = 1,
    sampling_rate: float | None = None,
    rounds: int | None = None,
) -> UpperBound | None:
    """The analytical ε of a run, from the kind of its schedule.

    Args:
        kind: "poisson", "deployment" (whenever a strategy asks) or another of
            `fl_epe.schedules.SCHEDULES`, in which a client takes part at most ``participations``
            times.
        noise_multiplier: z ≥ 0.
        delta: in (0, 1).
        participations: for all but "poisson": how often the client takes part.
        sampling_rate: for "poisson": probability of taking part in a round.
        rounds: for "poisson": number of rounds.

    Returns:
        The tight bound; ``None`` for any other ``kind``, for which none is known.

    Raises:
        ValueError: for an argument out of range, or one that the ``kind`` needs and lacks.
    """
    if kind == "poisson":
        if sampling_rate is None or rounds is None:
            raise ValueError(
                f"Expected sampling_rate={sampling_rate} and rounds={rounds} for kind='poisson'."
            )
        epsilon = poisson_epsilon(noise_multiplier, sampling_rate, rounds, delta)
        words = "the adversary does not know who was sampled"
        return UpperBound(epsilon, False, "add-or-remove", words)
    check_probability("delta", delta)
    if kind not in (*SCHEDULES, DEPLOYMENT):
        return None
    epsilon = gaussian_epsilon(noise_multiplier, delta, participations)
    return UpperBound(epsilon, True, "zero-out", "the adversary knows the client's rounds")


def _limited(law: PrivacyLaw, z: float, delta: float) -> UpperBound | None:
    if law.most is None:
        return None
    times = "once" if law.most == 1 else f"{law.most} times"
    epsilon = gaussian_epsilon(z, delta, law.most)
    return UpperBound(epsilon, True, "zero-out", f"takes part at most {times}")


def _counted(law: PrivacyLaw, z: float, delta: float) -> UpperBound | None:
    counts = law.counts
    if counts is None:
        return None
    pmf = _binomial_pmf(counts.rounds, counts.rate)
    epsilon = random_participations_epsilon(z, delta, pmf)
    words = f"participations are binomial{counts.condition}"
    return UpperBound(epsilon, True, "zero-out", words)


def _coins(law: PrivacyLaw, z: float, delta: float) -> UpperBound | None:
    coins = law.coins
    if coins is None:
        return None
    epsilon = poisson_epsilon(z, coins.rate, coins.rounds, delta)
    words = f"takes part by coins that the adversary does not see{coins.condition}"
    return UpperBound(epsilon, False, "add-or-remove", words)


def _cohorts(law: PrivacyLaw, z: float, delta: float) -> UpperBound | None:
    drawn = law.cohorts
    if drawn is None:
        return None
    epsilon = fixed_size_epsilon(z, drawn.available, drawn.size, drawn.rounds, delta)
    words = f"unknown cohorts of fixed size{drawn.condition}"
    return UpperBound(epsilon, False, "replace-one", words)


def _binomial_pmf(rounds: int, rate: float) -> NDArray[np.float64]:
    pmf = np.asarray(scipy.stats.binom.pmf(np.arange(rounds + 1), rounds, rate), np.float64)
    return np.asarray(pmf / pmf.sum())
