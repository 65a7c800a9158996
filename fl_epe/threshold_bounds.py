"""Lower bounds on ε from the error rates at a threshold.

A threshold that is chosen on the scores it is then judged by makes its error rates look better
than they are: at ε = 0 and α = 0.05 such a bound is positive in 22% of runs, and in 67% with the
exact null. Only ``jeffreys``, the published procedure, does that. The other bounds choose the
threshold on a tenth of the scores and are judged by the rest (more for choosing costs more than
the better choice gives back). A Gaussian fit to that tenth guides the choice; the bound is valid
whatever the scores' distribution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from scipy import special

from fl_epe.rates import (
    Errors,
    FloatArray,
    Sample,
    clopper_pearson_upper,
    count_errors,
    epsilon_from_rates,
    jeffreys_upper,
    joint_alpha,
    mu_from_rates,
    upper_rates,
)
from fl_epe.two_gaussians import epsilon_two_gaussians

_SHARE_FOR_CHOICE = 0.1
_GRID = np.linspace(-5.0, 5.0, 201)  # standard deviations around each mean, to choose among
_LUCK = np.linspace(-2.4, 2.4, 7)  # standard deviations around the expected number of errors
_LUCK_WEIGHTS = np.exp(-(_LUCK**2) / 2) / np.exp(-(_LUCK**2) / 2).sum()

AtThresholds = Callable[[Errors], FloatArray]


def jeffreys(sample: Sample) -> float:
    """The published sweep: the best threshold of all, each rate at level α, no correction.

    Andrew et al. 2024 (after Zanella-Béguelin et al. 2023), their ``ε_lo``.
    """
    parts = [sample.observed] if sample.unobserved is None else [*sample.both()]
    errors = count_errors(sample, np.unique(np.concatenate(parts)))
    log_fpr, fnr = upper_rates(errors, jeffreys_upper, sample.alpha)
    return float(np.max(epsilon_from_rates(log_fpr, fnr, sample.delta)))


def clopper_pearson(sample: Sample) -> float:
    """(ε, δ) from Clopper–Pearson limits of both rates at a held-out threshold."""

    def epsilon(errors: Errors) -> FloatArray:
        limits = upper_rates(errors, clopper_pearson_upper, joint_alpha(errors, sample.alpha))
        return epsilon_from_rates(*limits, sample.delta)

    errors = held_out(sample, epsilon)
    return float(epsilon(errors)[0])


def gdp(sample: Sample) -> float:
    """ε of the μ-GDP that both rates rule out at a held-out threshold (Nasr et al. 2023)."""

    def mu(errors: Errors) -> FloatArray:
        limits = upper_rates(errors, clopper_pearson_upper, joint_alpha(errors, sample.alpha))
        return mu_from_rates(*limits)

    errors = held_out(sample, mu)
    return gdp_epsilon(float(mu(errors)[0]), sample.delta)


def gdp_epsilon(mu: float, delta: float) -> float:
    """ε at ``delta`` of μ-GDP: of N(0, 1) against N(μ, 1)."""
    if mu == np.inf:
        return np.inf
    return float(epsilon_two_gaussians(0.0, 1.0, mu, 1.0, delta))


def held_out(sample: Sample, bound: AtThresholds) -> Errors:
    """Errors at one threshold, on scores that had no part in choosing it.

    Args:
        sample: all scores; ``sample.seed`` says which of them choose.
        bound: the bound for given errors, element by element. The threshold is the one where it
            is largest on average over the errors that a Gaussian fit foresees.
    """
    choosing, judging = sample.split(_SHARE_FOR_CHOICE)
    null_mean, std = _null_fit(choosing)
    mean = choosing.observed.mean()
    thresholds = np.concatenate(
        [[(null_mean + mean) / 2], null_mean + std * _GRID, mean + std * _GRID]
    )
    if sample.unobserved is None:
        thresholds = np.clip(thresholds, -1.0, 1.0)
    foreseen = count_errors(judging, thresholds)
    missed = _foresee(thresholds - mean, std, foreseen.observed)
    foreseen = dataclasses.replace(foreseen, missed=missed)
    if foreseen.false_alarms is not None:
        false_alarms = _foresee(null_mean - thresholds, std, foreseen.unobserved)
        foreseen = dataclasses.replace(foreseen, false_alarms=false_alarms)
    best = int(np.argmax(_LUCK_WEIGHTS @ bound(foreseen)))
    return count_errors(judging, thresholds[best : best + 1])


def _foresee(distance: FloatArray, std: float, total: int) -> FloatArray:
    """Errors among ``total`` Gaussian scores, from lucky to unlucky, shape (levels, j).

    Args:
        distance: how far the threshold lies beyond the fitted mean, shape (j,).
        std: fitted standard deviation of the scores.
        total: number of scores.
    """
    z = np.copysign(40.0, distance) if std == 0 else distance / std
    rate = special.ndtr(z)
    from_count = total * rate * (1 - rate)
    from_mean = total * np.exp(-(z**2)) / (2 * np.pi * _SHARE_FOR_CHOICE)
    spread = np.sqrt(from_count + from_mean)
    return np.clip(total * rate + _LUCK[:, np.newaxis] * spread, 0.0, float(total))


def _null_fit(sample: Sample) -> tuple[float, float]:
    """Mean of the unobserved scores, and the standard deviation that both groups share."""
    if sample.unobserved is None:
        return 0.0, 1 / np.sqrt(sample.known_dim())
    spread = (sample.observed.var() + sample.unobserved.var()) / 2
    return float(sample.unobserved.mean()), float(np.sqrt(spread))
