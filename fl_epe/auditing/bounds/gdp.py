"""ε of the μ-GDP that both error rates rule out at a held-out threshold (Nasr et al. 2023)."""

from __future__ import annotations

import numpy as np

from fl_epe.accounting import epsilon_two_gaussians
from fl_epe.auditing.bounds.error_rates import (
    Sample,
    clopper_pearson_upper,
    mu_from_rates,
    upper_rates,
)
from fl_epe.auditing.bounds.held_out import AtThresholds, held_out, joint_alpha


def gdp(sample: Sample) -> float:
    """ε of the μ-GDP that both rates rule out at a held-out threshold (Nasr et al. 2023)."""
    return gdp_epsilon(gdp_mu(sample), sample.delta)


def gdp_mu(sample: Sample) -> float:
    """The μ below which both rates rule out μ-GDP at a held-out threshold."""
    mu = mu_limits(sample)
    return float(mu(held_out(sample, mu))[0])


def gdp_rates(sample: Sample) -> tuple[float, float]:
    """Clopper–Pearson limits of log FPR and of FNR at the held-out threshold of `gdp`."""
    errors = held_out(sample, mu_limits(sample))
    limits = upper_rates(errors, clopper_pearson_upper, joint_alpha(sample))
    log_fpr, fnr = (float(limit[0]) for limit in limits)
    return log_fpr, fnr


def mu_limits(sample: Sample) -> AtThresholds:
    """μ from limits of both rates that hold together, at each threshold."""
    level = joint_alpha(sample)
    return lambda errors: mu_from_rates(*upper_rates(errors, clopper_pearson_upper, level))


def gdp_epsilon(mu: float, delta: float) -> float:
    """ε at ``delta`` of μ-GDP: of N(0, 1) against N(μ, 1)."""
    if mu == np.inf:
        return np.inf
    return float(epsilon_two_gaussians(0.0, 1.0, mu, 1.0, delta))
