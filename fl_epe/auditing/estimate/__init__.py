"""An ε against an adversary: what the adversary sees and knows, and the interval of the estimate.

Everything else in `fl_epe.auditing` speaks of an `Adversary` and returns an `EpsilonEstimate`.
"""

from fl_epe.auditing.estimate.confidence_sequence import PLAN_MARGIN, boundary, widening
from fl_epe.auditing.estimate.epsilon_estimate import (
    EVERY_ROUND,
    FINAL_MODEL,
    Adversary,
    EpsilonDifference,
    EpsilonEstimate,
    FittedGaussian,
    Sees,
    epsilon_difference,
    epsilon_metrics,
    estimate_between,
    fit_gaussian,
    half_width,
)

__all__ = [
    "EVERY_ROUND",
    "FINAL_MODEL",
    "PLAN_MARGIN",
    "Adversary",
    "EpsilonDifference",
    "EpsilonEstimate",
    "FittedGaussian",
    "Sees",
    "boundary",
    "epsilon_difference",
    "epsilon_metrics",
    "estimate_between",
    "fit_gaussian",
    "half_width",
    "widening",
]
