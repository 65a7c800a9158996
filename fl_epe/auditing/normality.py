"""Are the scores Gaussian? Anderson–Darling test, as in appendix B of Andrew et al. (2024).

Examples:
    >>> anderson_darling(np.arange(20.0)).p_value > 0.05
    True
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fl_epe.auditing.scores import in_moderate_units


@dataclasses.dataclass(frozen=True)
class GaussianFit:
    """Anderson–Darling test of normality with fitted mean and variance.

    Attributes:
        statistic: A² without correction for the sample size, as in the paper.
        p_value: probability of a larger A² for Gaussian scores.
        count: number of scores.
    """

    statistic: float
    p_value: float
    count: int


def anderson_darling(scores: ArrayLike) -> GaussianFit:
    """Test that ``scores``, shape ``(k,)``, come from some Gaussian.

    The p-value is the approximation of D'Agostino and Stephens (1986), Table 4.9, for unknown
    mean and variance.

    Raises:
        ValueError: for fewer than eight scores, or scores that are all equal or not finite.
    """
    values = np.sort(np.asarray(scores, np.float64))
    count = len(values)
    if values.ndim != 1 or count < 8:
        raise ValueError(f"Expected scores.shape={values.shape} to be (k,) with k >= 8.")
    if not np.all(np.isfinite(values)):
        raise ValueError("Expected scores to be finite.")
    if values[0] == values[-1]:
        raise ValueError(f"Expected scores={values[0]} not to be all the same.")
    (values,) = in_moderate_units(values)
    standard = (values - values.mean()) / values.std(ddof=1)
    weights = 2 * np.arange(1, count + 1) - 1
    below, above = scipy.special.log_ndtr(standard), scipy.special.log_ndtr(-standard[::-1])
    statistic = float(-count - np.mean(weights * (below + above)))
    return GaussianFit(statistic, _p_value(statistic * (1 + 0.75 / count + 2.25 / count**2)), count)


def gaussian_by_group(scores: ArrayLike, groups: ArrayLike) -> dict[int, GaussianFit]:
    """`anderson_darling` of each group with at least eight scores that are not all equal.

    Scores of canaries with different participations are a mixture of Gaussians, which is no
    Gaussian, so that only those with equal participations are tested together.

    Args:
        scores: shape (k,).
        groups: the number of each score's group, shape (k,).
    """
    values, numbers = np.asarray(scores, np.float64), np.asarray(groups, np.int64)
    if values.shape != numbers.shape:
        raise ValueError(f"Expected groups.shape={numbers.shape} to be {values.shape}.")
    members = {int(number): values[numbers == number] for number in np.unique(numbers)}
    return {
        number: anderson_darling(group)
        for number, group in members.items()
        if len(group) >= 8 and np.ptp(group) > 0
    }


def combined_p_value(tests: Collection[GaussianFit]) -> float:
    """The least p-value times the number of tests (Bonferroni); 1 without a test."""
    return min([1.0, *(len(tests) * test.p_value for test in tests)])


def _p_value(a: float) -> float:
    if a >= 10:
        return 0.0
    if a >= 0.6:
        return math.exp(1.2937 - 5.709 * a + 0.0186 * a**2)
    if a >= 0.34:
        return math.exp(0.9177 - 4.279 * a - 1.38 * a**2)
    if a >= 0.2:
        return 1 - math.exp(-8.318 + 42.796 * a - 59.938 * a**2)
    return 1 - math.exp(-13.436 + 101.14 * a - 223.73 * a**2)
