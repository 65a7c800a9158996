"""Tests of the assumptions of estimates and bounds: scores are Gaussian, and not too wide.

`check_known_variance` and `check_sign` raise for scores that no estimate fits. The
Anderson–Darling test is that of appendix B of Andrew et al. (2024).

Examples:
    >>> gaussian_test(np.arange(20.0)).p_value > 0.05
    True
"""

import dataclasses
import math

import numpy as np
import scipy

from fl_epe.auditing.record import NotMeasured
from fl_epe.auditing.scoring.scores import Scores, in_moderate_units
from fl_epe.checks import Floats, all_equal, any_infinite

LEAST_FOR_NULL = 20
"""The least number of unobserved canaries that show a null 1.5 times as wide as assumed."""

# Least number of scores for a test that they are Gaussian.
_MIN_FOR_TEST = 8

# In fewer dimensions `normal_deviates` are not accurate enough for an interval.
_MIN_DIM = 10

# Level of each test of an assumption: 0.001.
_LEVEL = 1 - 0.999

# Level of the test that observed scores are below unobserved ones.
_SIGN_LEVEL = 1e-6


@dataclasses.dataclass(frozen=True)
class GaussianFit:
    """Anderson–Darling test of normality with fitted mean and variance.

    Attributes:
        statistic: A² without correction for the sample size, as in the paper.
        p_value: probability of a larger A² for Gaussian scores.
    """

    statistic: float
    p_value: float


def gaussian_test(scores: Floats) -> GaussianFit | None:
    """Test whether ``scores``, shape ``(k,)``, are from a Gaussian.

    The p-value is the approximation of D'Agostino and Stephens (1986), Table 4.9, for unknown
    mean and variance.

    Returns:
        The result, or ``None`` for fewer than eight scores, infinite scores, or scores that are
        all equal.
    """
    count = len(scores)
    if count < _MIN_FOR_TEST or any_infinite(scores) or all_equal(scores):
        return None
    (moderate,) = in_moderate_units(scores)
    statistic = anderson_darling(moderate)
    corrected = statistic * (1 + 0.75 / count + 2.25 / count**2)
    return GaussianFit(statistic, _p_value(corrected))


def anderson_darling(scores: Floats) -> float:
    """The statistic A² of scores that are not all equal, with fitted mean and variance."""
    values = np.sort(scores)
    count = len(scores)
    standard = (values - values.mean()) / values.std(ddof=1)
    weights = 2 * np.arange(1, count + 1) - 1
    below = scipy.special.log_ndtr(standard)
    above = scipy.special.log_ndtr(-standard[::-1])
    return float(-count - np.mean(weights * (below + above)))


def _p_value(a: float) -> float:
    """The p-value of a corrected A²."""
    if a >= 10:
        return 0.0
    if a >= 0.6:
        return math.exp(1.2937 - 5.709 * a + 0.0186 * a**2)
    if a >= 0.34:
        return math.exp(0.9177 - 4.279 * a - 1.38 * a**2)
    if a >= 0.2:
        return 1 - math.exp(-8.318 + 42.796 * a - 59.938 * a**2)
    return 1 - math.exp(-13.436 + 101.14 * a - 223.73 * a**2)


def wider_than_known(scores: Scores) -> str | None:
    """A sentence about the width of scores, if they are significantly wider than N(μ, 1).

    Their mean then does not determine ε: the scores are a mixture of canaries with different
    expected scores, and the largest expected scores determine ε. If the expected scores are known
    up to a factor (`Scores.expected`), scores are too wide only if they are so about these and
    also about equal expected scores. The χ² test has the level 1 − 0.999. Its power:
    ``benchmarks/estimators.py --dims``.
    """
    hypotheses = [np.ones_like(scores.observed)]
    if scores.expected is not None and np.square(scores.expected).any():
        hypotheses.append(scores.expected)
    variances = []
    for expected in hypotheses:
        deviates = scores.deviates(scores.shift(0.0, expected) * expected)
        variances.append(float(np.var(deviates, ddof=1)))
    variance = min(variances)
    freedom = len(scores.observed) - 1
    p = scipy.stats.chi2.sf(variance * freedom, freedom)
    if p >= _LEVEL:
        return None
    return (
        f"observed {scores.statistic} are {np.sqrt(variance):.2f} times as wide as known variance "
        f"allows (χ² test, p = {p:.1g}), as if canaries took part unequally: ε of their mean is "
        "smaller than that of the worst case"
    )


