"""Bounds from the error rates at a held-out threshold, or at the best of all thresholds.

If a threshold is chosen on the same scores that estimate its error rates, the estimated rates are
biased downwards. "clopper-pearson" and "gdp" choose the threshold on a tenth of the scores, and
estimate its error rates on the other scores. "simultaneous" uses limits that hold at all
thresholds together. "jeffreys", the paper's method, does not correct for the choice and is not
valid. Reasons, measurements and the derivation of the confidence band:
docs/notes/lower-bounds.md.

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

# The threshold is chosen for this δ, whatever δ is, so that no bound increases with δ.
_DELTA_FOR_CHOICE = 1e-3

# Candidate thresholds, in standard deviations around each mean.
_GRID = np.linspace(-5.0, 5.0, 201)

# Deviations of the number of errors from its mean, in standard deviations, and their Gaussian
# weights.
_DEVIATIONS = np.linspace(-2.4, 2.4, 7)
_DENSITIES = np.exp(-(_DEVIATIONS**2) / 2)
_DEVIATION_WEIGHTS = _DENSITIES / _DENSITIES.sum()

# If all scores of a group are equal, every threshold counts as this many standard deviations from
# their mean.
_FAR = 40.0

# The square of a fitted mean cosine is kept this far from 0 and 1, where its logarithms diverge.
_MARGIN = 1e-12

# The band's limits are computed at counts that grow by this factor from either end.
_NODE_RATIO = 1.1

# Absolute error of the logarithm of the band's local level.
_LOG_TOLERANCE = 1e-3

LimitsOfLevel = Callable[[Errors], Floats]
"""Lower limits of a privacy level (ε or μ), one for each threshold, from the errors there."""


def clopper_pearson(sample: Sample) -> float:
    """A bound on ε at δ by Clopper–Pearson limits of both rates at a held-out threshold."""
    choosing_limits = epsilon_limits(
        dataclasses.replace(sample, delta=_DELTA_FOR_CHOICE)
    )
    errors = held_out_errors(sample, choosing_limits)
    return float(epsilon_limits(sample)(errors)[0])


def gdp(sample: Sample) -> float:
    """ε at δ of the μ-GDP that both rates at a held-out threshold rule out (Nasr et al. 2023)."""
    limits = mu_limits(sample)
    errors = held_out_errors(sample, limits)
    return float(epsilon_of_shift(limits(errors)[0], sample.delta))


def jeffreys(sample: Sample) -> float:
    """A bound at the best threshold by limits of each rate at level α, which is not valid.

    It lacks a correction for the choice of the threshold. Source: ``ε_lo`` in Andrew et al. 2024,
    after Zanella-Béguelin et al. 2023.
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


def epsilon_limits(sample: Sample) -> LimitsOfLevel:
    """Limits of ε, by limits of both rates that hold together."""
    return _joint_limits(
        sample, functools.partial(epsilon_from_rates, delta=sample.delta)
    )


def mu_limits(sample: Sample) -> LimitsOfLevel:
    """Limits of μ, by limits of both rates that hold together."""
    return _joint_limits(sample, mu_from_rates)


def _joint_limits(
    sample: Sample, level_of_rates: Callable[[Floats, Floats], Floats]
) -> LimitsOfLevel:
    """Limits of a level that is a function of log FPR and FNR."""
    alpha = joint_alpha(sample)

    def limits(errors: Errors) -> Floats:
        log_fpr, fnr = upper_rates(errors, clopper_pearson_upper, alpha)
        return level_of_rates(log_fpr, fnr)

    return limits


def held_out_errors(sample: Sample, limits: LimitsOfLevel) -> Errors:
    """Errors at one threshold, counted on other scores than those that choose the threshold.

    Args:
        sample: all scores.
        limits: the limits by which the threshold is chosen. The chosen threshold has the largest
            limit, averaged over the numbers of errors that a Gaussian fit predicts.
    """
    selection, evaluation = sample.split(_SHARE_FOR_CHOICE)
    # Infinite scores have no mean. Only those of the selection count here, as the choice must not
    # depend on the evaluation.
    if any_infinite(selection.observed, selection.unobserved):
        selection = selection.with_finite_scores()
        evaluation = evaluation.with_finite_scores()
    fit = _fit(selection, evaluation)
    middle = (fit.null_mean + fit.mean) / 2
    thresholds = np.concatenate(
        [[middle], fit.null_mean + fit.std * _GRID, fit.mean + fit.std * _GRID]
    )
    errors = fit.errors_at(thresholds)
    missed = _predicted_errors(thresholds - fit.mean, fit.std, errors.observed)
    false_alarms = None
    if errors.false_alarms is not None:
        false_alarms = _predicted_errors(
            fit.null_mean - thresholds, fit.std, errors.unobserved
        )
    predicted = dataclasses.replace(
        errors, missed=missed, false_alarms=false_alarms
    )
    best = int(np.argmax(_DEVIATION_WEIGHTS @ limits(predicted)))
    return fit.errors_at(thresholds[best : best + 1])


