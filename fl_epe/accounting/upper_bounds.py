"""Analytical upper bounds on ε for one client's participation, and for a whole schedule.

Every bound holds against an adversary who sees the model after each round, and so also against one
who sees only the final one. A schedule states what it guarantees as a `fl_epe.schedules.PrivacyLaw`
and a `fl_epe.schedules.Pattern`; its bounds hold for clients and for canaries.

Examples:
    >>> from fl_epe.schedules import Poisson
    >>> bound = tightest(upper_bounds(Poisson(10, 0.1), 1.0, 1e-5, 1000), rounds_known=False)
    >>> bound.adjacency
    'add-or-remove'
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator

import numpy as np
import scipy

from fl_epe.accounting.composed_gaussians import (
    fixed_size_epsilon,
    gaussian_epsilon,
    poisson_epsilon,
    random_participations_epsilon,
)
from fl_epe.accounting.expected_score_law import expected_score_law
from fl_epe.accounting.unknown_rounds import partly_known_epsilon
from fl_epe.checks import Floats, check_count
from fl_epe.schedules import Composed, Pattern, PrivacyLaw, Schedule
from fl_epe.wording import how_often


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
    Rounds unknown: independent coins give `poisson_epsilon`, cohorts of fixed size RDP, and
    patterns of rounds `amplified_bounds`.

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
    if not law.coins and 0 < found[0].epsilon < math.inf:
        found += amplified_bounds(schedule.pattern(population), noise_multiplier, delta)
    return tuple(found)


def amplified_bounds(
    pattern: Pattern, noise_multiplier: float, delta: float, bands: int = 1, overlap: float = 0.0
) -> Iterator[UpperBound]:
    """What hiding a client's rounds adds, where a theorem says so: for two patterns.

    - The client takes part by a coin in rounds that are at least ``bands`` apart. That is
      `poisson_epsilon` of as many rounds (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix
      Factorization", Theorem 4).
    - The client has one uniform round in each block (Chua et al. 2024, "Balls-and-Bins Sampling for
      DP-SGD"). With correlated noise the adversary may be told its remainder modulo ``bands``, and
      rounds whose noise reaches another block.

    Args:
        pattern: the sets of rounds that a client may have.
        noise_multiplier: z > 0.
        delta: in (0, 1).
        bands: rounds over which noise is correlated, itself included; see `strategy_bounds`.
        overlap: largest product of columns of the strategy in neighbouring blocks.
    """
    if pattern.rate < 1 and pattern.separation >= bands:
        epsilon = poisson_epsilon(noise_multiplier, pattern.rate, pattern.most, delta)
        words = "takes part by coins that the adversary does not see"
        if bands > 1:
            words += f", in rounds at least as far apart as the strategy's bands, {bands}"
        yield UpperBound(epsilon, False, "zero-out", words, averages=True)
    if pattern.uniform and (blocks := _hidden_rounds(pattern, bands)):
        known = math.sqrt(1 + overlap) / noise_multiplier
        epsilon = partly_known_epsilon(blocks, 1 / noise_multiplier, known, delta)
        words = "has a round in each block that the adversary does not know"
        if bands > 1:
            words += f"; the strategy has {bands} bands"
        yield UpperBound(epsilon, False, "zero-out", words, averages=True)


def _hidden_rounds(pattern: Pattern, bands: int) -> list[tuple[int, float]]:
    """Of each block, rounds that stay possible, and the probability that the round is told.

    A round is told if its column shares rows with one of a neighbouring block. Empty if some block
    has no round left, or none has two.
    """
    last, found = len(pattern.blocks) - 1, []
    for i, (start, end) in enumerate(pattern.blocks):
        told = (bands - 1) * ((i > 0) + (i < last))
        found.append(((end - start - told) // bands, told / (end - start)))
    left = [rounds for rounds, _ in found]
    return found if min(left) > 0 and max(left) > 1 else []


def tightest(found: Iterable[UpperBound], *, rounds_known: bool) -> UpperBound:
    """The bound with the smallest ε.

    Args:
        found: from `upper_bounds`; one of them holds for known rounds.
        rounds_known: whether the adversary knows the client's rounds. A bound for known rounds
            holds for unknown rounds as well.
    """
    holds = [bound for bound in found if bound.rounds_known or not rounds_known]
    return min(holds, key=lambda bound: bound.epsilon)


def _bounds(law: PrivacyLaw, z: float, delta: float) -> Iterator[UpperBound]:
    words = f"takes part at most {how_often(law.most)}"
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
        return _count_pmf(schedule.schedule, population) if isinstance(schedule, Composed) else None
    pmf = np.bincount(np.rint(law.expected_scores).astype(np.int64), law.shares)
    return np.asarray(pmf / pmf.sum(), np.float64)