def null_misfit(scores: Scores) -> str | None:
    """A sentence about unobserved scores that should be N(0, 1), if they are significantly not.

    A χ² test detects wider scores and a z test shifted ones, at the joint level 1 − 0.999.
    Narrower scores pass, as bounds hold for them.
    """
    if not scores.standard_null or scores.unobserved is None:
        return None
    null = scores.unobserved
    count = len(null)
    mean = float(null.mean())
    width = float(np.sqrt(np.mean(null**2)))
    p_wider = scipy.stats.chi2.sf(count * width**2, count)
    p_shifted = 2 * scipy.special.ndtr(-abs(mean) * np.sqrt(count))
    p = 2 * min(p_wider, p_shifted)  # Bonferroni's correction for two tests
    if p >= _LEVEL:
        return None
    return (
        f"{scores.statistic} of the {count} unobserved canaries have the mean {mean:.3f} and "
        f"spread {width:.3g}, where 0 and 1 are expected (p = {p:.1g})"
    )


def check_known_variance(scores: Scores) -> None:
    """Raise for scores that are `wider_than_known`, and for cosines in few dimensions.

    Raises:
        NotMeasured: with the reason.
    """
    if scores.dim is not None and scores.dim < _MIN_DIM:
        raise NotMeasured(
            f"the cosines are in {scores.dim} dimensions; an estimate needs at least {_MIN_DIM}"
        )
    reason = wider_than_known(scores)
    if reason is not None:
        raise NotMeasured(reason)


def not_gaussian(scores: Scores) -> str | None:
    """A sentence about scores that are significantly not Gaussian, else ``None``.

    Anderson–Darling tests of the observed scores, of the unobserved ones, and of both together,
    each standardized, have the joint level 1 − 0.999. Unobserved scores that are N(0, 1) by design
    are not tested, and neither are groups of fewer than eight scores. False alarms and power:
    ``simulations/studies/any_law.py``.
    """
    if scores.infinite:
        return "these scores are not Gaussian (some are infinite)"
    if scores.standard_null:
        tested: tuple[Floats, ...] = (scores.deviates(scores.shift()),)
    else:
        tested = scores.both()
    moderate = in_moderate_units(*tested)
    groups = [group for group in moderate if len(group) >= _MIN_FOR_TEST]
    if any(map(all_equal, groups)):
        return "these scores are not Gaussian (all of a side are equal)"
    standard = [(group - group.mean()) / group.std(ddof=1) for group in groups]
    if len(groups) > 1:
        standard.append(np.concatenate(standard))
    tests = [test for test in map(gaussian_test, standard) if test is not None]
    if all(test.p_value >= _LEVEL / len(tests) for test in tests):
        return None
    statistic = max(test.statistic for test in tests)
    return (
        f"these scores are not Gaussian (Anderson–Darling A² = {statistic:.3g})"
    )


def check_sign(scores: Scores) -> None:
    """Raise for observed scores that are far below unobserved ones (p < 10⁻⁶): ε would be 0.

    Raises:
        NotMeasured: with both medians.
    """
    if scores.standard_null:
        null_median = 0.0
        z = float(scores.deviates(0.0).mean()) * np.sqrt(len(scores.observed))
        p = scipy.special.ndtr(z / scores.spread)
    else:
        observed, unobserved = scores.both()
        null_median = float(np.median(unobserved))
        p = 1.0
        if not all_equal(np.concatenate([observed, unobserved])):
            test = scipy.stats.mannwhitneyu(
                observed, unobserved, alternative="less"
            )
            p = test.pvalue
    if p < _SIGN_LEVEL:
        raise NotMeasured(
            f"observed {scores.statistic} are far below unobserved ones (median "
            f"{np.median(scores.observed):.4g} against {null_median:.4g}), and larger scores must "
            "mean that a canary took part; negate them, or swap the two sides"
        )
