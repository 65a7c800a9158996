"""Credible limits at a held-out threshold, for (ε, δ) and for μ-GDP; not valid at each rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import scipy

from fl_epe.auditing.bounds.clopper_pearson import held_out_for_epsilon
from fl_epe.auditing.bounds.error_rates import Errors, FloatArray, Sample
from fl_epe.auditing.bounds.gdp import gdp_epsilon, mu_limits
from fl_epe.auditing.bounds.held_out import AtThresholds, held_out

_QUADRATURE = (np.arange(400) + 0.5) / 400
_LARGEST = 1e12  # larger privacy levels count as infinite
_TOLERANCE = 1e-6


def bayesian(sample: Sample) -> float:
    """(ε, δ) credible limit at a held-out threshold (Zanella-Béguelin et al. 2023).

    Only small error rates count against privacy. If large ones did too, the limit would be positive
    at ε = 0.
    """
    return float(_credible_epsilon(sample)(held_out_for_epsilon(sample))[0])


def bayesian_gdp(sample: Sample) -> float:
    """ε of the credible limit of μ-GDP at a held-out threshold."""
    return float(_credible_gdp_epsilon(sample)(held_out(sample, mu_limits(sample)))[0])


def _credible_epsilon(sample: Sample) -> AtThresholds:
    target = 1 - sample.delta

    def least_fnr(log_fpr: FloatArray, epsilon: float) -> FloatArray:
        by_members = target - np.exp(np.minimum(epsilon + log_fpr, 0.0))
        by_others = np.exp(-epsilon) * (target - np.exp(log_fpr))
        return np.asarray(np.maximum(by_members, by_others))

    return lambda errors: _credible_limits(errors, least_fnr, sample.alpha)


def _credible_gdp_epsilon(sample: Sample) -> AtThresholds:
    def least_fnr(log_fpr: FloatArray, mu: float) -> FloatArray:
        return np.asarray(scipy.special.ndtr(-scipy.special.ndtri_exp(log_fpr) - mu))

    def epsilon(errors: Errors) -> FloatArray:
        limits = _credible_limits(errors, least_fnr, sample.alpha)
        return np.array([gdp_epsilon(float(mu), sample.delta) for mu in limits])

    return epsilon


def _credible_limits(
    errors: Errors, least_fnr: Callable[[FloatArray, float], FloatArray], alpha: float
) -> FloatArray:
    limits = [
        _credible_limit(_at(errors, place), least_fnr, alpha) for place in range(errors.missed.size)
    ]
    return np.array(limits)


def _at(errors: Errors, place: int) -> Errors:
    """The errors at one of the thresholds."""
    one = slice(place, place + 1)
    alarms = None if errors.false_alarms is None else errors.false_alarms[one]
    return dataclasses.replace(
        errors, missed=errors.missed[one], false_alarms=alarms, log_fpr=errors.log_fpr[one]
    )


def _credible_limit(
    errors: Errors, least_fnr: Callable[[FloatArray, float], FloatArray], alpha: float
) -> float:
    """The privacy level that the rates satisfy with posterior probability ``alpha``.

    A posteriori FNR ~ Beta(½ + missed, ½ + hits) and, unless it is known, FPR ~ Beta(½ + false
    alarms, ½ + rest), independently. The FPR is integrated out over its quantiles.

    Args:
        errors: at one threshold.
        least_fnr: the smallest FNR that a privacy level allows at each log FPR; it decreases with
            the level.
        alpha: posterior probability.
    """
    missed, log_fpr = errors.missed[0], errors.log_fpr
    if errors.false_alarms is not None:
        false_alarms = errors.false_alarms[0]
        rest = errors.unobserved - false_alarms
        log_fpr = np.log(scipy.special.betaincinv(false_alarms + 0.5, rest + 0.5, _QUADRATURE))

    def excess(level: float) -> float:
        fnr = np.clip(least_fnr(log_fpr, level), 0.0, 1.0)
        respected = scipy.special.betaincc(missed + 0.5, errors.observed - missed + 0.5, fnr)
        return float(np.mean(respected)) - alpha

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
        if high > _LARGEST:
            return np.inf
    root = float(scipy.optimize.brentq(excess, 0.0, high, xtol=_TOLERANCE))
    return max(0.0, root - _TOLERANCE)
