"""What theorems promise: ε of two Gaussians, and upper bounds on ε for each participation schedule.

Every value here is analytical; what an attack measured is in `fl_epe.auditing`.

Examples:
    >>> from fl_epe.accounting import epsilon_two_gaussians, gaussian_epsilon
    >>> round(gaussian_epsilon(noise_multiplier=1.0, delta=1e-5), 3)  # one participation
    4.377
    >>> round(epsilon_two_gaussians(0, 1, 1, 1, delta=1e-5), 3)  # the same two Gaussians
    4.377
"""

from fl_epe.accounting.composed_gaussians import (
    gaussian_epsilon,
    poisson_epsilon,
)
from fl_epe.accounting.drawn_losses import drawn_epsilon
from fl_epe.accounting.epsilon_of_signals import epsilon_of_signals
from fl_epe.accounting.expected_score_law import (
    ExpectedScoreLaw,
    clients_law,
    drawn_law,
    expected_score_law,
)
from fl_epe.accounting.inverse import noise_at, scale_at, shift_of_epsilon
from fl_epe.accounting.mixtures import (
    known_expected_score_epsilon,
    unknown_expected_score_epsilon,
)
from fl_epe.accounting.sensitivity import sensitivity, strategy_bounds
from fl_epe.accounting.two_gaussians import (
    delta_two_gaussians,
    epsilon_of_shift,
    epsilon_two_gaussians,
)
from fl_epe.accounting.unknown_rounds import (
    fixed_size_epsilon,
    hidden_rounds_epsilon,
)
from fl_epe.accounting.upper_bounds import UpperBound, tightest, upper_bounds

__all__ = [
    "ExpectedScoreLaw",
    "UpperBound",
    "clients_law",
    "delta_two_gaussians",
    "drawn_epsilon",
    "drawn_law",
    "epsilon_of_shift",
    "epsilon_of_signals",
    "epsilon_two_gaussians",
    "expected_score_law",
    "fixed_size_epsilon",
    "gaussian_epsilon",
    "hidden_rounds_epsilon",
    "known_expected_score_epsilon",
    "noise_at",
    "poisson_epsilon",
    "scale_at",
    "sensitivity",
    "shift_of_epsilon",
    "strategy_bounds",
    "tightest",
    "unknown_expected_score_epsilon",
    "upper_bounds",
]
