"""ε where one record is replaced by another, by group privacy alone: a loose bound to compare with.

`fl_epe.accounting.poisson_epsilon` with ``replace_one`` is what one should state (Pradhan et al.
2025).

Examples:
    >>> from fl_epe.accounting import poisson_epsilon
    >>> round(poisson_epsilon(1.0, 0.01, 1000, 1e-5, replace_one=True), 1)
    2.8
    >>> round(group_epsilon(1.0, 0.01, 1000, 1e-5), 1)
    4.9
"""

from __future__ import annotations

import math
from collections.abc import Callable

import dp_accounting
import numpy as np
import scipy
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant

from fl_epe.accounting import delta_two_gaussians, gaussian_epsilon
from fl_epe.checks import raise_invalid

_FFT_ERROR = 1e-14  # of δ, of dp-accounting's convolutions
_GRID, _CELLS = (
    1e-3,
    1e5,
)  # nats, of the privacy-loss distribution of add-or-remove
_MOST_ON_GRID = 1e6
_ORDERS = [
    *range(2, 65),
    *(2**power for power in range(7, 12)),
]  # Rényi: whole ones are closed


def group_epsilon(
    noise_multiplier: float, sampling_rate: float, rounds: int, delta: float
) -> float:
    """ε of replacing a record, by group privacy alone: 2·ε′ at δ = (1 + e^ε′)·δ′.

    Here (ε′, δ′) is of add-or-remove, whichever gives the least 2·ε′ at the same δ: a record is
    taken away and another is put in its place. It holds for any mechanism and is loose. Where δ′
    is below what a privacy-loss distribution resolves, 10⁻¹⁴, it is that of Rényi DP or without
    sampling, whichever is less.
    Adjacency: replace-one. Arguments are those of `fl_epe.accounting.poisson_epsilon`.
    """
    if not 0 <= sampling_rate <= 1:
        raise_invalid("sampling_rate", sampling_rate, "in [0, 1]")
    if sampling_rate == 0 or rounds == 0:
        return 0.0
    if math.isinf(gaussian_epsilon(noise_multiplier, delta, rounds)):
        return math.inf
    shift = math.sqrt(rounds) / noise_multiplier
    unsampled = _twice(
        lambda epsilon: float(
            delta_two_gaussians(0.0, 1.0, shift, 1.0, epsilon)
        ),
        delta,
    )
    if sampling_rate == 1:
        return unsampled
    largest = unsampled / 2
    sampled = _add_or_remove_delta(
        noise_multiplier, sampling_rate, rounds, largest
    )
    return min(unsampled, _twice(sampled, delta, largest))


def _twice(
    delta_of: Callable[[float], float], delta: float, most: float = math.inf
) -> float:
    """Twice the least ε at which (1 + e^ε)·δ(ε) ≤ ``delta``; infinite if none is below ``most``."""

    def excess(epsilon: float) -> float:
        delta_there = delta_of(epsilon)
        return float(
            np.logaddexp(0.0, epsilon)
            + math.log(max(delta_there, 1e-300) / delta)
        )

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        if high >= most:
            return math.inf
        high = min(2 * high, most)
    root = scipy.optimize.brentq(excess, 0.0, high, xtol=1e-9)
    return 2 * float(root)


def _add_or_remove_delta(
    noise_multiplier: float, sampling_rate: float, rounds: int, most: float
) -> Callable[[float], float]:
    """From ε to an upper bound on δ of add-or-remove, to far smaller δ than one would state."""
    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    event = dp_accounting.PoissonSampledDpEvent(sampling_rate, gaussian)
    renyi = RdpAccountant(_ORDERS).compose(event, rounds)
    if most > _MOST_ON_GRID:
        return lambda epsilon: float(renyi.get_delta(epsilon))
    losses = privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=sampling_rate,
        value_discretization_interval=max(_GRID, most / _CELLS),
    ).self_compose(rounds)

    def delta_of(epsilon: float) -> float:
        on_grid = float(losses.get_delta_for_epsilon(epsilon)) + _FFT_ERROR
        return min(on_grid, float(renyi.get_delta(epsilon)))

    return delta_of
