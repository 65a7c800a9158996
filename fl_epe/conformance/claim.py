"""What a claim says of error rates, and what error rates say of a claim.

A claim is a privacy profile: pairs (ε, δ) that hold together. Of one (ε, δ) that is one pair. Where
the noise is said to be Gaussian, sampled or not, it is the whole curve δ(ε) of the noise multiplier
that is claimed, or that the claimed ε needs: so do few trials disprove ε = 4 at δ = 1e-5.

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

from fl_epe.accounting import delta_two_gaussians, gaussian_epsilon, poisson_epsilon
from fl_epe.auditing.bounds import error_rates
from fl_epe.checks import Floats
from fl_epe.conformance.target import Target

_GRID = np.linspace(0.0, 12.0, 61)
_STEP, _STEPS = 0.9, 40  # of the noise, by which less of it is tried
_EACH = math.sqrt(0.8)  # probability that each error rate is as low as needed


def limits(
    false: ArrayLike, missed: ArrayLike, count: int, level: float
) -> tuple[Floats, Floats]:
    """Upper limits of FPR and FNR, of as many trials of each world, which hold together.

    Args:
        false: runs without the canary that were taken for runs with it.
        missed: runs with the canary that were taken for runs without it.
        count: trials of each world.
        level: probability at most that one of the rates is above its limit.
    """
    each = (np.asarray(errors, np.float64) for errors in (false, missed))
    fpr, fnr = (
        error_rates.clopper_pearson_upper(one, count, level / 2) for one in each
    )
    return fpr, fnr


@functools.lru_cache(maxsize=64)
def _sampled(noise: float, rate: float, steps: int, interval: float) -> Floats:
    """δ at the grid's ε of Gaussian mechanisms with Poisson sampling, rounded up."""
    from dp_accounting.pld import privacy_loss_distribution  # slow to import

    one = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval
    )
    return np.asarray(one.self_compose(steps).get_delta_for_epsilon(_GRID))


@dataclasses.dataclass(frozen=True, eq=False)
class Profile:
    """A claim.

    Attributes:
        epsilons: shape (p,).
        deltas: of these, shape (p,).
        delta: at which a Gaussian claim is stated; ``None`` for other claims.
    """

    epsilons: Floats
    deltas: Floats
    delta: float | None

    @classmethod
    def of(cls, target: Target, part: float = 1.0) -> Profile:
        """What a target claims, or would claim with this part of its noise."""
        rate, steps, z = target.sampling_rate, target.taken, target.multiplier
        epsilon = target.claimed
        epsilons: ArrayLike = ()
        deltas: ArrayLike = ()
        if z is None:
            epsilon = epsilon / part
            if target.noise == "laplace" and steps == 1 and rate == 1:
                epsilons = _GRID[epsilon > _GRID]
                deltas = -np.expm1((epsilons - epsilon) / 2)
        else:
            if part < 1:
                epsilon = poisson_epsilon(part * z, rate, steps, target.delta)
            if rate == 1:
                shift = math.sqrt(steps) / (part * z)
                epsilons, deltas = (
                    _GRID,
                    delta_two_gaussians(0.0, 1.0, shift, 1.0, _GRID),
                )
            elif target.adjacency != "substitute":
                interval = 1e-3 if part == 1 else 1e-2
                epsilons, deltas = _GRID, _sampled(part * z, rate, steps, interval)
        stated = np.append(epsilons, epsilon), np.append(deltas, target.delta)
        return cls(*stated, target.delta if z is not None and rate == 1 else None)

    def excess(self, fpr: ArrayLike, fnr: ArrayLike) -> Floats:
        """By how much, in nats, rates are beyond the claim at its weakest pair; below 0 within."""
        one, other = (np.asarray(x, np.float64)[..., None] for x in (fpr, fnr))
        ratios = error_rates.log_ratio(np.log(one), other, self.deltas)
        return np.asarray((ratios - self.epsilons).max(axis=-1))

    def fnr(self, fpr: Floats) -> Floats:
        """The lowest FNR at each FPR that is possible (Kairouz et al. 2015)."""
        ratios, rest = np.exp(np.minimum(self.epsilons, 700.0)), 1 - self.deltas
        members = rest - ratios * fpr[:, None]
        others = (rest - fpr[:, None]) / ratios
        return np.asarray(np.maximum(members, others).max(axis=1).clip(0, 1))

    def epsilon(self, fpr: float, fnr: float, delta: float) -> float:
        """ε that the rates prove; of a claim of Gaussian mechanisms, read as of one."""
        found = float(error_rates.epsilon_from_rates(np.log(fpr), np.array(fnr), delta))
        mu = -float(scipy.special.ndtri(fpr) + scipy.special.ndtri(fnr))
        if self.delta is None or not mu > 0:
            return found
        return max(found, gaussian_epsilon(1 / mu, self.delta))


def detectable(target: Target, profile: Profile, count: int, level: float) -> float:
    """The smallest ε, in steps, that a game finds in 4 of 5 runs; infinite if it finds none.

    It is of mechanisms that have less of the claimed noise, with `Target.law`. The game has the
    best statistic against it.

    Args:
        target: with its claim.
        profile: that claim.
        count: trials of each world that prove.
        level: of a false alarm of the game.
    """
    target = dataclasses.replace(target, noise=target.law, norm="l1")
    fpr = np.geomspace(0.1 / count, 0.5, 60)
    for step in range(1, _STEPS):
        less = Profile.of(target, _STEP**step)
        false = scipy.stats.binom.ppf(_EACH, count, fpr)
        missed = scipy.stats.binom.ppf(_EACH, count, less.fnr(fpr))
        if (profile.excess(*limits(false, missed, count, level)) > 0).any():
            return float(less.epsilons[-1])
    return math.inf
