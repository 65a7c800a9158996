"""Bounds at thresholds that one names, for pictures of how much the threshold matters.

At a threshold that was chosen without the scores, each bound keeps its confidence (if its method
does, see `BOUNDS`). The largest over many thresholds is not a bound, although papers report it.

Examples:
    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> scores = Scores(rng.normal(2, 1, 1000), rng.normal(0, 1, 1000))
    >>> found = lower_bounds_at(scores, [0.0, 1.0, 2.0], 1e-5, method="gdp")
    >>> bool((found > 5).all())
    True
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.auditing.bounds.error_rates import FloatArray, Sample
from fl_epe.auditing.bounds.thresholds import at_each_threshold
from fl_epe.auditing.scores import Scores
from fl_epe.checks import check_probability


def lower_bounds_at(
    scores: Scores,
    thresholds: ArrayLike,
    delta: float,
    *,
    confidence: float = 0.95,
    method: str = "clopper-pearson",
) -> FloatArray:
    """The lower bound on ε at each threshold on the score, chosen without looking at the scores.

    Args:
        scores: of two groups.
        thresholds: shape (j,), in the unit of the scores; "took part" is a score at or above.
        delta: target δ in (0, 1); "katz-log" is for δ = 0 whatever is given.
        confidence: one-sided, of each threshold's bound on its own.
        method: "clopper-pearson", "bayesian", "katz-log", "gdp" or "bayesian-gdp".

    Returns:
        In nats, shape (j,).

    Raises:
        ValueError: if an argument is out of range, or there are no unobserved scores.
    """
    check_probability("delta", delta)
    check_probability("confidence", confidence)
    places = np.atleast_1d(np.asarray(thresholds, np.float64))
    if places.ndim != 1 or np.any(np.isnan(places)):
        raise ValueError(f"Expected thresholds.shape={places.shape} to be (j,), without NaN.")
    sample = Sample(*scores.both(), None, delta, 1 - confidence, 0)
    return at_each_threshold(sample, places, method)
