"""Analytical upper bounds on ε: what the theory promises for a participation schedule.

The noise multiplier z is the noise's standard deviation over the clip norm, so that the sum of
clipped updates has sensitivity 1/z standard deviations to one client's presence. Every bound here
holds against an adversary who sees the model after each round, so also against one who sees the
final model only.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fl_epe.accounting.two_gaussians import delta_two_gaussians, epsilon_two_gaussians
from fl_epe.checks import check_probability

_COARSEST = 1e-2  # privacy-loss grid, in nats
_FINEST = 1e-6
_LARGEST_STEP = 500.0  # dp-accounting takes its exponential
_CLOSE_ENOUGH = 2e-3  # relative change of ε at which the grid is fine enough
_MOST_CELLS = 2e5  # ε over the grid's step: a second or so of convolutions


@dataclasses.dataclass(frozen=True)
class UpperBound:
    """An analytical ε, and what it counts on.

    Attributes:
        epsilon: in nats; infinite without noise.
        rounds_known: whether it holds against an adversary who knows a client's rounds.
        adjacency: which two runs it tells apart: "zero-out", "add-or-remove" or "replace-one".
        assumption: what it takes for granted, in words.
    """

    epsilon: float
    rounds_known: bool
    adjacency: str
    assumption: str


def gaussian_epsilon(noise_multiplier: float, delta: float, participations: int = 1) -> float:
    """ε of a client who takes part ``participations`` times, in rounds the adversary knows.

    R adaptively chosen Gaussian mechanisms compose to √R/z-GDP (Dong, Roth, Su 2019),
    which no analysis improves on. Adjacency: zero-out, the client's updates replaced by zero.

    Args:
        noise_multiplier: z ≥ 0.
        delta: in (0, 1).
        participations: how often the client takes part, R ≥ 0.

    Raises:
        ValueError: for an argument out of range.
    """
    _check(noise_multiplier, delta)
    if participations < 0:
        raise ValueError(f"Expected participations={participations} >= 0.")
    if participations == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    shift = math.sqrt(participations) / noise_multiplier
    return float(epsilon_two_gaussians(0.0, 1.0, shift, 1.0, delta))


def random_participations_epsilon(
    noise_multiplier: float, delta: float, probabilities: ArrayLike
) -> float:
    """ε of a client whose number of participations is random, in rounds the adversary knows.

    Given its rounds, a client who takes part R times has √R/z-GDP; the rounds do not depend on
    anybody's data, so δ(ε) is the mean over R of that of `gaussian_epsilon`. Exact, but for tails
    below δ/1000 that count as lost. Adjacency: zero-out.

    Args:
        noise_multiplier: z ≥ 0.
        delta: in (0, 1).
        probabilities: of 0, 1, 2, … participations, shape ``(most + 1,)``.

    Raises:
        ValueError: for an argument out of range.
    """
    _check(noise_multiplier, delta)
    weights = np.asarray(probabilities, np.float64)
    if weights.ndim != 1 or np.any(weights < 0) or not abs(weights.sum() - 1) < 1e-9:
        raise ValueError(f"Expected probabilities={weights} >= 0 that add up to 1.")
    beyond = np.append(np.cumsum(weights[:0:-1])[::-1], 0.0)  # more than 0, 1, 2, …
    most = int(np.argmax(beyond <= delta / 1000))
    if 1 - weights[0] <= delta:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    counts = np.flatnonzero(weights[: most + 1])
    shifts = np.sqrt(counts[counts > 0]) / noise_multiplier
    share, lost = weights[counts[counts > 0]], float(beyond[most])

    def excess(epsilon: float) -> float:
        deltas = np.asarray(delta_two_gaussians(0.0, 1.0, shifts, 1.0, epsilon))
        return float(share @ deltas) + lost - delta

    if excess(0.0) <= 0:
        return 0.0
    high = gaussian_epsilon(noise_multiplier, (delta - lost) / 2, most)
    return float(scipy.optimize.brentq(excess, 0.0, high, rtol=1e-10))


def poisson_epsilon(
    noise_multiplier: float, sampling_rate: float, rounds: int, delta: float
) -> float:
    """ε of a client who joins each round by a coin that nobody sees, from dp-accounting's PLD.

    The privacy-loss distribution is rounded up at every step (Doroshenko et al. 2022), on a grid
    that is refined until ε settles: the answer is above the exact ε by less than 1% or so, and
    never below. Where there is so little noise that the unsampled ε passes 10⁸, it is that one.
    Adjacency: add or remove one client.

    Args:
        noise_multiplier: z ≥ 0.
        sampling_rate: probability of taking part in a round, in [0, 1].
        rounds: number of rounds, at least 0.
        delta: in (0, 1).

    Raises:
        ValueError: for an argument out of range.
    """
    _check(noise_multiplier, delta)
    if not 0 <= sampling_rate <= 1:
        raise ValueError(f"Expected sampling_rate={sampling_rate} in [0, 1].")
    _check_rounds(rounds)
    if sampling_rate == 0 or rounds == 0:
        return 0.0
    epsilon = gaussian_epsilon(noise_multiplier, delta, rounds)  # as if never left out
    if sampling_rate == 1 or math.isinf(epsilon):
        return epsilon
    step = min(max(_COARSEST, epsilon / _MOST_CELLS), _LARGEST_STEP)
    while step >= _FINEST and epsilon <= 1.01 * _MOST_CELLS * step:
        finer = _pld_epsilon(noise_multiplier, sampling_rate, rounds, delta, step)
        settled = abs(epsilon - finer) <= _CLOSE_ENOUGH * finer
        epsilon = min(epsilon, finer)
        if settled:
            break
        step /= 10
    return epsilon


def fixed_size_epsilon(
    noise_multiplier: float, population: int, cohort: int, rounds: int, delta: float
) -> float:
    """ε where every round draws a fresh cohort of fixed size, from dp-accounting's RDP.

    An upper bound, not a tight one (Wang, Balle, Kasiviswanathan 2019, Theorem 27). Adjacency:
    replace one client, which moves a round's sum by up to two clip norms.

    Args:
        noise_multiplier: z ≥ 0.
        population: number of clients.
        cohort: how many of them take part in a round, without replacement, in [0, population].
        rounds: number of rounds, at least 0.
        delta: in (0, 1).

    Raises:
        ValueError: for an argument out of range.
    """
    _check(noise_multiplier, delta)
    if not 0 <= cohort <= population:
        raise ValueError(f"Expected cohort={cohort} in [0, population={population}].")
    _check_rounds(rounds)
    if cohort == 0 or rounds == 0:
        return 0.0
    unsampled = gaussian_epsilon(noise_multiplier / 2, delta, rounds)
    if cohort == population or noise_multiplier == 0:
        return unsampled
    return min(unsampled, _rdp_epsilon(noise_multiplier / 2, population, cohort, rounds, delta))


def _pld_epsilon(
    noise_multiplier: float, sampling_rate: float, rounds: int, delta: float, step: float
) -> float:
    import dp_accounting  # slow to import
    from dp_accounting.pld import PLDAccountant

    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    event = dp_accounting.PoissonSampledDpEvent(sampling_rate, gaussian)
    accountant = PLDAccountant(value_discretization_interval=step)
    return float(accountant.compose(event, rounds).get_epsilon(delta))


def _rdp_epsilon(
    noise_multiplier: float, population: int, cohort: int, rounds: int, delta: float
) -> float:
    import dp_accounting  # slow to import
    from dp_accounting.rdp import RdpAccountant

    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    event = dp_accounting.SampledWithoutReplacementDpEvent(population, cohort, gaussian)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = RdpAccountant(neighboring_relation=relation)
    return float(accountant.compose(event, rounds).get_epsilon(delta))


def _check(noise_multiplier: float, delta: float) -> None:
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise ValueError(f"Expected noise_multiplier={noise_multiplier} >= 0 and finite.")
    check_probability("delta", delta)


def _check_rounds(rounds: int) -> None:
    if rounds < 0:
        raise ValueError(f"Expected rounds={rounds} >= 0.")
