"""The trade-off curve of Gaussian steps under Poisson sampling, and its ε from below.

An upper bound on ε (`poisson_epsilon`) rounds the privacy-loss distribution up. Evidence against a
mechanism needs the other side: which error rates no such mechanism allows, and an ε that is surely
not above the exact one. Adjacency: add-or-remove.

Examples:
    >>> curve = poisson_trade_off(noise_multiplier=1.0, sampling_rate=0.1, steps=10)
    >>> bool(0.5 < curve.least_fnr(0.05) < 0.95)  # who is wrong about 5% misses most members
    True
    >>> 1.5 < poisson_epsilon_below(1.0, 0.1, 10, 1e-5) <= poisson_epsilon(1.0, 0.1, 10, 1e-5)
    True
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.accounting import (
    delta_two_gaussians,
    gaussian_epsilon,
    poisson_epsilon,
)
from fl_epe.accounting.composed_gaussians import epsilon_of_losses
from fl_epe.checks import check_probability, raise_invalid

Floats = NDArray[np.float64]

_TANGENTS = 200  # lines whose upper envelope is the curve
_FIRST_LOOK = 60
_FLATTEST = (
    1e-7  # δ of the steepest tangent: error rates below it are not told apart
)
_STEP = 0.05  # the grid's step over the standard deviation of one step's privacy loss
_FINEST, _COARSEST = 1e-7, 0.05
_LOST_BELOW = 5e-3  # relative, for the ε from below
_MOST_CELLS = 2e5  # ε over the grid's step, for the ε from below: seconds
_LARGEST = 600.0  # ε of a tangent: dp-accounting takes its exponential
_LOST_TAILS = 1e-14  # of probability, that dp-accounting leaves out


@dataclasses.dataclass(frozen=True, eq=False)
class TradeOff:
    """A trade-off curve: the least rate of one error at each rate of the other.

    It is the upper envelope of the lines of (ε, δ)-DP for many ε, so nowhere above the exact one.

    Attributes:
        epsilons: of the lines, shape (n,), at least 0.
        deltas: for each ε a δ that is not below the exact one, shape (n,).
    """

    epsilons: Floats
    deltas: Floats

    def least_fnr(self, fpr: ArrayLike) -> Floats:
        """The least FNR at each FPR, of the same shape."""
        rates = np.asarray(fpr, np.float64)[..., np.newaxis]
        steep = (
            1 - self.deltas - np.exp(np.minimum(self.epsilons, 700.0)) * rates
        )
        flat = np.exp(-self.epsilons) * (1 - self.deltas - rates)
        return np.asarray(np.maximum(np.maximum(steep, flat).max(axis=-1), 0.0))


@functools.lru_cache(maxsize=4096)
def poisson_trade_off(
    noise_multiplier: float, sampling_rate: float, steps: int
) -> TradeOff:
    """The curve of ``steps`` noisy sums in each of which a record takes part by a secret coin.

    From dp-accounting's privacy-loss distribution, rounded up. It holds in both directions: for who
    guesses that the record is there, and for who guesses that it is not. Kept for the next call.

    Args:
        noise_multiplier: z > 0.
        sampling_rate: probability of taking part in a step, in (0, 1].
        steps: number of steps, at least 1.

    Raises:
        ValueError: if an argument is out of range.
    """
    _check(noise_multiplier, sampling_rate, steps)
    largest = min(
        gaussian_epsilon(noise_multiplier, _FLATTEST, steps), _LARGEST
    )  # unsampled
    if steps == 1:
        return _one_step_curve(noise_multiplier, sampling_rate, largest)
    step = min(
        max(_STEP * _deviation(noise_multiplier, sampling_rate), _FINEST),
        _COARSEST,
    )
    losses = _losses(
        noise_multiplier, sampling_rate, steps, step, pessimistic=True
    )
    first = np.append(0.0, np.geomspace(largest / 1e4, largest, _FIRST_LOOK))
    deltas = np.asarray(losses.get_delta_for_epsilon(first))
    enough = first[min(int(np.sum(deltas > _FLATTEST)), first.size - 1)]
    epsilons = np.linspace(0.0, enough, _TANGENTS)
    return TradeOff(
        epsilons, np.asarray(losses.get_delta_for_epsilon(epsilons))
    )


@functools.lru_cache(maxsize=4096)
def poisson_epsilon_below(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float
) -> float:
    """ε of a record that takes part by secret coins, never above the exact one.

    dp-accounting's privacy-loss distribution with every loss rounded down, on a grid that makes ε
    too small by at most 0.5%, or by 0.5% for every thousand steps if that is more. One step, and
    any number of them without sampling, are exact.

    Args:
        noise_multiplier: z > 0; ``inf`` gives 0.
        sampling_rate: probability of taking part in a step, in (0, 1].
        steps: number of steps, at least 1.
        delta: in (0, 1).

    Raises:
        ValueError: if an argument is out of range.
    """
    check_probability("delta", delta)
    if noise_multiplier == math.inf:
        return 0.0
    _check(noise_multiplier, sampling_rate, steps)
    if sampling_rate == 1:
        return gaussian_epsilon(noise_multiplier, delta, steps)
    if steps == 1:
        return _one_step(noise_multiplier, sampling_rate, delta)
    above = poisson_epsilon(noise_multiplier, sampling_rate, steps, delta)
    if above == 0:
        return 0.0
    step = max(_LOST_BELOW * above / steps, above / _MOST_CELLS)
    losses = _losses(
        noise_multiplier, sampling_rate, steps, step, pessimistic=False
    )
    slack = delta + _LOST_TAILS * steps
    return min(epsilon_of_losses(losses, slack), above) if slack < 1 else 0.0


def _one_step_curve(
    noise_multiplier: float, sampling_rate: float, largest: float
) -> TradeOff:
    unsampled = np.linspace(0.0, largest, _TANGENTS)
    deltas = delta_two_gaussians(0.0, 1.0, 1 / noise_multiplier, 1.0, unsampled)
    epsilons = np.log1p(sampling_rate * np.expm1(unsampled))
    return TradeOff(epsilons, sampling_rate * np.asarray(deltas))


def _one_step(
    noise_multiplier: float, sampling_rate: float, delta: float
) -> float:
    """Sampling changes e^ε − 1 and δ by the factor q (Balle, Barthe, Gaboardi 2018)."""
    if sampling_rate <= delta:
        return 0.0
    unsampled = gaussian_epsilon(noise_multiplier, delta / sampling_rate)
    if unsampled > 100:
        return unsampled + math.log(sampling_rate)
    return float(np.log1p(sampling_rate * np.expm1(unsampled)))


def _deviation(noise_multiplier: float, sampling_rate: float) -> float:
    """About the standard deviation of the privacy loss of one step."""
    square = min(1 / noise_multiplier**2, 300.0)
    return min(
        sampling_rate * math.sqrt(math.expm1(square)), 1 / noise_multiplier
    )


def _losses(
    noise: float, rate: float, steps: int, step: float, *, pessimistic: bool
) -> Any:
    from dp_accounting.pld import privacy_loss_distribution  # slow to import

    of_one_step = privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        pessimistic_estimate=pessimistic,
        value_discretization_interval=step,
        sampling_prob=rate,
        use_connect_dots=pessimistic,
    )
    return of_one_step if steps == 1 else of_one_step.self_compose(steps)


def _check(noise_multiplier: float, sampling_rate: float, steps: int) -> None:
    if not 0 < noise_multiplier < math.inf:
        raise_invalid("noise_multiplier", noise_multiplier, "> 0, finite")
    if not 0 < sampling_rate <= 1:
        raise_invalid("sampling_rate", sampling_rate, "in (0, 1]")
    if steps < 1:
        raise_invalid("steps", steps, ">= 1")
