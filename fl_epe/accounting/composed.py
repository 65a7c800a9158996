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

import scipy

from fl_epe.accounting.upper_bounds import gaussian_epsilon
from fl_epe.checks import check_probability

_CELLS = 1000  # of the privacy-loss grid, in the largest ε of one round
_FINEST, _COARSEST = 1e-4, 1e-2  # of that grid, in nats
_LEAST, _MOST = 1e-4, 1e12  # noise multipliers that are looked for


def noise_of_epsilon(epsilon: float, delta: float) -> float:
    """The noise multiplier z whose one round has this ε, the inverse of `gaussian_epsilon`.

    Returns:
        Infinite if ``epsilon`` is not above 0 by more than z = 10^12 has; 0 if it is infinite.

    Raises:
        ValueError: if ``epsilon`` is negative or NaN, or ``delta`` is not in (0, 1).
    """
    check_probability("delta", delta)
    if not epsilon >= 0:
        raise ValueError(f"Expected epsilon={epsilon} >= 0.")
    if math.isinf(epsilon):
        return 0.0
    if epsilon <= gaussian_epsilon(_MOST, delta):
        return math.inf
    if epsilon >= gaussian_epsilon(_LEAST, delta):
        raise ValueError(f"Expected epsilon={epsilon} < {gaussian_epsilon(_LEAST, delta):.3g}.")

    def miss(log_noise: float) -> float:
        return gaussian_epsilon(math.exp(log_noise), delta) - epsilon

    low, high = math.log(_LEAST), math.log(_MOST)
    while high - low > 1.0:  # ε is flat at 0 beyond some noise, where brentq would stop early
        middle = (low + high) / 2
        low, high = (middle, high) if miss(middle) > 0 else (low, middle)
    return math.exp(scipy.optimize.brentq(miss, low, high, xtol=1e-13))


def composed_epsilon(
    rounds: Sequence[tuple[float, int]], sampling_rate: float, delta: float, *, by: str = "pld"
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

    Raises:
        ValueError: if an argument is out of range.
    """
    import dp_accounting  # slow to import
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    _check(rounds, sampling_rate, delta, by)
    parts = [(noise, count) for noise, count in rounds if math.isfinite(noise) and count]
    if not parts:
        return 0.0
    loudest = gaussian_epsilon(min(noise for noise, _ in parts), delta)
    step = min(max(loudest / _CELLS, _FINEST), _COARSEST)
    accountant = (
        PLDAccountant(value_discretization_interval=step) if by == "pld" else RdpAccountant()
    )
    together: dict[float, int] = {}
    for noise, count in parts:
        together[noise] = together.get(noise, 0) + count
    for noise, count in together.items():
        event = dp_accounting.GaussianDpEvent(noise)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(sampling_rate, event), count)
    return float(accountant.get_epsilon(delta))


def _check(
    rounds: Sequence[tuple[float, int]], sampling_rate: float, delta: float, by: str
) -> None:
    check_probability("delta", delta)
    if not 0 < sampling_rate <= 1:
        raise ValueError(f"Expected sampling_rate={sampling_rate} in (0, 1].")
    if by not in ("pld", "rdp"):
        raise ValueError(f"Expected by={by!r} to be 'pld' or 'rdp'.")
    for noise, count in rounds:
        if not noise > 0 or count < 0:
            raise ValueError(f"Expected rounds of noise={noise} > 0 and count={count} >= 0.")
