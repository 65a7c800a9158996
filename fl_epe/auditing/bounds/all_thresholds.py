"""(ε, δ) from the best of all thresholds: as published, and corrected for all of them.

``jeffreys``, the paper's method, chooses the threshold on the scores by which it is judged, and is
not valid. ``simultaneous`` has limits that hold at all thresholds together.
"""

from __future__ import annotations

import numpy as np

from fl_epe.auditing.bounds.confidence_band import band_upper
from fl_epe.auditing.bounds.error_rates import (
    Sample,
    UpperLimit,
    count_errors,
    epsilon_from_rates,
    jeffreys_upper,
    upper_rates,
)
from fl_epe.auditing.bounds.held_out import joint_alpha


def jeffreys(sample: Sample) -> float:
    """The best of all thresholds with each rate at level α and no correction; not valid.

    Source: ``ε_lo`` in Andrew et al. 2024, after Zanella-Béguelin et al. 2023.
    """
    return _largest(sample, jeffreys_upper, sample.alpha)


def simultaneous(sample: Sample) -> float:
    """(ε, δ) from the best of all thresholds, with limits that hold at all of them together."""
    return _largest(sample, band_upper, joint_alpha(sample))


def _largest(sample: Sample, upper: UpperLimit, alpha: float) -> float:
    groups = [sample.observed] if sample.unobserved is None else [*sample.both()]
    errors = count_errors(sample, np.unique(np.concatenate(groups)))
    rates = upper_rates(errors, upper, alpha)
    return float(np.max(epsilon_from_rates(*rates, sample.delta)))
