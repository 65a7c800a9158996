"""What theory promises for a whole schedule, before anything runs.

`upper_bounds.py` has the theorems; here each schedule is matched with those that its guarantee
allows. All hold for clients as much as for canaries.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_epe.accounting.upper_bounds import (
    fixed_size_epsilon,
    gaussian_epsilon,
    poisson_epsilon,
    random_participations_epsilon,
)
from fl_epe.schedules import DeviceClasses, DropOut, FixedSize, Poisson, Schedule, TimeOfDay, Trace


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """An upper bound on ε for a schedule, and what it counts on.

    Attributes:
        epsilon: in nats; infinite without noise.
        rounds: "known" if the adversary may know a client's rounds, "secret" if not.
        adjacency: which two runs it tells apart.
        assumption: what it takes for granted, in words.
    """

    epsilon: float
    rounds: str
    adjacency: str
    assumption: str


@functools.lru_cache(maxsize=4096)
def guarantees(
    schedule: Schedule, noise_multiplier: float, delta: float, population: int
) -> tuple[Guarantee, ...]:
    """Every analytical ε that a schedule's guarantee allows; none if nothing limits a client.

    Rounds known: a limit R on participations gives √R/z-GDP (Dong, Roth, Su 2019); where the
    number of participations is binomial, δ is a mean over it. Rounds secret: independent coins
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
    bounds = (
        _limited(schedule, noise_multiplier, delta),
        _counted(schedule, noise_multiplier, delta, population),
        _coins(schedule, noise_multiplier, delta),
        _drawn(schedule, noise_multiplier, delta, population),
    )
    return tuple(bound for bound in bounds if bound is not None)


def least(found: tuple[Guarantee, ...], rounds: str) -> Guarantee | None:
    """The tightest against an adversary for whom the ``rounds`` are "known" or "secret".

    What holds where they are known holds where they are secret as well.
    """
    holds = [bound for bound in found if bound.rounds in ("known", rounds)]
    return min(holds, key=lambda bound: bound.epsilon, default=None)


def _limited(schedule: Schedule, z: float, delta: float) -> Guarantee | None:
    most = schedule.most_participations()
    if (most >= schedule.rounds > 1 and not isinstance(schedule, Trace)) or _binomial(schedule, 1):
        return None
    times = "once" if most == 1 else f"{most} times"
    words = f"takes part at most {times}"
    return Guarantee(gaussian_epsilon(z, delta, most), "known", "zero-out", words)


def _counted(schedule: Schedule, z: float, delta: float, population: int) -> Guarantee | None:
    law = _binomial(schedule, population)
    if law is None:
        return None
    rounds, rate, words = law
    epsilon = random_participations_epsilon(z, delta, _binomial_pmf(rounds, rate))
    return Guarantee(epsilon, "known", "zero-out", f"participations are binomial{words}")


def _coins(schedule: Schedule, z: float, delta: float) -> Guarantee | None:
    law = _secret_coins(schedule)
    if law is None:
        return None
    rate, words = law
    epsilon = poisson_epsilon(z, rate, schedule.rounds, delta)
    return Guarantee(epsilon, "secret", "add-or-remove", f"takes part by secret coins{words}")


def _drawn(schedule: Schedule, z: float, delta: float, population: int) -> Guarantee | None:
    inner = schedule.schedule if isinstance(schedule, DropOut) else schedule
    if isinstance(inner, FixedSize):
        rounds, available, words = inner.rounds, population, ""
    elif isinstance(inner, TimeOfDay):
        rounds, available = inner.most_participations(), _available(inner, population)
        words = ", the zone known"
    else:
        return None
    cohort = min(available, math.ceil(inner.rate * population))
    epsilon = fixed_size_epsilon(z, available, cohort, rounds, delta)
    return Guarantee(epsilon, "secret", "replace-one", f"secret cohorts of fixed size{words}")


def _secret_coins(schedule: Schedule) -> tuple[float, str] | None:
    """Rate of the coins of whoever takes part most often."""
    if isinstance(schedule, Poisson):
        return schedule.rate, ""
    if isinstance(schedule, DeviceClasses):
        return max(schedule.rates), ", in the busiest class"
    if isinstance(schedule, DropOut) and (law := _secret_coins(schedule.schedule)):
        return law[0] * (1 - schedule.rate), law[1]
    return None


def _binomial(schedule: Schedule, population: int) -> tuple[int, float, str] | None:
    """Rounds and rate of whoever takes part most often, where each round is drawn by itself."""
    if coins := _secret_coins(schedule):
        return schedule.rounds, *coins
    if isinstance(schedule, FixedSize):
        return schedule.rounds, min(1.0, math.ceil(schedule.rate * population) / population), ""
    if isinstance(schedule, TimeOfDay):
        cohort = math.ceil(schedule.rate * population)
        rate = min(1.0, cohort / _available(schedule, population))
        return schedule.most_participations(), rate, ", the zone known"
    if isinstance(schedule, DropOut) and (law := _binomial(schedule.schedule, population)):
        return law[0], law[1] * (1 - schedule.rate), law[2]
    return None


def _available(schedule: TimeOfDay, population: int) -> int:
    """The fewest clients that are available in a round."""
    zones = int(schedule.open_zones().sum(axis=1).min())
    return max(1, population * zones // schedule.zones)


def _binomial_pmf(rounds: int, rate: float) -> NDArray[np.float64]:
    pmf = np.asarray(stats.binom.pmf(np.arange(rounds + 1), rounds, rate), np.float64)
    return np.asarray(pmf / pmf.sum())
