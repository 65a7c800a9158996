"""ε of composed Gaussian mechanisms: known rounds, a random number of rounds, or secret coins.

The noise multiplier z is the noise's standard deviation divided by the clip norm, so that one
client shifts the sum of clipped updates by at most 1/z standard deviations.

Examples:
    >>> round(gaussian_epsilon(noise_multiplier=1.0, delta=1e-5), 3)
    4.377
"""

import functools
import math
from typing import Any

import numpy as np

from fl_epe.accounting.mixtures import known_expected_score_epsilon
from fl_epe.accounting.renyi import MIN_FFT_DELTA, TAIL_SHARE, renyi_epsilon
from fl_epe.accounting.two_gaussians import epsilon_of_shift
from fl_epe.checks import (
    Floats,
    check_not_negative,
    check_probability,
    raise_invalid,
    tail_sums,
)

_USUAL_STEP = 1e-2  # first step of the privacy-loss grid, in nats
_MIN_STEP = 1e-6
_MAX_STEP = 500.0  # dp-accounting takes the exponential of the step
# Largest ratio of ε to the grid's step; convolutions then take about a second.
_MAX_CELLS = 2e5
# The grid is fine enough if a tenth of the step changes ε by at most this share.
_MAX_CHANGE = 1e-2
_NO_NOISE = 1e-150  # a smaller noise counts as this much; ε is infinite with it
_USUAL_TRUNCATION = -50.0  # dp-accounting's log_mass_truncation_bound
# Share of δ that the tail of the number of participations may have. In this tail ε counts as
# infinite.
_NEGLIGIBLE_SHARE = 1e-3


def gaussian_epsilon(
    noise_multiplier: float, delta: float, participations: int = 1
) -> float:
    """ε of a client who takes part ``participations`` times, in rounds the adversary knows.

    R adaptively chosen Gaussian mechanisms compose to √R/z-GDP (Dong, Roth, Su 2019),
    which no analysis improves on. Adjacency: zero-out, the client's updates replaced by zero.

    Args:
        noise_multiplier: z ≥ 0.
        delta: target δ in (0, 1).
        participations: number of rounds R ≥ 0 in which the client takes part.

    Raises:
        ValueError: if an argument is out of range.
    """
    _check(noise_multiplier, delta)
    check_not_negative("participations", participations)
    shift = math.sqrt(participations) / max(noise_multiplier, _NO_NOISE)
    return float(epsilon_of_shift(shift, delta))


def random_participations_epsilon(
    noise_multiplier: float, delta: float, probabilities: Floats
) -> float:
    """ε of a client whose number of participations is random, in rounds the adversary knows.

    A client who takes part R times has √R/z-GDP. The rounds do not depend on the data, so δ(ε) is
    the mean over R of the δ(ε) that belongs to `gaussian_epsilon`. The result is exact, except that
    ε counts as infinite for the largest R, of a probability of at most δ/1000 together. Adjacency:
    zero-out.

    Args:
        noise_multiplier: z ≥ 0.
        delta: target δ in (0, 1).
        probabilities: the probabilities of 0, 1, 2, … participations, shape ``(n,)``; their sum
            is 1.
    """
    # Probabilities of at least 0, 1, 2, … participations, without the final 0 of `tail_sums`.
    tails = tail_sums(probabilities)[:-1]
    shifts = np.sqrt(np.arange(len(tails))) / max(noise_multiplier, _NO_NOISE)
    shifts[tails <= _NEGLIGIBLE_SHARE * delta] = math.inf
    return known_expected_score_epsilon(shifts, delta, weights=probabilities)


def poisson_epsilon(
    noise_multiplier: float,
    sampling_rate: float,
    rounds: int,
    delta: float,
    *,
    replace_one: bool = False,
) -> float:
    """ε of a client who takes part by secret coins, from dp-accounting's privacy-loss distribution.

    The distribution is rounded up (Doroshenko et al. 2022), so the result is never below the exact
    ε. Its grid is refined until ε changes by less than 1%. As a tenth of the step gives 1/25 to
    1/100 of the error, the result is then above the exact ε by about 1% at most. If the ε without
    sampling exceeds 10⁸, the ε without sampling is returned. With δ below 10⁻¹¹ losses are
    composed by their moments, and the result is up to a third above the exact ε. Adjacency:
    add-or-remove, or replace-one.

    Args:
        noise_multiplier: z ≥ 0.
        sampling_rate: probability q of taking part in a round, in [0, 1].
        rounds: number of rounds, at least 0.
        delta: target δ in (0, 1).
        replace_one: whether the two runs differ in a record that is replaced by another, for an
            adversary who knows that a person took part and wants to infer their record. In each
            step that samples the record the sums are up to two clip norms apart: the pair is
            (1 − q)·N(0, z²) + q·N(1, z²) against (1 − q)·N(0, z²) + q·N(−1, z²), so ε is about
            twice as large (Pradhan et al. 2025).

    Raises:
        ValueError: if an argument is out of range.
    """
    _check(noise_multiplier, delta)
    check_not_negative("rounds", rounds)
    if not 0 <= sampling_rate <= 1:
        raise_invalid("sampling_rate", sampling_rate, "in [0, 1]")
    if sampling_rate == 0 or rounds == 0:
        return 0.0
    distance = 2 if replace_one else 1  # between the two sums, in clip norms
    epsilon = gaussian_epsilon(noise_multiplier / distance, delta, rounds)
    if sampling_rate == 1 or epsilon == 0 or math.isinf(epsilon):
        return epsilon
    step = min(max(_USUAL_STEP, epsilon / _MAX_CELLS), _MAX_STEP)
    # The factor allows for rounding of the first step.
    while step >= _MIN_STEP and epsilon <= 1.01 * _MAX_CELLS * step:
        finer = _pld_epsilon(
            noise_multiplier, sampling_rate, rounds, delta, replace_one, step
        )
        is_fine_enough = abs(epsilon - finer) <= _MAX_CHANGE * finer
        epsilon = min(epsilon, finer)
        if is_fine_enough:
            break
        step /= 10
    return epsilon


