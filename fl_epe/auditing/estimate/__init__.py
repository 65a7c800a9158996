"""`Adversary`, what an attacker sees and knows, and `EpsilonEstimate`, an ε with its interval.

Every estimate of `fl_epe.auditing` from a record is an `EpsilonEstimate` for an `Adversary`.
"""

from fl_epe.auditing.estimate.adversary import (
    EVERY_ROUND,
    FINAL_MODEL,
    Adversary,
    Sees,
)
from fl_epe.auditing.estimate.confidence_sequence import (
    PLAN_MARGIN,
    boundary,
    widening,
)
from fl_epe.auditing.estimate.difference import (
    EpsilonDifference,
    epsilon_difference,
)
from fl_epe.auditing.estimate.epsilon_estimate import (
    EpsilonEstimate,
    FittedGaussian,
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
