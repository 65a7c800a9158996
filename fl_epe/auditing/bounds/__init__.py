"""Lower bounds on ε that hold at a stated confidence: by name in `BOUNDS`, one file an idea.

A new bound is a function of a `Sample` in a file here, and one entry in ``by_name.BOUNDS``.
"""

from fl_epe.auditing.bounds.by_name import BOUNDS, Bound, epsilon_lower_bound
from fl_epe.auditing.bounds.error_rates import FloatArray, Sample

__all__ = ["BOUNDS", "Bound", "FloatArray", "Sample", "epsilon_lower_bound"]
