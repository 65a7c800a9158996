"""The error rates that a privacy claim allows, and the ε that error rates prove.

A claim is a privacy profile: pairs (ε, δ) that hold together. A claim of one (ε, δ) is one pair. A
claim of Gaussian noise, sampled or not, is the whole curve δ(ε) of the claimed noise
multiplier, or of the noise multiplier that the claimed ε needs. A few trials can then disprove
ε = 4 at δ = 1e-5.

Examples:
    >>> claim = Profile(np.array([1.0]), np.array([0.0]), None)
    >>> float(claim.excess(*limits(5, 400, 1000, 0.01))) > 0  # P(S) is 0.6 and 0.005
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

# The values of ε in a profile.
_GRID = np.linspace(0.0, 12.0, 61)

# The detectable ε is searched over shares of the claimed noise, which are powers of
# `_NOISE_SHARE`.
_NOISE_SHARE = 0.9
_NOISE_SHARES = 40

# Each of the two error rates is low enough with this probability, so both are in 4 of 5 runs.
_POWER_PER_RATE = math.sqrt(0.8)


def limits(
    false: ArrayLike, missed: ArrayLike, count: int, level: float
) -> tuple[Floats, Floats]:
    """Upper limits of FPR and FNR, which hold together.

    Args:
        false: number of runs without the canary that were classified as with it.
        missed: number of runs with the canary that were classified as without it.
        count: number of trials of each world.
        level: largest probability that one of the rates is above its limit.
    """
    fpr = error_rates.clopper_pearson_upper(
        np.asarray(false, np.float64), count, level / 2
    )
    fnr = error_rates.clopper_pearson_upper(
        np.asarray(missed, np.float64), count, level / 2
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
    def of(cls, target: Target, noise_share: float = 1.0) -> Profile:
        """The profile of a target's claim, or of a claim with this share of the claimed noise."""
        rate = target.sampling_rate
        steps = target.canary_steps
        epsilon = target.claimed
        epsilons: ArrayLike = ()
        deltas: ArrayLike = ()
        delta = None
        if target.multiplier is None:
            epsilon = epsilon / noise_share
            if target.noise == "laplace" and steps == 1 and rate == 1:
                epsilons = _GRID[epsilon > _GRID]
                deltas = -np.expm1((epsilons - epsilon) / 2)
        else:
            z = noise_share * target.multiplier
            if noise_share < 1:
                epsilon = poisson_epsilon(z, rate, steps, target.delta)
            if rate == 1:
                epsilons = _GRID
                deltas = delta_two_gaussians(
                    0.0, 1.0, math.sqrt(steps) / z, 1.0, _GRID
                )
                delta = target.delta
            elif target.adjacency != "substitute":
                interval = 1e-3 if noise_share == 1 else 1e-2
                epsilons = _GRID
                deltas = _sampled_deltas(z, rate, steps, interval)
        return cls(
            np.append(epsilons, epsilon), np.append(deltas, target.delta), delta
        )

    def excess(self, fpr: ArrayLike, fnr: ArrayLike) -> Floats:
        """The excess of error rates over the claim at its weakest pair, in nats.

        It is negative for error rates that the claim allows.
        """
        log_fpr = np.log(np.asarray(fpr, np.float64))[..., None]
        fnr = np.asarray(fnr, np.float64)[..., None]
        ratios = error_rates.log_ratio(log_fpr, fnr, self.deltas)
        return np.asarray((ratios - self.epsilons).max(axis=-1))

    def fnr(self, fpr: Floats) -> Floats:
        """The lowest possible FNR at each FPR (Kairouz et al. 2015)."""
        ratios = np.exp(np.minimum(self.epsilons, 700.0))
        by_members = 1 - self.deltas - ratios * fpr[:, None]
        by_nonmembers = (1 - self.deltas - fpr[:, None]) / ratios
        lowest = np.maximum(by_members, by_nonmembers).max(axis=1)
        return np.asarray(lowest.clip(0, 1))

    def epsilon(self, fpr: float, fnr: float, delta: float) -> float:
        """ε that the error rates prove; for a Gaussian claim, the ε of a Gaussian mechanism."""
        epsilon = float(
            error_rates.epsilon_from_rates(np.log(fpr), np.array(fnr), delta)
        )
        mu = -float(scipy.special.ndtri(fpr) + scipy.special.ndtri(fnr))
        if self.delta is None or not mu > 0:
            return epsilon
        return max(epsilon, gaussian_epsilon(1 / mu, self.delta))


def detectable(
    target: Target, profile: Profile, count: int, level: float
) -> float:
    """The smallest ε, among a few, that a game detects in 4 of 5 runs; infinite if there is none.

    The mechanisms have less than the claimed noise, of the law `Target.law`, and the game uses
    the best statistic against them.

    Args:
        target: the target with its claim.
        profile: the profile of that claim.
        count: number of trials of each world that are used for the proof.
        level: probability of a false alarm of the game.
    """
    target = dataclasses.replace(target, noise=target.law, norm="l1")
    fpr = np.geomspace(0.1 / count, 0.5, 60)
    for power in range(1, _NOISE_SHARES):
        weaker = Profile.of(target, _NOISE_SHARE**power)
        false = scipy.stats.binom.ppf(_POWER_PER_RATE, count, fpr)
        missed = scipy.stats.binom.ppf(_POWER_PER_RATE, count, weaker.fnr(fpr))
        if (profile.excess(*limits(false, missed, count, level)) > 0).any():
            return float(weaker.epsilons[-1])
    return math.inf
