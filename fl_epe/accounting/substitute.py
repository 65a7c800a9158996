"""ε where one record is replaced by another: add-or-remove promises less than it seems to.

Who knows that a person took part, and asks what their record says (its label, say), tells two runs
apart in which one record is replaced by another. In each step that samples the record the sums of
these runs are up to two clip norms apart, so ε is about twice that of add-or-remove (Pradhan et
al. 2025).

Examples:
    >>> from fl_epe.accounting import poisson_epsilon
    >>> apart = poisson_epsilon(1.0, 0.01, 1000, 1e-5)
    >>> substitute = substitute_epsilon(1.0, 0.01, 1000, 1e-5)
    >>> round(apart, 1), round(substitute, 1), round(group_epsilon(1.0, 0.01, 1000, 1e-5), 1)
    (1.8, 2.8, 4.9)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy

from fl_epe.accounting.two_gaussians import delta_two_gaussians
from fl_epe.accounting.upper_bounds import check_sampled, gaussian_epsilon, refined_epsilon

_FFT_ERROR = 1e-14  # of δ, of dp-accounting's convolutions
_GRID, _CELLS = 1e-3, 1e5  # nats, of the privacy-loss distribution of add-or-remove
_MOST_ON_GRID = 1e6
_ORDERS = [*range(2, 65), *(2**power for power in range(7, 12))]  # Rényi: whole ones are closed


def substitute_epsilon(
    noise_multiplier: float, sampling_rate: float, rounds: int, delta: float
) -> float:
    """ε of replacing a record that takes part by secret coins, for who sees every step.

    In each step the pair is (1 − q)·N(0, z²) + q·N(1, z²) against (1 − q)·N(0, z²) + q·N(−1, z²),
    composed by dp-accounting's privacy-loss distribution on a grid that is refined until ε changes
    by less than 0.2%. The distribution is rounded up: the answer is not below the exact ε of this
    pair. Adjacency: replace-one.

    Args:
        noise_multiplier: z ≥ 0.
        sampling_rate: q, the probability of taking part in a step, in [0, 1].
        rounds: number T of steps, at least 0.
        delta: in (0, 1).

    Raises:
        ValueError: if an argument is out of range.
    """
    check_sampled(noise_multiplier, sampling_rate, rounds, delta)
    if sampling_rate == 0 or rounds == 0:
        return 0.0
    unsampled = gaussian_epsilon(noise_multiplier / 2, delta, rounds)
    if sampling_rate == 1 or unsampled == 0 or math.isinf(unsampled):
        return unsampled

    def at_step(step: float) -> float:
        import dp_accounting  # slow to import
        from dp_accounting.pld import PLDAccountant

        gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
        event = dp_accounting.PoissonSampledDpEvent(sampling_rate, gaussian)
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
        accountant = PLDAccountant(relation, value_discretization_interval=step)
        return float(accountant.compose(event, rounds).get_epsilon(delta))

    return refined_epsilon(unsampled, at_step)


def group_epsilon(
    noise_multiplier: float, sampling_rate: float, rounds: int, delta: float
) -> float:
    """ε of replacing a record, by group privacy alone: 2·ε′ at δ = (1 + e^ε′)·δ′.

    Here (ε′, δ′) is of add-or-remove, whichever gives the least 2·ε′ at the same δ: a record is
    taken away and another is put in its place. It holds for any mechanism and is loose, so
    `substitute_epsilon` is what one should state. Where δ′ is below what a privacy-loss
    distribution resolves, 10⁻¹⁴, it is that of Rényi DP or without sampling, whichever is less.
    Adjacency: replace-one. Arguments and errors are those of `substitute_epsilon`.
    """
    check_sampled(noise_multiplier, sampling_rate, rounds, delta)
    if sampling_rate == 0 or rounds == 0:
        return 0.0
    if math.isinf(gaussian_epsilon(noise_multiplier, delta, rounds)):
        return math.inf
    shift = math.sqrt(rounds) / noise_multiplier
    unsampled = _twice(
        lambda epsilon: float(delta_two_gaussians(0.0, 1.0, shift, 1.0, epsilon)), delta
    )
    if sampling_rate == 1:
        return unsampled
    most = unsampled / 2
    sampled = _add_or_remove_delta(noise_multiplier, sampling_rate, rounds, most)
    return min(unsampled, _twice(sampled, delta, most))


def _twice(delta_of: Callable[[float], float], delta: float, most: float = math.inf) -> float:
    """Twice the least ε at which (1 + e^ε)·δ(ε) ≤ ``delta``; infinite if none is below ``most``."""

    def excess(epsilon: float) -> float:
        found = delta_of(epsilon)
        return float(np.logaddexp(0.0, epsilon) + math.log(max(found, 1e-300) / delta))

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
    import dp_accounting  # slow to import
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.rdp import RdpAccountant

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
