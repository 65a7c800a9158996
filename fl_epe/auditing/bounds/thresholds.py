"""Bounds from the error rates at a held-out threshold, or at the best of all thresholds.

If a threshold is chosen on the same scores that estimate its error rates, these are biased
downwards. "clopper-pearson" and "gdp" choose it on a tenth of the scores and estimate its error
rates on the rest, "simultaneous" has limits that hold at all thresholds together, and
"jeffreys", the paper's method, does not correct for the choice and is not valid. Reasons,
measurements and the derivation of the confidence band: docs/notes/lower-bounds.md.

Examples:
    >>> 1e-4 < local_level(total=1000, alpha=0.05) < 0.01
    True
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import scipy

from fl_epe.accounting import epsilon_of_shift
from fl_epe.auditing.bounds.error_rates import (
    Errors,
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
from fl_epe.checks import Floats, any_infinite

# Share of the scores on which a threshold is chosen.
_SHARE_FOR_CHOICE = 0.1

# The threshold is chosen for this δ, whatever δ is, so that no bound grows with δ.
_DELTA_FOR_CHOICE = 1e-3

# Candidate thresholds, in standard deviations around each mean.
_GRID = np.linspace(-5.0, 5.0, 201)

# Deviations of the number of errors, in standard deviations, and their Gaussian weights.
_LUCK = np.linspace(-2.4, 2.4, 7)
_LUCK_WEIGHTS = np.exp(-(_LUCK**2) / 2) / np.exp(-(_LUCK**2) / 2).sum()

# The band's limits are computed at counts that grow by this factor from either end.
_NODE_RATIO = 1.1

# Absolute error of the logarithm of the band's local level.
_LOG_TOLERANCE = 1e-3

AtThresholds = Callable[[Errors], Floats]
"""A privacy level at each threshold, from the errors there."""


def clopper_pearson(sample: Sample) -> float:
    """A bound on ε at δ by Clopper–Pearson limits of both rates at a held-out threshold."""
    choice = epsilon_limits(
        dataclasses.replace(sample, delta=_DELTA_FOR_CHOICE)
    )
    return float(epsilon_limits(sample)(held_out(sample, choice))[0])


def gdp(sample: Sample) -> float:
    """ε at δ of the μ-GDP that both rates at a held-out threshold rule out (Nasr et al. 2023)."""
    mu = mu_limits(sample)
    return float(epsilon_of_shift(mu(held_out(sample, mu))[0], sample.delta))


def jeffreys(sample: Sample) -> float:
    """The bound at the best threshold, each rate at level α without correction; it is not valid.

    Source: ``ε_lo`` in Andrew et al. 2024, after Zanella-Béguelin et al. 2023.
    """
    return _best_of_all(sample, jeffreys_upper, sample.alpha)


def simultaneous(sample: Sample) -> float:
    """A bound on ε at δ at the best threshold, by limits that hold at all thresholds together."""
    return _best_of_all(sample, band_upper, joint_alpha(sample))


def _best_of_all(sample: Sample, upper: UpperLimit, alpha: float) -> float:
    """The largest ε over all thresholds, by limits of both rates at level ``alpha``."""
    scores = sample.observed
    if sample.unobserved is not None:
        scores = np.concatenate([scores, sample.unobserved])
    errors = count_errors(sample, np.unique(scores))
    log_fpr, fnr = upper_rates(errors, upper, alpha)
    return float(np.max(epsilon_from_rates(log_fpr, fnr, sample.delta)))


def joint_alpha(sample: Sample) -> float:
    """The level of each estimated rate at which all limits hold together with 1 − α.

    The two groups are independent, so each may fail with probability 1 − √(1 − α).
    """
    if sample.unobserved is None:
        return sample.alpha
    return float(-np.expm1(np.log1p(-sample.alpha) / 2))


def epsilon_limits(sample: Sample) -> AtThresholds:
    """ε at each threshold, by limits of both rates that hold together."""
    return _joint_limits(
        sample, functools.partial(epsilon_from_rates, delta=sample.delta)
    )


def mu_limits(sample: Sample) -> AtThresholds:
    """μ at each threshold, by limits of both rates that hold together."""
    return _joint_limits(sample, mu_from_rates)


def _joint_limits(
    sample: Sample, level_of: Callable[[Floats, Floats], Floats]
) -> AtThresholds:
    """The privacy level that ``level_of`` gives to limits of log FPR and FNR that hold together."""
    alpha = joint_alpha(sample)

    def limits(errors: Errors) -> Floats:
        log_fpr, fnr = upper_rates(errors, clopper_pearson_upper, alpha)
        return level_of(log_fpr, fnr)

    return limits


def held_out(sample: Sample, bound: AtThresholds) -> Errors:
    """Errors at one threshold, counted on other scores than those that choose the threshold.

    Args:
        sample: all scores.
        bound: the function from errors to bounds, element by element. The chosen threshold has
            the largest mean bound over the errors that a Gaussian fit predicts.
    """
    selection, evaluation = sample.split(_SHARE_FOR_CHOICE)
    # Infinite scores have no mean. Whether the evaluation has any must not influence the choice.
    if any_infinite(selection.observed, selection.unobserved):
        selection = selection.in_finite_units()
        evaluation = evaluation.in_finite_units()
    fit = _fit(selection, evaluation)
    middle = (fit.null_mean + fit.mean) / 2
    thresholds = np.concatenate(
        [[middle], fit.null_mean + fit.std * _GRID, fit.mean + fit.std * _GRID]
    )
    errors = fit.errors_at(thresholds)
    missed = _predicted(thresholds - fit.mean, fit.std, errors.observed)
    false_alarms = None
    if errors.false_alarms is not None:
        distance = fit.null_mean - thresholds
        false_alarms = _predicted(distance, fit.std, errors.unobserved)
    expected = dataclasses.replace(
        errors, missed=missed, false_alarms=false_alarms
    )
    best = int(np.argmax(_LUCK_WEIGHTS @ bound(expected)))
    return fit.errors_at(thresholds[best : best + 1])


def _predicted(distance: Floats, std: float, total: int) -> Floats:
    """Numbers of errors among ``total`` Gaussian scores, few to many, shape (levels, j).

    Args:
        distance: distance of each threshold beyond the fitted mean, shape (j,).
        std: fitted standard deviation of the scores.
        total: number of scores.
    """
    z = np.copysign(40.0, distance) if std == 0 else distance / std
    rate = scipy.special.ndtr(z)
    from_count = total * rate * (1 - rate)
    from_mean = total * np.exp(-(z**2)) / (2 * np.pi * _SHARE_FOR_CHOICE)
    errors = total * rate + _LUCK[:, np.newaxis] * np.sqrt(
        from_count + from_mean
    )
    return np.asarray(np.clip(errors, 0.0, float(total)))


@dataclasses.dataclass(frozen=True)
class _Fit:
    """Two Gaussians with one standard deviation, fitted to the scores that choose the threshold.

    Attributes:
        null_mean: mean of the unobserved scores.
        mean: mean of the observed scores.
        std: standard deviation of both.
        errors_at: errors of the other scores, at thresholds in the unit of these means.
    """

    null_mean: float
    mean: float
    std: float
    errors_at: Callable[[Floats], Errors]


def _fit(selection: Sample, evaluation: Sample) -> _Fit:
    """Two Gaussians that are fitted to the scores that choose the threshold.

    With the exact null, scores are those of `normal_scores`. Cosines with mean m have the standard
    deviation (1 − m²)^1.5 / √d. Their normal scores are about √(−d·ln(1 − m²)), and have that
    deviation times the slope there.
    """
    if selection.unobserved is not None:
        return _Fit(
            null_mean=float(selection.unobserved.mean()),
            mean=float(selection.observed.mean()),
            std=math.sqrt(
                (selection.observed.var() + selection.unobserved.var()) / 2
            ),
            errors_at=functools.partial(count_errors, evaluation),
        )
    square = float(np.clip(selection.observed.mean(), -1, 1)) ** 2
    square = min(max(square, 1e-12), 1 - 1e-12)
    scores = normal_scores(evaluation.observed, evaluation.dim)
    return _Fit(
        null_mean=0.0,
        mean=float(normal_scores(selection.observed, selection.dim).mean()),
        std=math.sqrt(square * (1 - square) / -math.log1p(-square)),
        errors_at=functools.partial(count_normal_errors, scores),
    )


def band_upper(errors: Floats, total: int, alpha: float) -> Floats:
    """Upper limits of a rate at any number of thresholds, which hold simultaneously.

    They are Clopper–Pearson limits at one corrected level η (an "equal local levels" band,
    Aldor-Noiman et al. 2013).

    Args:
        errors: number of scores beyond each threshold, any shape, integers in [0, total].
        total: number of scores.
        alpha: probability that at least one limit is below its true rate.
    """
    nodes = _nodes(total)
    limits = np.append(
        clopper_pearson_upper(nodes, total, local_level(total, alpha)), 1.0
    )
    return limits[np.searchsorted(nodes, errors)]


@functools.lru_cache
def local_level(total: int, alpha: float) -> float:
    """The level η of each limit at which the band of ``total`` scores has level ``alpha``."""
    nodes = _nodes(total)

    def excess(log_level: float) -> float:
        limits = clopper_pearson_upper(nodes, total, float(np.exp(log_level)))
        return _probability_below(nodes, limits, total) - (1 - alpha)

    bonferroni = np.log(alpha / nodes.size)
    if excess(bonferroni) <= 0 or nodes.size == 1:
        return float(np.exp(bonferroni))
    root = scipy.optimize.brentq(
        excess, bonferroni, np.log(alpha), xtol=_LOG_TOLERANCE
    )
    return float(np.exp(root - _LOG_TOLERANCE))


def _probability_below(nodes: Floats, limits: Floats, total: int) -> float:
    """P[U₍ⱼ₊₁₎ ≤ limitⱼ for every node j] for ordered uniforms, or slightly less.

    ``ahead`` holds the probability of each surplus of points over j + 1.
    """
    rates = total * np.diff(limits, prepend=0.0)
    required = np.diff(nodes + 1, prepend=0.0).astype(int)
    longest = int(7 * np.sqrt(total)) + 40
    ahead = np.ones(1)
    for rate, needed in zip(rates, required, strict=True):
        reach = 10 * np.sqrt(rate) + 25
        first = min(max(int(rate - reach), 0), needed)
        arrivals = _poisson(np.arange(first, np.ceil(rate + reach)), rate)
        surplus = np.convolve(ahead, arrivals)[needed - first :]
        ahead = surplus[:longest]
    missing = total - (nodes[-1] + 1) - np.arange(float(ahead.size))
    possible = missing >= 0
    last = _poisson(missing[possible], total * (1 - limits[-1]))
    return float(
        ahead[possible] @ last / _poisson(np.array([float(total)]), total)[0]
    )


def _poisson(counts: Floats, rate: float) -> Floats:
    """The Poisson probabilities of counts."""
    log = (
        scipy.special.xlogy(counts, rate)
        - rate
        - scipy.special.gammaln(counts + 1)
    )
    return np.asarray(np.exp(log))


def _nodes(total: int) -> Floats:
    """The error counts at which limits are computed; other counts use the next larger one."""
    steps = int(np.log(total / 2 + 1) / np.log(_NODE_RATIO)) + 1
    counts = np.round(_NODE_RATIO ** np.arange(steps))
    counts = counts[counts <= total / 2]
    return np.unique(np.concatenate([[0.0], counts, total - counts]))
