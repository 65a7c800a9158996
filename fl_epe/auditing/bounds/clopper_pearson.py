"""(ε, δ) from Clopper–Pearson limits of both error rates at a held-out threshold."""

from __future__ import annotations

import dataclasses

from fl_epe.auditing.bounds.error_rates import (
    Errors,
    Sample,
    clopper_pearson_upper,
    epsilon_from_rates,
    upper_rates,
)
from fl_epe.auditing.bounds.held_out import AtThresholds, held_out, joint_alpha

_DELTA_FOR_CHOICE = 1e-3  # whatever δ is, so that no bound grows with δ


def clopper_pearson(sample: Sample) -> float:
    """(ε, δ) from Clopper–Pearson limits of both rates at a held-out threshold."""
    return float(epsilon_limits(sample)(held_out_for_epsilon(sample))[0])


def epsilon_limits(sample: Sample) -> AtThresholds:
    """ε from limits of both rates that hold together, at each threshold."""
    level = joint_alpha(sample)
    return lambda errors: epsilon_from_rates(
        *upper_rates(errors, clopper_pearson_upper, level), sample.delta
    )


def held_out_for_epsilon(sample: Sample) -> Errors:
    """Errors at the threshold for `epsilon_limits` at a δ that is the same for every sample."""
    return held_out(sample, epsilon_limits(dataclasses.replace(sample, delta=_DELTA_FOR_CHOICE)))
