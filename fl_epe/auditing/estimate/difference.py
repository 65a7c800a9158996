"""`EpsilonDifference`: whether two runs' ε differ by more than chance.

Coverage of its interval: simulations/studies/differences.py.

Examples:
    >>> first = EpsilonEstimate(5.0, 4.0, 6.0, 1e-5, 0.95, "displacement")
    >>> second = EpsilonEstimate(2.0, 2.0, 2.0, 1e-5, 0.95, "displacement")
    >>> difference = epsilon_difference(first, second)
    >>> difference.value, difference.low, difference.high, difference.larger_than_chance
    (3.0, 2.0, 4.0, True)
"""

import dataclasses
import math

from fl_epe.auditing.estimate.epsilon_estimate import EpsilonEstimate
from fl_epe.checks import raise_invalid


@dataclasses.dataclass(frozen=True)
class EpsilonDifference:
    """ε of one run minus ε of another, with a two-sided confidence interval.

    Attributes:
        value: the difference; NaN if both are infinite.
        low: lower end of the interval.
        high: upper end of the interval.
        confidence: coverage of the interval.
        independent: whether the interval assumes independent runs; otherwise it holds for any
            runs.
    """

    value: float
    low: float
    high: float
    confidence: float
    independent: bool

    @property
    def larger_than_chance(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def epsilon_difference(
    first: EpsilonEstimate, second: EpsilonEstimate, *, independent: bool = True
) -> EpsilonDifference:
    """ε of ``first`` minus ε of ``second``, with an interval that shows whether it is chance.

    For independent runs the squared distances from the estimates to the ends of their intervals
    are added (Zou and Donner 2008), which preserves the skewness of each. An interval that is cut
    off at 0, as no ε is smaller, counts as extending at least as far below the estimate as above.
    For runs that may depend on each other, the interval is from the least to the largest
    difference of values in the two intervals.

    Args:
        first: the estimate of one run.
        second: the estimate of another run, at the same δ and confidence.
        independent: whether the runs share no randomness: canaries, noise and participation have
            different seeds. Otherwise the confidence of the result is lower: 90% from two 95%
            intervals.

    Raises:
        ValueError: if the two estimates differ in δ or confidence.
    """
    for name in ("delta", "confidence"):
        expected = getattr(first, name)
        actual = getattr(second, name)
        if actual != expected:
            raise_invalid(
                f"second.{name}", actual, f"to be that of first, {expected}"
            )
    value = _difference(first.epsilon, second.epsilon, math.nan)
    ends = (first.low, first.high, second.low, second.high)
    is_finite = math.isfinite(value) and all(map(math.isfinite, ends))
    if independent and is_finite:
        low = value - math.hypot(
            _extent_below(first), second.high - second.epsilon
        )
        high = value + math.hypot(
            first.high - first.epsilon, _extent_below(second)
        )
    else:
        low = _difference(first.low, second.high, -math.inf)
        high = _difference(first.high, second.low, math.inf)
    confidence = first.confidence
    if not independent:
        confidence = 1 - 2 * (1 - confidence)
    return EpsilonDifference(value, low, high, confidence, independent)


def _extent_below(estimate: EpsilonEstimate) -> float:
    """The interval's extent below the estimate; at least that above if the interval ends at 0."""
    below = estimate.epsilon - estimate.low
    if estimate.low > 0:
        return below
    return max(below, estimate.high - estimate.epsilon)


def _difference(first: float, second: float, both_infinite: float) -> float:
    """``first - second``, or ``both_infinite`` if both are infinite."""
    if math.isinf(first) and math.isinf(second):
        return both_infinite
    return first - second
