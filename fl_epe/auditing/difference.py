"""The difference of the ε of two runs, with an interval: is it larger than chance?

Each run has an estimate with an interval. If the runs are independent, as two runs with seeds of
their own, the distances from the estimates to the ends of their intervals are added as squares
(Zou and Donner 2008), which keeps the skewness of each; where an interval ends at 0 because no ε is
smaller, it counts as reaching as far below as above. If they may depend on each other, as two
runs from one seed, the interval reaches from one run's lower end to the other's upper end, and
holds whatever the dependence is, at a lower confidence. How often the intervals hold:
simulations/studies/differences.py.

Examples:
    >>> first = EpsilonEstimate(5.0, 4.0, 6.0, 1e-5, 0.95, "displacement")
    >>> second = EpsilonEstimate(2.0, 2.0, 2.0, 1e-5, 0.95, "displacement")
    >>> found = epsilon_difference(first, second)
    >>> found.value, found.low, found.high, found.larger_than_chance
    (3.0, 2.0, 4.0, True)
"""

from __future__ import annotations

import dataclasses
import math

from fl_epe.auditing.epsilon_estimate import EpsilonEstimate
from fl_epe.checks import raise_invalid


@dataclasses.dataclass(frozen=True)
class EpsilonDifference:
    """ε of one run less that of another, with a two-sided confidence interval.

    Attributes:
        value: the difference; NaN if both are infinite.
        low: lower end of the interval.
        high: upper end of the interval.
        confidence: coverage of the interval.
        independent: whether the interval is for independent runs; else it holds for any.
    """

    value: float
    low: float
    high: float
    confidence: float
    independent: bool

    @property
    def larger_than_chance(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def epsilon_difference(
    first: EpsilonEstimate, second: EpsilonEstimate, *, independent: bool = True
) -> EpsilonDifference:
    """ε of ``first`` less ε of ``second``.

    Args:
        first: of one run.
        second: of another, at the same δ and confidence.
        independent: whether no chance is shared: canaries, noise and participation have seeds of
            their own. If not, the confidence of the result is lower: 90% from two 95% intervals.

    Raises:
        ValueError: if δ or the confidence of the two differ.
    """
    for name in ("delta", "confidence"):
        ours, theirs = getattr(first, name), getattr(second, name)
        if ours != theirs:
            raise_invalid(f"second.{name}", theirs, f"to be that of first, {ours}")
    ends = (first.epsilon, first.low, first.high, second.epsilon, second.low, second.high)
    value = _less(first.epsilon, second.epsilon, math.nan)
    if independent and all(map(math.isfinite, ends)):
        below = math.hypot(_below(first), second.high - second.epsilon)
        above = math.hypot(first.high - first.epsilon, _below(second))
        low, high = value - below, value + above
    else:
        low = _less(first.low, second.high, -math.inf)
        high = _less(first.high, second.low, math.inf)
    confidence = first.confidence if independent else 1 - 2 * (1 - first.confidence)
    return EpsilonDifference(value, low, high, confidence, independent)


def _below(found: EpsilonEstimate) -> float:
    """How far the interval reaches below the estimate; at least as far as above where 0 ends it."""
    below = found.epsilon - found.low
    return below if found.low > 0 else max(below, found.high - found.epsilon)


def _less(one: float, other: float, both_infinite: float) -> float:
    return both_infinite if math.isinf(one) and math.isinf(other) else one - other
