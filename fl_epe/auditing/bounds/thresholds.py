"""Lower bounds on ε from the error rates at one threshold.

``jeffreys``, the paper's method, chooses the threshold on the scores by which it is judged, and is
not valid. ``simultaneous`` corrects for all thresholds. The others choose a threshold on a tenth of
the scores and judge it by the rest. Reasons and measurements: docs/notes/lower-bounds.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import scipy

from fl_epe.accounting import epsilon_two_gaussians
from fl_epe.auditing.bounds.confidence_band import band_upper
from fl_epe.auditing.bounds.error_rates import (
    Errors,
    FloatArray,
    Sample,
    UpperLimit,
    clopper_pearson_upper,
    count_errors,
    count_normal_errors,
    epsilon_from_rates,
    jeffreys_upper,
    mu_from_rates,
    normal_scores,
    upper_rates,
)

_SHARE_FOR_CHOICE = 0.1
_GRID = np.linspace(-5.0, 5.0, 201)  # standard deviations around each mean, to choose among
_LUCK = np.linspace(-2.4, 2.4, 7)  # standard deviations around the expected number of errors
_LUCK_WEIGHTS = np.exp(-(_LUCK**2) / 2) / np.exp(-(_LUCK**2) / 2).sum()
_QUADRATURE = (np.arange(400) + 0.5) / 400
_LARGEST = 1e12  # larger privacy levels count as infinite
_TOLERANCE = 1e-6
_TINY = 1e-9
_DELTA_FOR_CHOICE = 1e-3  # whatever δ is, so that no bound grows with δ

AtThresholds = Callable[[Errors], FloatArray]


def jeffreys(sample: Sample) -> float:
    """The best of all thresholds with each rate at level α and no correction; not valid.

    Source: ``ε_lo`` in Andrew et al. 2024, after Zanella-Béguelin et al. 2023.
    """
    errors = _all_thresholds(sample)
    return float(np.max(_epsilon(sample, jeffreys_upper, sample.alpha)(errors)))


def simultaneous(sample: Sample) -> float:
    """(ε, δ) from the best of all thresholds, with limits that hold at all of them together."""
    errors = _all_thresholds(sample)
    return float(np.max(_epsilon(sample, band_upper, joint_alpha(sample))(errors)))


def clopper_pearson(sample: Sample) -> float:
    """(ε, δ) from Clopper–Pearson limits of both rates at a held-out threshold."""
    return float(_exact_epsilon(sample)(_held_out_for_epsilon(sample))[0])


def gdp(sample: Sample) -> float:
    """ε of the μ-GDP that both rates rule out at a held-out threshold (Nasr et al. 2023)."""
    return gdp_epsilon(gdp_mu(sample), sample.delta)


def gdp_mu(sample: Sample) -> float:
    """The μ below which both rates rule out μ-GDP at a held-out threshold."""
    mu = _exact_mu(sample)
    return float(mu(held_out(sample, mu))[0])


def gdp_rates(sample: Sample) -> tuple[float, float]:
    """Clopper–Pearson limits of log FPR and of FNR at the held-out threshold of `gdp`."""
    errors = held_out(sample, _exact_mu(sample))
    limits = upper_rates(errors, clopper_pearson_upper, joint_alpha(sample))
    log_fpr, fnr = (float(limit[0]) for limit in limits)
    return log_fpr, fnr


def katz_log(sample: Sample) -> float:
    """ε at δ = 0 from Katz's interval of the log of TPR/FPR, at a held-out threshold.

    It holds only asymptotically, with tens of true and of false positives; without any it is 0.
    """
    epsilon = _katz_epsilon(sample)
    return float(epsilon(held_out(sample, epsilon))[0])


def bayesian(sample: Sample) -> float:
    """(ε, δ) credible limit at a held-out threshold (Zanella-Béguelin et al. 2023).

    Only small error rates count against privacy. If large ones did too, the limit would be positive
    at ε = 0.
    """
    return float(_credible_epsilon(sample)(_held_out_for_epsilon(sample))[0])


def bayesian_gdp(sample: Sample) -> float:
    """ε of the credible limit of μ-GDP at a held-out threshold."""
    return float(_credible_gdp_epsilon(sample)(held_out(sample, _exact_mu(sample)))[0])


def at_each_threshold(sample: Sample, thresholds: FloatArray, method: str) -> FloatArray:
    """The bound of ``method`` at each of ``thresholds``, shape (j,), from all scores.

    Raises:
        ValueError: if ``method`` is not of one threshold.
    """
    if method not in _OF_ONE_THRESHOLD:
        known = ", ".join(_OF_ONE_THRESHOLD)
        raise ValueError(f"Expected method={method!r} to be one of {known}.")
    return _OF_ONE_THRESHOLD[method](sample)(count_errors(sample, thresholds))


def _katz_epsilon(sample: Sample) -> AtThresholds:
    def epsilon(errors: Errors) -> FloatArray:
        hits = errors.observed - errors.missed
        log_fpr, variance = errors.log_fpr, 1 / np.maximum(hits, _TINY) - 1 / errors.observed
        if errors.false_alarms is not None:
            false_alarms = np.maximum(errors.false_alarms, _TINY)
            log_fpr = np.log(false_alarms / errors.unobserved)
            variance = variance + 1 / false_alarms - 1 / errors.unobserved
        log_tpr = np.log(np.maximum(hits, _TINY) / errors.observed)
        limit = log_tpr - log_fpr + scipy.special.ndtri(sample.alpha) * np.sqrt(variance)
        return np.asarray(np.maximum(limit, 0.0))

    return epsilon


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


def gdp_epsilon(mu: float, delta: float) -> float:
    """ε at ``delta`` of μ-GDP: of N(0, 1) against N(μ, 1)."""
    if mu == np.inf:
        return np.inf
    return float(epsilon_two_gaussians(0.0, 1.0, mu, 1.0, delta))


def _all_thresholds(sample: Sample) -> Errors:
    groups = [sample.observed] if sample.unobserved is None else [*sample.both()]
    return count_errors(sample, np.unique(np.concatenate(groups)))


def _epsilon(sample: Sample, upper: UpperLimit, alpha: float) -> AtThresholds:
    return lambda errors: epsilon_from_rates(*upper_rates(errors, upper, alpha), sample.delta)


def _exact_epsilon(sample: Sample) -> AtThresholds:
    return _epsilon(sample, clopper_pearson_upper, joint_alpha(sample))


def _exact_mu(sample: Sample) -> AtThresholds:
    level = joint_alpha(sample)
    return lambda errors: mu_from_rates(*upper_rates(errors, clopper_pearson_upper, level))


def _gdp_epsilons(sample: Sample) -> AtThresholds:
    mu = _exact_mu(sample)
    return lambda errors: np.array([gdp_epsilon(float(m), sample.delta) for m in mu(errors)])


def joint_alpha(sample: Sample) -> float:
    """The level of each estimated rate at which all limits hold together with 1 − α.

    The two groups are independent, so each may fail with probability 1 − √(1 − α).
    """
    return sample.alpha if sample.unobserved is None else -np.expm1(np.log1p(-sample.alpha) / 2)


def _held_out_for_epsilon(sample: Sample) -> Errors:
    """Errors at the threshold for `_exact_epsilon` at a δ that is the same for every sample."""
    return held_out(sample, _exact_epsilon(dataclasses.replace(sample, delta=_DELTA_FOR_CHOICE)))


def held_out(sample: Sample, bound: AtThresholds) -> Errors:
    """Errors at one threshold, counted on other scores than those that chose it.

    Args:
        sample: all scores; ``sample.seed`` decides which of them choose.
        bound: the bound for given errors, element by element. The threshold is chosen where its
            mean is largest over the errors that a Gaussian fit predicts.
    """
    choosing, judging = sample.split(_SHARE_FOR_CHOICE)
    null_mean, mean, std, errors_at = _fit(choosing, judging)
    thresholds = np.concatenate(
        [[(null_mean + mean) / 2], null_mean + std * _GRID, mean + std * _GRID]
    )
    foreseen = errors_at(thresholds)
    missed = _foresee(thresholds - mean, std, foreseen.observed)
    foreseen = dataclasses.replace(foreseen, missed=missed)
    if foreseen.false_alarms is not None:
        false_alarms = _foresee(null_mean - thresholds, std, foreseen.unobserved)
        foreseen = dataclasses.replace(foreseen, false_alarms=false_alarms)
    best = int(np.argmax(_LUCK_WEIGHTS @ bound(foreseen)))
    return errors_at(thresholds[best : best + 1])


def _foresee(distance: FloatArray, std: float, total: int) -> FloatArray:
    """Errors among ``total`` Gaussian scores, from lucky to unlucky, shape (levels, j).

    Args:
        distance: how far the threshold lies beyond the fitted mean, shape (j,).
        std: fitted standard deviation of the scores.
        total: number of scores.
    """
    z = np.copysign(40.0, distance) if std == 0 else distance / std
    rate = scipy.special.ndtr(z)
    from_count = total * rate * (1 - rate)
    from_mean = total * np.exp(-(z**2)) / (2 * np.pi * _SHARE_FOR_CHOICE)
    spread = np.sqrt(from_count + from_mean)
    errors = total * rate + _LUCK[:, np.newaxis] * spread
    return np.asarray(np.clip(errors, 0.0, float(total)))


def _fit(
    choosing: Sample, judging: Sample
) -> tuple[float, float, float, Callable[[FloatArray], Errors]]:
    """Means of unobserved and observed scores, a standard deviation for both, and the errors.

    With the exact null, scores are those of `normal_scores`. Cosines with mean m have the standard
    deviation (1 − m²)^1.5 / √d, so their normal scores, about √(−d·ln(1 − m²)), that times the
    slope there.
    """
    if choosing.unobserved is None or judging.unobserved is None:
        dim = choosing.known_dim()
        square = float(np.clip(choosing.observed.mean(), -1, 1)) ** 2
        square = min(max(square, 1e-12), 1 - 1e-12)
        std = math.sqrt(square * (1 - square) / -math.log1p(-square))
        scores = normal_scores(judging.observed, dim)
        mean = float(normal_scores(choosing.observed, dim).mean())
        return 0.0, mean, std, lambda thresholds: count_normal_errors(scores, thresholds)
    spread = (choosing.observed.var() + choosing.unobserved.var()) / 2
    return (
        float(choosing.unobserved.mean()),
        float(choosing.observed.mean()),
        math.sqrt(spread),
        lambda thresholds: count_errors(judging, thresholds),
    )


_OF_ONE_THRESHOLD: dict[str, Callable[[Sample], AtThresholds]] = {
    "clopper-pearson": _exact_epsilon,
    "bayesian": _credible_epsilon,
    "katz-log": _katz_epsilon,
    "gdp": _gdp_epsilons,
    "bayesian-gdp": _credible_gdp_epsilon,
}