# A report needs the same ε several times.
@functools.lru_cache(maxsize=4096)
def _pld_epsilon(
    noise: float,
    rate: float,
    rounds: int,
    delta: float,
    replace_one: bool,
    step: float,
) -> float:
    """ε of `poisson_epsilon` on a grid with this step."""
    import dp_accounting  # slow to import
    from dp_accounting.pld import privacy_loss_distribution

    relation = "REPLACE_ONE" if replace_one else "ADD_OR_REMOVE_ONE"
    truncated_mass = delta * TAIL_SHARE / rounds
    round_distribution = privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        value_discretization_interval=step,
        sampling_prob=rate,
        neighboring_relation=dp_accounting.NeighboringRelation[relation],
        log_mass_truncation_bound=min(
            math.log(truncated_mass), _USUAL_TRUNCATION
        ),
    )
    if delta >= MIN_FFT_DELTA:
        return epsilon_of_losses(round_distribution.self_compose(rounds), delta)
    return max(
        renyi_epsilon(
            [(_losses(pmf), pmf._probs, rounds)],
            delta,
            rounds * pmf._infinity_mass,
        )
        for pmf in _both_directions(round_distribution)
    )


def _both_directions(distribution: Any) -> list[Any]:
    """The probability mass functions of a ``PrivacyLossDistribution``."""
    return [
        distribution._pmf_remove.to_dense_pmf(),
        distribution._pmf_add.to_dense_pmf(),
    ]


def _losses(pmf: Any) -> Floats:
    """The losses of dp-accounting's probability mass function, ascending."""
    multiples = np.arange(pmf.size) + pmf._lower_loss
    return np.asarray(multiples * pmf._discretization, np.float64)


def epsilon_of_losses(distribution: Any, delta: float) -> float:
    """The smallest ε ≥ 0 of a privacy-loss distribution of dp-accounting.

    dp-accounting's ``get_epsilon_for_delta`` computes e^−loss, which underflows to 0 for losses
    above 745 nats, and then returns infinity or a loss nearby. This function adds logarithms.

    δ(ε) is the largest P[L ≥ l] − e^ε·E[e^−L; L ≥ l] over all losses l. So ε is the largest
    ln((P[L ≥ l] − δ)/E[e^−L; L ≥ l]).

    Args:
        distribution: a ``PrivacyLossDistribution`` of both directions.
        delta: target δ in (0, 1).
    """
    pmfs = _both_directions(distribution)
    return max(_epsilon_of_pmf(pmf, delta) for pmf in pmfs)


def _epsilon_of_pmf(pmf: Any, delta: float) -> float:
    """ε of one direction, see `epsilon_of_losses`."""
    if pmf._infinity_mass > delta:
        return math.inf
    losses = _losses(pmf)[::-1]
    # Probabilities that an FFT computed may be slightly negative.
    probabilities = np.maximum(pmf._probs[::-1], 0.0)
    excess = pmf._infinity_mass + np.cumsum(probabilities) - delta
    # ln E[e^−L; L ≥ l] for each loss l.
    with np.errstate(divide="ignore"):  # ln 0 = −∞
        log_expectations = np.logaddexp.accumulate(
            np.log(probabilities) - losses
        )
    is_above = excess > 0
    epsilons = np.log(excess[is_above]) - log_expectations[is_above]
    return float(np.max(epsilons, initial=0.0))


def _check(noise_multiplier: float, delta: float) -> None:
    """Raise an error unless both are in range."""
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise_invalid("noise_multiplier", noise_multiplier, ">= 0 and finite")
    check_probability("delta", delta)
