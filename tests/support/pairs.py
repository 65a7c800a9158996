"""The (ε, δ) of a pair of Gaussians that is handed over as one tuple."""

from collections.abc import Sequence
from typing import Any

from fl_epe import delta_two_gaussians, epsilon_two_gaussians


def epsilon_of(pair: Sequence[Any], delta: Any) -> Any:
    """ε of one pair, or of many in columns."""
    null_mean, null_std, alt_mean, alt_std = pair
    return epsilon_two_gaussians(null_mean, null_std, alt_mean, alt_std, delta)


def delta_of(pair: Sequence[Any], epsilon: Any) -> Any:
    """δ of one pair, or of many in columns."""
    null_mean, null_std, alt_mean, alt_std = pair
    return delta_two_gaussians(null_mean, null_std, alt_mean, alt_std, epsilon)
