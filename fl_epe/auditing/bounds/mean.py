"""ε of the lower confidence limit of the shift between two Gaussians of equal variance."""

from __future__ import annotations

import numpy as np
import scipy

from fl_epe.auditing.bounds.error_rates import FloatArray, Sample
from fl_epe.auditing.bounds.gdp import gdp_epsilon
from fl_epe.auditing.shifted_cosines import fitted_shift

_LARGEST_T = 1e3  # above, SciPy's inverse of the noncentral t is inexact or does not return


def mean(sample: Sample) -> float:
    """ε of the lower confidence limit of the shift between two Gaussians of equal variance.

    With the exact null the mean of `normal_deviates` is N(0, 1/k) at the true μ. With two groups of
    scores the t statistic of their means has a noncentral t distribution, which is solved for its
    noncentrality.
    """
    shift = _known_shift(sample) if sample.unobserved is None else _pooled_shift(sample)
    return gdp_epsilon(max(shift, 0.0), sample.delta)


def _known_shift(sample: Sample) -> float:
    deviation = sample.spread / np.sqrt(sample.observed.size)
    mean = -float(scipy.special.ndtri(sample.alpha)) * deviation
    return fitted_shift(sample.observed, sample.known_dim(), mean)


def _pooled_shift(sample: Sample) -> float:
    observed, unobserved = sample.both()
    freedom = observed.size + unobserved.size - 2
    error = np.sqrt(1 / observed.size + 1 / unobserved.size)
    difference = observed.mean() - unobserved.mean()
    squares = _squares(observed) + _squares(unobserved)
    if difference <= 0 or squares == 0:
        return np.inf if difference > 0 else 0.0  # without any noise
    t = difference / (np.sqrt(squares / freedom) * error)
    # For large t noncentrality / t rises with t, so the ratio at the cap is a lower bound.
    capped = min(t, _LARGEST_T)
    noncentrality = scipy.special.nctdtrinc(freedom, 1 - sample.alpha, capped)
    shift = float(noncentrality * (t / capped) * error)
    wider = np.sqrt(sample.spread**2 / observed.size + 1 / unobserved.size) / error
    return float(t * error - wider * (t * error - shift)) if wider > 1 else shift


def _squares(scores: FloatArray) -> float:
    """Sum of squared deviations from the mean; exactly 0 for tied scores."""
    shifted = scores - scores[0]
    return float(np.sum((shifted - shifted.mean()) ** 2))
