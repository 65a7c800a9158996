"""ε at δ = 0 from Katz's interval of the log of TPR/FPR; valid only asymptotically."""

from __future__ import annotations

import numpy as np
import scipy

from fl_epe.auditing.bounds.error_rates import Errors, FloatArray, Sample
from fl_epe.auditing.bounds.held_out import AtThresholds, held_out

_TINY = 1e-9


def katz_log(sample: Sample) -> float:
    """ε at δ = 0 from Katz's interval of the log of TPR/FPR, at a held-out threshold.

    It holds only asymptotically, with tens of true and of false positives; without any it is 0.
    """
    epsilon = _katz_epsilon(sample)
    return float(epsilon(held_out(sample, epsilon))[0])


def _katz_epsilon(sample: Sample) -> AtThresholds:
    def epsilon(errors: Errors) -> FloatArray:
        hits = errors.observed - errors.missed
        log_fpr, variance = errors.log_fpr, 1 / np.maximum(hits, _TINY) - 1 / errors.observed
        if errors.false_alarms is not None:
            false_alarms = np.maximum(errors.false_alarms, _TINY)
            log_fpr = np.log(false_alarms / errors.unobserved)
            variance = variance + 1 / false_alarms - 1 / errors.unobserved
        log_tpr = np.log(np.maximum(hits, _TINY) / errors.observed)
        limit = log_tpr - log_fpr + scipy.special.ndtri(sample.alpha) * np.sqrt(variance)
        return np.asarray(np.maximum(limit, 0.0))

    return epsilon
