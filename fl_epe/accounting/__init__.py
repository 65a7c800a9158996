"""What theorems promise: ε of two Gaussians, and upper bounds on ε for each participation schedule.

Every value here is analytical; what an attack measured is in `fl_epe.auditing`.

Examples:
    >>> from fl_epe.accounting import epsilon_two_gaussians, gaussian_epsilon
    >>> round(gaussian_epsilon(noise_multiplier=1.0, delta=1e-5), 3)  # one participation
    4.377
    >>> round(epsilon_two_gaussians(0, 1, 1, 1, delta=1e-5), 3)  # the same two Gaussians
    4.377
"""

from fl_epe.accounting.composed import composed_epsilon, noise_of_epsilon
from fl_epe.accounting.footprint_law import (
    ClientsLaw,
    FootprintLaw,
    clients_law,
    footprint_law,
    largest_footprint,
    simulated_law,
)
from fl_epe.accounting.hidden_substitute import HiddenSubstitute
from fl_epe.accounting.mixtures import (
    known_footprint_delta,
    known_footprint_epsilon,
    unknown_footprint_delta,
    unknown_footprint_epsilon,
)
from fl_epe.accounting.sampled_gaussian import TradeOff, poisson_epsilon_below, poisson_trade_off
from fl_epe.accounting.schedule_bounds import analytical_epsilon, tightest, upper_bounds
from fl_epe.accounting.substitute import group_epsilon, substitute_epsilon
from fl_epe.accounting.two_gaussians import delta_two_gaussians, epsilon_two_gaussians
from fl_epe.accounting.unknown_rounds import unknown_rounds_epsilon
from fl_epe.accounting.upper_bounds import (
    UpperBound,
    fixed_size_epsilon,
    gaussian_epsilon,
    poisson_epsilon,
    random_participations_epsilon,
)

__all__ = [
    "ClientsLaw",
    "FootprintLaw",
    "HiddenSubstitute",
    "TradeOff",
    "UpperBound",
    "analytical_epsilon",
    "clients_law",
    "composed_epsilon",
    "delta_two_gaussians",
    "epsilon_two_gaussians",
    "fixed_size_epsilon",
    "footprint_law",
    "gaussian_epsilon",
    "group_epsilon",
    "known_footprint_delta",
    "known_footprint_epsilon",
    "largest_footprint",
    "noise_of_epsilon",
    "poisson_epsilon",
    "poisson_epsilon_below",
    "poisson_trade_off",
    "random_participations_epsilon",
    "simulated_law",
    "substitute_epsilon",
    "tightest",
    "unknown_footprint_delta",
    "unknown_footprint_epsilon",
    "unknown_rounds_epsilon",
    "upper_bounds",
]
