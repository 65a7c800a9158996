"""Lower bounds on ε that hold at a stated confidence.

A new bound is a function of a ``Sample`` in a file here, and one entry in ``methods.BOUNDS``.
"""

from fl_epe.auditing.bounds.error_rates import (
    Sample,
    UpperLimit,
    count_errors,
    epsilon_from_rates,
    normal_scores,
    upper_rates,
)
from fl_epe.auditing.bounds.methods import (
    BOUNDS,
    all_bounds,
    ceiling,
    epsilon_lower_bound,
    lower_bound,
    method_by_design,
)
from fl_epe.auditing.bounds.thresholds import band_upper

__all__ = [
    "BOUNDS",
    "Sample",
    "UpperLimit",
    "all_bounds",
    "band_upper",
    "ceiling",
    "count_errors",
    "epsilon_from_rates",
    "epsilon_lower_bound",
    "lower_bound",
    "method_by_design",
    "normal_scores",
    "upper_rates",
]
