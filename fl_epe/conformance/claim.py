"""The error rates that a privacy claim allows, and the ε that error rates prove.

A claim is a privacy profile: pairs (ε, δ) that hold together. A claim of one (ε, δ) is one pair. A
claim of Gaussian noise, sampled or not, is the whole curve δ(ε) of the claimed noise
multiplier, or of the noise multiplier that the claimed ε needs. A few trials can then disprove
ε = 4 at δ = 1e-5.

Examples:
    With the canary, 600 of 1,000 runs have some property, and 5 of 1,000 without it:

    >>> claim = Profile(np.array([1.0]), np.array([0.0]), None)
    >>> float(claim.excess(*limits(5, 400, 1000, 0.01))) > 0
    True
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fl_epe.accounting import (
    delta_two_gaussians,
    gaussian_epsilon,
    poisson_epsilon,
)
from fl_epe.auditing.bounds import error_rates
from fl_epe.checks import Floats
from fl_epe.conformance.target import Target

# The values of ε in a profile that is a curve.
_GRID = np.linspace(0.0, 12.0, 61)

# The detectable ε is searched over fractions of the claimed noise: powers of the first number, with
# exponents below the second.
_NOISE_RATIO = 0.9
_MAX_POWER = 40

# Widths of the intervals by which a privacy loss is rounded: of the claim, and of weaker noise.
_FINE_INTERVAL = 1e-3
_COARSE_INTERVAL = 1e-2

# Larger values of ε count as this one, because their exponential is no finite float.
_MAX_EXPONENT = 700.0

# Each of the two error rates is low enough with this probability, so both are in 4 of 5 runs.
_POWER_PER_RATE = math.sqrt(0.8)


def limits(
    false_alarms: ArrayLike, misses: ArrayLike, count: int, level: float
) -> tuple[Floats, Floats]:
    """Upper limits of FPR and FNR, which hold together.

    Args:
        false_alarms: number of runs without the canary that were classified as with it.
        misses: number of runs with the canary that were classified as without it.
        count: number of trials of each world.
        level: largest probability that one of the rates is above its limit.
    """
    fpr = error_rates.clopper_pearson_upper(
        np.asarray(false_alarms, np.float64), count, level / 2
    )
    fnr = error_rates.clopper_pearson_upper(
        np.asarray(misses, np.float64), count, level / 2
    )
    return fpr, fnr


@functools.lru_cache(maxsize=64)
def _sampled_deltas(
    noise: float, rate: float, steps: int, interval: float
) -> Floats:
    """δ at the grid's ε of Gaussian mechanisms with Poisson sampling, rounded up."""
    # The import is slow.
    from dp_accounting.pld import privacy_loss_distribution

    step = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval
    )
    return np.asarray(step.self_compose(steps).get_delta_for_epsilon(_GRID))


@dataclasses.dataclass(frozen=True, eq=False)
class Profile:
    """The pairs (ε, δ) of a claim.

    Attributes:
        epsilons: the values of ε, shape (p,).
        deltas: the δ of each ε, shape (p,).
        delta: the δ of the claimed ε of a Gaussian claim; ``None`` for other claims.
    """

    epsilons: Floats
    deltas: Floats
    delta: float | None

    @classmethod
    def of(cls, target: Target, noise_ratio: float = 1.0) -> Profile:
        """The profile of a target's claim, or of a claim with a fraction of the claimed noise."""
        rate = target.sampling_rate
        steps = target.canary_steps
        epsilon = target.claimed_epsilon
        epsilons: ArrayLike = ()
        deltas: ArrayLike = ()
        delta = None
        if target.multiplier is None:
            epsilon = epsilon / noise_ratio
            # The curve of Laplace noise is known for a single step without sampling.
            if target.noise == "laplace" and steps == 1 and rate == 1:
                epsilons = _GRID[epsilon > _GRID]
                deltas = -np.expm1((epsilons - epsilon) / 2)
        else:
            z = noise_ratio * target.multiplier
            # With the claimed noise, ε is the claimed one, which may exceed that of theory.
            if noise_ratio < 1:
                epsilon = poisson_epsilon(z, rate, steps, target.delta)
            if rate == 1:
                epsilons = _GRID
                deltas = delta_two_gaussians(
                    0.0, 1.0, math.sqrt(steps) / z, 1.0, _GRID
                )
                delta = target.delta
            # The curve of a sampled mechanism does not hold for "substitute".
            elif target.adjacency != "substitute":
                interval = _COARSE_INTERVAL
                if noise_ratio == 1:
                    interval = _FINE_INTERVAL
                epsilons = _GRID
                deltas = _sampled_deltas(z, rate, steps, interval)
        return cls(
            np.append(epsilons, epsilon), np.append(deltas, target.delta), delta
        )

    def excess(self, fpr: ArrayLike, fnr: ArrayLike) -> Floats:
        """The excess of the ε of error rates over the claimed ε, at the pair that is violated most.

        It is negative for error rates that the claim allows.
        """
        log_fpr = np.log(np.asarray(fpr, np.float64))[..., None]
        fnr = np.asarray(fnr, np.float64)[..., None]
        ratios = error_rates.log_ratio(log_fpr, fnr, self.deltas)
        return np.asarray((ratios - self.epsilons).max(axis=-1))

    def fnr(self, fpr: Floats) -> Floats:
        """The lowest possible FNR at each FPR (Kairouz et al. 2015)."""
        ratios = np.exp(np.minimum(self.epsilons, _MAX_EXPONENT))
        by_members = 1 - self.deltas - ratios * fpr[:, None]
        by_nonmembers = (1 - self.deltas - fpr[:, None]) / ratios
        lowest = np.maximum(by_members, by_nonmembers).max(axis=1)
        return np.asarray(lowest.clip(0, 1))

    def epsilon(self, fpr: float, fnr: float, delta: float) -> float:
        """ε that the error rates prove.

        For a Gaussian claim it is at least the ε of a Gaussian mechanism with these error rates.
        """
        epsilon = float(
            error_rates.epsilon_from_rates(np.log(fpr), np.array(fnr), delta)
        )
        mu = -float(scipy.special.ndtri(fpr) + scipy.special.ndtri(fnr))
        if self.delta is None or not mu > 0:
            return epsilon
        return max(epsilon, gaussian_epsilon(1 / mu, self.delta))


def detectable(target: Target, count: int, level: float) -> float:
    """The smallest ε, among a few, that a game detects in 4 of 5 runs; infinite if there is none.

    It is the ε of a mechanism with less than the claimed noise, of the law `Target.law`. The game
    is assumed to use the best statistic against it.

    Args:
        target: the target with its claim.
        count: number of trials of each world that are used for the proof.
        level: probability of a false alarm of the game.
    """
    profile = Profile.of(target)
    target = dataclasses.replace(target, noise=target.law, norm="l1")
    fpr = np.geomspace(0.1 / count, 0.5, 60)
    false_alarms = scipy.stats.binom.ppf(_POWER_PER_RATE, count, fpr)
    for power in range(1, _MAX_POWER):
        weaker = Profile.of(target, _NOISE_RATIO**power)
        misses = scipy.stats.binom.ppf(_POWER_PER_RATE, count, weaker.fnr(fpr))
        upper = limits(false_alarms, misses, count, level)
        if (profile.excess(*upper) > 0).any():
            return float(weaker.epsilons[-1])
    return math.inf
