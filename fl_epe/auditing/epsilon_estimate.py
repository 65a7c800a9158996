"""`EpsilonEstimate`: an estimate of ε with its interval, as every estimator returns it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class EpsilonEstimate:
    """An estimate of ε at ``delta`` with a two-sided confidence interval.

    Attributes:
        epsilon: the point estimate, in nats.
        low: lower end of the interval.
        high: upper end of the interval.
        delta: the δ of that ε.
        confidence: coverage of the interval, such as 0.95.
        method: the statistic and the variance, in words.
    """

    epsilon: float
    low: float
    high: float
    delta: float
    confidence: float
    method: str
