"""From ε of single rounds to that of a run, as audits of single rounds extrapolate.

`noise_of_epsilon` says how much Gaussian noise has this ε in one round, and `composed_epsilon`
what rounds of such noise cost together where records are sampled for each.

Examples:
    >>> round(noise_of_epsilon(4.377, delta=1e-5), 3)
    1.0
    >>> composed_epsilon([(math.inf, 100)], sampling_rate=0.01, delta=1e-5)  # nothing was found
    0.0
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import dp_accounting
import scipy
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from fl_epe.accounting import gaussian_epsilon

_CELLS = 1000  # of the privacy-loss grid, in the largest ε of one round
_FINEST, _COARSEST = 1e-4, 1e-2  # of that grid, in nats


def noise_of_epsilon(epsilon: float, delta: float) -> float:
    """The noise multiplier z whose one round has this ε, the inverse of `gaussian_epsilon`.

    Infinite for ``epsilon`` ≤ 0.
    """
    if epsilon <= 0:
        return math.inf
    root = scipy.optimize.brentq(
        lambda log_z: gaussian_epsilon(math.exp(log_z), delta) - epsilon,
        -12.0,
        15.0,
        xtol=1e-9,
    )
    return math.exp(root)


def composed_epsilon(
    rounds: Sequence[tuple[float, int]],
    sampling_rate: float,
    delta: float,
    *,
    by: str = "pld",
) -> float:
    """ε of rounds of Gaussian noise, each with records sampled by coins of their own.

    Adjacency: add-or-remove. The adversary does not know who was sampled.

    Args:
        rounds: pairs of a noise multiplier z > 0 and a number of rounds with it; infinite noise
            costs nothing.
        sampling_rate: probability of taking part in a round, in (0, 1].
        delta: in (0, 1).
        by: "pld" (privacy-loss distributions, tight) or "rdp" (Rényi divergences, as Opacus and
            CANIFE do; never smaller).
    """
    parts = [
        (noise, count)
        for noise, count in rounds
        if math.isfinite(noise) and count
    ]
    if not parts:
        return 0.0
    largest = gaussian_epsilon(min(noise for noise, _ in parts), delta)
    step = min(max(largest / _CELLS, _FINEST), _COARSEST)
    accountant = (
        PLDAccountant(value_discretization_interval=step)
        if by == "pld"
        else RdpAccountant()
    )
    together: dict[float, int] = {}
    for noise, count in parts:
        together[noise] = together.get(noise, 0) + count
    for noise, count in together.items():
        event = dp_accounting.GaussianDpEvent(noise)
        accountant.compose(
            dp_accounting.PoissonSampledDpEvent(sampling_rate, event), count
        )
    return float(accountant.get_epsilon(delta))
