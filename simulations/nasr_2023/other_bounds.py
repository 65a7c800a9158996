"""Lower bounds that published audits use and `fl_epe` does not: for comparison with it.

"mean" is valid if the scores are Gaussian with the null's variance. "katz-log" is valid only
asymptotically, for δ = 0; "bayesian" and "bayesian-gdp" keep their level on average over a prior.
`any_lower_bound` computes these and those of `fl_epe.auditing.bounds.BOUNDS`.

Examples:
    >>> scores = Scores(np.linspace(2, 4, 50), np.linspace(-1, 1, 50))
    >>> any_lower_bound(scores, 1e-5, method="mean") > any_lower_bound(scores, 1e-5, method="gdp")
    True
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import scipy

from fl_epe.accounting import epsilon_of_shift
from fl_epe.auditing import Scores
from fl_epe.auditing.bounds import BOUNDS, lower_bound
from fl_epe.auditing.bounds.error_rates import Errors, Sample
from fl_epe.auditing.bounds.methods import Bound
from fl_epe.auditing.bounds.thresholds import (
    LimitsOfLevel,
    epsilon_limits,
    held_out_errors,
    mu_limits,
)
from fl_epe.auditing.scoring.scores import fitted_shift
from fl_epe.checks import Floats

_QUADRATURE = (np.arange(400) + 0.5) / 400
_LARGEST_LEVEL = 1e12  # larger privacy levels count as infinite
_LARGEST_T = 1e3  # above, SciPy's inverse of the noncentral t is inexact or does not return
_TOLERANCE = 1e-6
_TINY = 1e-9


def mean(sample: Sample) -> float:
    """ε of the lower confidence limit of the shift between two Gaussians of equal variance.

    With the exact null the mean of `normal_deviates` is N(0, 1/k) at the true μ. With two groups of
    scores the t statistic of their means has a noncentral t distribution, which is solved for its
    noncentrality.
    """
    shift = (
        _known_shift(sample)
        if sample.unobserved is None
        else _pooled_shift(sample)
    )
    return float(epsilon_of_shift(shift, sample.delta))


def _known_shift(sample: Sample) -> float:
    mean = -float(scipy.special.ndtri(sample.alpha)) / np.sqrt(
        sample.observed.size
    )
    return fitted_shift(sample.observed, sample.dim, mean)


def _pooled_shift(sample: Sample) -> float:
    observed, unobserved = sample.both()
    freedom = observed.size + unobserved.size - 2
    error = np.sqrt(1 / observed.size + 1 / unobserved.size)
    difference = observed.mean() - unobserved.mean()
    squares = _squares(observed) + _squares(unobserved)
    if difference <= 0 or squares == 0:
        return np.inf if difference > 0 else 0.0  # without any noise
    t = difference / (np.sqrt(squares / freedom) * error)
    # For large t noncentrality / t rises with t, so the ratio at the cap is a lower bound.
    capped = min(t, _LARGEST_T)
    noncentrality = scipy.special.nctdtrinc(freedom, 1 - sample.alpha, capped)
    return float(noncentrality * (t / capped) * error)


def _squares(scores: Floats) -> float:
    """Sum of squared deviations from the mean; exactly 0 for tied scores."""
    shifted = scores - scores[0]
    return float(np.sum((shifted - shifted.mean()) ** 2))


def katz_log(sample: Sample) -> float:
    """ε at δ = 0 from Katz's interval of the log of TPR/FPR, at a held-out threshold.

    It holds only asymptotically, with tens of true and of false positives; without any it is 0.
    """
    epsilon = _katz_epsilon(sample)
    return float(epsilon(held_out_errors(sample, epsilon))[0])


def _katz_epsilon(sample: Sample) -> LimitsOfLevel:
    def epsilon(errors: Errors) -> Floats:
        hits = errors.observed - errors.missed
        log_fpr, variance = (
            errors.log_fpr,
            1 / np.maximum(hits, _TINY) - 1 / errors.observed,
        )
        if errors.false_alarms is not None:
            false_alarms = np.maximum(errors.false_alarms, _TINY)
            log_fpr = np.log(false_alarms / errors.unobserved)
            variance = variance + 1 / false_alarms - 1 / errors.unobserved
        log_tpr = np.log(np.maximum(hits, _TINY) / errors.observed)
        limit = (
            log_tpr
            - log_fpr
            + scipy.special.ndtri(sample.alpha) * np.sqrt(variance)
        )
        return np.asarray(np.maximum(limit, 0.0))

    return epsilon


def bayesian(sample: Sample) -> float:
    """(ε, δ) credible limit at a held-out threshold (Zanella-Béguelin et al. 2023).

    Only small error rates count against privacy. If large ones did too, the limit would be positive
    at ε = 0.
    """
    choice = epsilon_limits(dataclasses.replace(sample, delta=1e-3))
    return float(_credible_epsilon(sample)(held_out_errors(sample, choice))[0])


def bayesian_gdp(sample: Sample) -> float:
    """ε of the credible limit of μ-GDP at a held-out threshold."""
    return float(
        _credible_gdp_epsilon(sample)(
            held_out_errors(sample, mu_limits(sample))
        )[0]
    )


def _credible_epsilon(sample: Sample) -> LimitsOfLevel:
    target = 1 - sample.delta

    def least_fnr(log_fpr: Floats, epsilon: float) -> Floats:
        by_members = target - np.exp(np.minimum(epsilon + log_fpr, 0.0))
        by_others = np.exp(-epsilon) * (target - np.exp(log_fpr))
        return np.asarray(np.maximum(by_members, by_others))

    return lambda errors: _credible_limits(errors, least_fnr, sample.alpha)


def _credible_gdp_epsilon(sample: Sample) -> LimitsOfLevel:
    def least_fnr(log_fpr: Floats, mu: float) -> Floats:
        return np.asarray(
            scipy.special.ndtr(-scipy.special.ndtri_exp(log_fpr) - mu)
        )

    def epsilon(errors: Errors) -> Floats:
        limits = _credible_limits(errors, least_fnr, sample.alpha)
        return epsilon_of_shift(limits, sample.delta)

    return epsilon


def _credible_limits(
    errors: Errors, least_fnr: Callable[[Floats, float], Floats], alpha: float
) -> Floats:
    limits = [
        _credible_limit(_at(errors, place), least_fnr, alpha)
        for place in range(errors.missed.size)
    ]
    return np.array(limits)


def _at(errors: Errors, place: int) -> Errors:
    """The errors at one of the thresholds."""
    threshold = slice(place, place + 1)
    alarms = (
        None if errors.false_alarms is None else errors.false_alarms[threshold]
    )
    return dataclasses.replace(
        errors,
        missed=errors.missed[threshold],
        false_alarms=alarms,
        log_fpr=errors.log_fpr[threshold],
    )


def _credible_limit(
    errors: Errors, least_fnr: Callable[[Floats, float], Floats], alpha: float
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
        rejections = errors.unobserved - false_alarms
        log_fpr = np.log(
            scipy.special.betaincinv(
                false_alarms + 0.5, rejections + 0.5, _QUADRATURE
            )
        )

    def excess(level: float) -> float:
        fnr = np.clip(least_fnr(log_fpr, level), 0.0, 1.0)
        respected = scipy.special.betaincc(
            missed + 0.5, errors.observed - missed + 0.5, fnr
        )
        return float(np.mean(respected)) - alpha

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
        if high > _LARGEST_LEVEL:
            return np.inf
    root = float(scipy.optimize.brentq(excess, 0.0, high, xtol=_TOLERANCE))
    return max(0.0, root - _TOLERANCE)


_GDP = "Gaussian mechanism (GDP)"
_PRIOR = "Jeffreys prior on the error rates"

OTHER_BOUNDS = {
    "katz-log": Bound(
        katz_log,
        assumption="asymptotic: tens of true and false positives",
        valid=False,
    ),
    "bayesian": Bound(bayesian, assumption=_PRIOR, valid=False),
    "bayesian-gdp": Bound(
        bayesian_gdp, assumption=f"{_PRIOR}; {_GDP}", valid=False, gaussian=True
    ),
    "mean": Bound(
        mean,
        assumption="Gaussian scores with the null's variance",
        gaussian=True,
    ),
}
"""The bounds of this file by name."""

ALL_BOUNDS = {**BOUNDS, **OTHER_BOUNDS}
"""These and those of `fl_epe`."""


def any_lower_bound(
    scores: Scores, delta: float, *, confidence: float = 0.95, method: str
) -> float:
    """`fl_epe.auditing.bounds.lower_bound`, by any of `ALL_BOUNDS`; "katz-log" at δ = 0."""
    if method == "katz-log":
        delta = 0.0
    return lower_bound(
        scores, delta, confidence=confidence, method=ALL_BOUNDS[method]
    )
