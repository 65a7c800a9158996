"""Lower bounds on ε that hold at a stated confidence.

A new bound is a function of a ``Sample`` in a file here, and one entry in ``methods.BOUNDS``.
"""

from fl_epe.auditing.bounds.methods import (
    BOUNDS,
    all_bounds,
    ceiling,
    epsilon_lower_bound,
    lower_bound,
    method_by_design,
)

__all__ = [
    "BOUNDS",
    "all_bounds",
    "ceiling",
    "epsilon_lower_bound",
    "lower_bound",
    "method_by_design",
]