def _predicted_errors(distance: Floats, std: float, total: int) -> Floats:
    """Numbers of errors among ``total`` Gaussian scores, shape (deviations, j).

    There is one number for each of `_DEVIATIONS` from the expected number. The deviation comes
    from the scores that are counted, and from the error of the fitted mean.

    Args:
        distance: distance of each threshold beyond the fitted mean, shape (j,).
        std: fitted standard deviation of the scores.
        total: number of scores.
    """
    z = np.copysign(_FAR, distance) if std == 0 else distance / std
    rate = scipy.special.ndtr(z)
    variance_of_count = total * rate * (1 - rate)
    variance_of_mean = total * np.exp(-(z**2)) / (2 * np.pi * _SHARE_FOR_CHOICE)
    std_of_errors = np.sqrt(variance_of_count + variance_of_mean)
    errors = total * rate + _DEVIATIONS[:, np.newaxis] * std_of_errors
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
    """Fit two Gaussians to the scores that choose the threshold.

    With the exact null, cosines are replaced by their `normal_scores`, whose null is N(0, 1).
    Cosines with mean m have the standard deviation (1 − m²)^1.5 / √d. Their normal scores are about
    √(−d·ln(1 − c²)), and have that deviation times the slope of this function at m.
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
    square = min(max(square, _MARGIN), 1 - _MARGIN)
    scores = normal_scores(evaluation.observed, evaluation.dim)
    return _Fit(
        null_mean=0.0,
        mean=float(normal_scores(selection.observed, selection.dim).mean()),
        std=math.sqrt(square * (1 - square) / -math.log1p(-square)),
        errors_at=functools.partial(count_normal_errors, scores),
    )


def band_upper(num_errors: Floats, total: int, alpha: float) -> Floats:
    """Upper limits of a rate that hold at all thresholds simultaneously.

    They are Clopper–Pearson limits at one corrected level η (an "equal local levels" band,
    Aldor-Noiman et al. 2013).

    Args:
        num_errors: number of errors at each threshold, any shape, integers in [0, total].
        total: number of scores.
        alpha: probability that at least one limit is below its true rate.
    """
    nodes = _nodes(total)
    limits = np.append(
        clopper_pearson_upper(nodes, total, local_level(total, alpha)), 1.0
    )
    return limits[np.searchsorted(nodes, num_errors)]


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

    The uniforms are the points of a Poisson process with the rate ``total``, given that there are
    ``total`` points. Up to each limit there must be at least j + 1 points; ``surplus_law`` has
    the probability of each number of points beyond that. Ranges of numbers are cut where the
    probability is negligible, so the result is slightly less.
    """
    rates = total * np.diff(limits, prepend=0.0)
    required = np.diff(nodes + 1, prepend=0.0).astype(int)
    max_surplus = int(7 * np.sqrt(total)) + 40
    surplus_law = np.ones(1)
    for rate, num_required in zip(rates, required, strict=True):
        max_deviation = 10 * np.sqrt(rate) + 25
        first = min(max(int(rate - max_deviation), 0), num_required)
        last = np.ceil(rate + max_deviation)
        arrivals_law = _poisson(np.arange(first, last), rate)
        surplus_law = np.convolve(surplus_law, arrivals_law)
        surplus_law = surplus_law[num_required - first :][:max_surplus]
    num_after = total - (nodes[-1] + 1) - np.arange(float(surplus_law.size))
    is_possible = num_after >= 0
    after_law = _poisson(num_after[is_possible], total * (1 - limits[-1]))
    condition_chance = _poisson(np.array([float(total)]), total)[0]
    return float(surplus_law[is_possible] @ after_law / condition_chance)


def _poisson(counts: Floats, rate: float) -> Floats:
    """The Poisson probabilities of counts."""
    log = (
        scipy.special.xlogy(counts, rate)
        - rate
        - scipy.special.gammaln(counts + 1)
    )
    return np.asarray(np.exp(log))


def _nodes(total: int) -> Floats:
    """The error counts at which limits are computed.

    A count between two of them has the limit of the larger one, and ``total`` has the limit 1.
    """
    steps = int(np.log(total / 2 + 1) / np.log(_NODE_RATIO)) + 1
    counts = np.round(_NODE_RATIO ** np.arange(steps))
    counts = counts[counts <= total / 2]
    return np.unique(np.concatenate([[0.0], counts, total - counts]))
