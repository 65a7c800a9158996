"""The lower bound "weighted", for independent scores of any law.

The attack guesses whether each canary took part, and each guess has a weight: the excess over the
tested ε of the log-odds of the guess, computed as if scores were Gaussian. Each ε is tested by
the weight of the right guesses. The test is valid for scores of any law, as the Gaussian law only
determines the weights. The bound is the end of the range from 0 in which every ε is rejected.

It is the sharpest bound for up to about 0.05 / δ canaries, but weak for more of them against
unobserved scores, and for fewer than about 16 canaries. Derivation: docs/notes/lower-bounds.md.
"""

import functools
import math

import numpy as np
import scipy

from fl_epe.auditing.bounds.error_rates import Sample, normal_scores
from fl_epe.auditing.bounds.guessing import (
    Margin,
    distance_of_share,
    guess_design,
    rejected_up_to,
    share_beyond,
    tied_groups,
)
from fl_epe.checks import Floats, Integers, tail_sums

# Weights of guesses are integers of up to 16. Weights below 3 are set to 0, as labels without a
# weight make M in `_two_groups` smaller. Tied groups of at least a tenth of all scores keep their
# weight.
_LARGEST_WEIGHT = 16
_LEAST_WEIGHT = 3
_LARGE_GROUP = 0.1

# Denominators are at least this large.
_TINY = 1e-9

# Share of the level that is spent on improbably many leaks.
_SHARE_FOR_LEAKS = 0.01

# Upper bound on the rounding error of a probability from `_tail_of_sum`.
_ROUNDING = 1e-11

# With a probability of at least 1 − 10⁻¹², a sum of independent variables deviates from its mean by
# at most this factor times the root of the sum of their squared ranges.
_HOEFFDING = np.sqrt(np.log(2e12) / 2)

Law = tuple[Floats, int]
"""The probabilities of 0, 1, 2, …, and the number of variables with this law."""


def weighted(sample: Sample) -> float:
    """A bound on ε from weighted evidence, against unobserved canaries or the exact null."""
    if sample.unobserved is None:
        return _exact_null(sample)
    return _two_groups(sample)


def _two_groups(sample: Sample) -> float:
    """Weighted guesses of the labels of canaries, from two independent groups of scores.

    Two groups of k and u scores are treated as k + u canaries, each of which is included by a
    coin with probability k/(k + u), under the condition that k are included. Without the
    condition, a guess "in" is right with odds of at most e^ε·k/u, and a guess "out" with odds of
    at most e^ε·u/k. Each label leaks with probability δ (Kairouz, Oh, Viswanath 2015). So the
    weight of the right guesses is at most a sum of independent variables, plus the largest weight
    for each label that leaks. Tied scores share the mean weight of their ranks, so that weights
    depend on scores alone.

    That k canaries are included has the probability P[k]. Given the labels with a weight, its
    probability is at most M (`_largest_probability`), as the labels without a weight are coins as
    well. So under the condition every event of the labels with a weight is at most M/P[k] times as
    likely.
    """
    sizes, members = tied_groups(sample)
    count = int(sizes.sum())
    observed = int(members.sum())
    log_odds = math.log(observed / (count - observed))
    condition_chance = float(
        scipy.stats.binom.pmf(observed, count, observed / count)
    )
    alpha = sample.alpha * condition_chance
    leaks = np.arange(count + 1)
    chances_of_more = scipy.special.bdtrc(leaks, count, sample.delta)
    leak_chances = -np.diff(chances_of_more, prepend=1.0)
    # More leaks than these are so improbable that M counts as 1 there.
    max_leaks = int(
        np.searchsorted(np.cumsum(leak_chances), 1 - _SHARE_FOR_LEAKS * alpha)
    )

    def test_for(epsilon: float) -> Margin:
        _, shift = guess_design(count, alpha, epsilon)
        weights = _group_weights(sizes, shift, epsilon)
        num_by_weight = {
            int(weight): int(sizes[weights == weight].sum())
            for weight in np.unique(weights)
        }
        num_unweighted = max(num_by_weight.pop(0, 0) - max_leaks, 0)
        right = np.where(weights > 0, members, sizes - members)
        right_weight = int(np.abs(weights) @ right)
        # The weight that is not explained by each number of leaks.
        unexplained = np.maximum(right_weight - _LARGEST_WEIGHT * leaks, 0)

        def margin(tested: float) -> float:
            laws = []
            for weight, num_guesses in num_by_weight.items():
                chance_of_right = scipy.special.expit(
                    tested + np.sign(weight) * log_odds
                )
                law = np.zeros(abs(weight) + 1)
                law[0] = 1 - chance_of_right
                law[-1] = chance_of_right
                laws.append((law, num_guesses))
            # The smallest and the largest chance of inclusion, given a score.
            chances = scipy.special.expit(
                [log_odds - tested, log_odds + tested]
            )
            min_variance = float(np.min(chances * (1 - chances)))
            max_condition_chance = np.where(
                leaks <= max_leaks,
                _largest_probability(num_unweighted, min_variance),
                1.0,
            )
            tail = _tail_of_sum(laws, unexplained)
            p_value = float((leak_chances * max_condition_chance) @ tail)
            return p_value - alpha

        return margin

    return rejected_up_to(test_for)


def _group_weights(sizes: Integers, shift: float, epsilon: float) -> Integers:
    """The integer weight of each group of tied scores: > 0 for a guess "in", < 0 for "out".

    The weight of a score is proportional to the excess of its log-odds over ``epsilon``. The
    log-odds are those of two unit Gaussians ``shift`` apart, at the score's rank. A rank is a
    share of half of the scores, counted from the nearer end.
    """
    count = int(sizes.sum())
    half = count // 2
    ranks = (np.arange(half) + 0.5) / half
    largest = distance_of_share(ranks[:1], shift)[0]
    # The distance at each rank is interpolated, in steps that are small beside a unit of weight.
    distance = np.linspace(0.0, largest, _LARGEST_WEIGHT * 100)
    share = share_beyond(distance, shift)
    # `np.interp` needs increasing shares, and shares decrease with the distance.
    log_odds = shift * np.interp(ranks, share[::-1], distance[::-1])
    excess = np.maximum(log_odds - epsilon, 0.0)
    middle = np.zeros(count % 2)
    score_weights = np.concatenate([excess, middle, -excess[::-1]])
    starts = np.cumsum(sizes) - sizes
    group_means = np.add.reduceat(score_weights, starts) / sizes
    scaled = _LARGEST_WEIGHT * group_means
    scaled /= max(np.abs(group_means).max(), _TINY)
    weights: Integers = np.round(scaled).astype(int)
    is_weak = (np.abs(weights) < _LEAST_WEIGHT) & (sizes < _LARGE_GROUP * count)
    weights[is_weak] = 0
    return weights


def _largest_probability(count: int, variance: float) -> float:
    """An upper bound on the probability of any number of heads among ``count`` coins.

    Each coin has at least the variance ``variance``.

    The absolute value of a coin's characteristic function has the square
    1 − 2·p·(1 − p)·(1 − cos t). No number of heads is more likely than the mean of the product of
    these absolute values over t. The mean over ``count // 2 + 1`` angles is exact.
    """
    power = count // 2
    angles = 2 * np.pi * np.arange(power + 1) / (power + 1)
    return float(np.mean((1 - 2 * variance * (1 - np.cos(angles))) ** power))


def _exact_null(sample: Sample) -> float:
    """A bound on ε from weighted cosines of observed canaries.

    Under (ε, δ)-DP, P[C ≥ c] is at most e^ε·P₀[C ≥ c] + δ and at most 1 − e^−ε·(P₀[C < c] − δ),
    where P₀ is the exact null. Cosines are turned into scores that are N(0, 1) under P₀. The
    statistic is the sum of their weights, and the weight of a score is the number of cuts up to it.
    """
    count = sample.observed.size
    scores = normal_scores(sample.observed, sample.dim)
    shifts, epsilons = _detectable_shifts(count, sample.alpha)

    def test_for(epsilon: float) -> Margin:
        shift = float(np.interp(epsilon, epsilons, shifts))
        cuts = _cuts(epsilon, shift, count)
        weights = np.searchsorted(cuts, scores, side="right")
        total_weight = weights.sum(keepdims=True)
        log_tail = scipy.special.log_ndtr(-cuts)
        below_cut = np.maximum(-np.expm1(log_tail) - sample.delta, 0.0)

        def margin(tested: float) -> float:
            by_hits = np.exp(np.minimum(tested + log_tail, 0.0)) + sample.delta
            by_misses = 1 - np.exp(-tested) * below_cut
            tail = np.minimum(np.minimum(by_hits, by_misses), 1.0)
            law = -np.diff(tail, prepend=1.0, append=0.0)
            p_value = float(_tail_of_sum([(law, count)], total_weight)[0])
            return p_value - sample.alpha

        return margin

    return rejected_up_to(test_for)


@functools.lru_cache
def _detectable_shifts(count: int, alpha: float) -> tuple[Floats, Floats]:
    """Gaussian shifts, and the ε that ``count`` scores with each shift rule out; both increase."""
    # Grids of shifts, and of the numbers of observed scores above a threshold.
    shifts = np.geomspace(0.01, 2000.0, 300)
    hits = np.geomspace(1.0, count, 60)
    threshold = shifts[:, np.newaxis] - scipy.special.ndtri(
        (hits - 0.5) / count
    )
    lower = scipy.special.betaincinv(hits, count - hits + 1, alpha)
    epsilons = np.log(lower) - scipy.special.log_ndtr(-threshold)
    return shifts, np.maximum.accumulate(np.max(epsilons, axis=1))


def _cuts(epsilon: float, shift: float, count: int) -> Floats:
    """Scores at which the weight rises by one, increasing.

    Between log-odds of −ε and ε the weight is constant. Above, it rises by ``_LARGEST_WEIGHT`` up
    to the largest score expected among ``count`` Gaussians; below, it falls in the same way.
    """
    largest = shift - scipy.special.ndtri(0.5 / count)
    log_odds = shift * largest - shift**2 / 2
    step = max(log_odds - epsilon, _TINY) / _LARGEST_WEIGHT
    excess = epsilon + step * (np.arange(_LARGEST_WEIGHT) + 0.5)
    return np.concatenate([-excess[::-1], excess]) / shift + shift / 2


def _tail_of_sum(laws: list[Law], values: Integers) -> Floats:
    """P[S ≥ v] at each v of ``values`` for a sum S of independent variables, rounded up.

    It is computed by Fourier transform, on a window around the mean that S leaves with probability
    below 10⁻¹² (Hoeffding's inequality).
    """
    mean = sum(count * (law @ np.arange(law.size)) for law, count in laws)
    squared_ranges = sum(count * (law.size - 1) ** 2 for law, count in laws)
    max_deviation = _HOEFFDING * np.sqrt(squared_ranges)
    first = int(mean - max_deviation)
    last = int(mean + max_deviation) + 1
    size = scipy.fft.next_fast_len(last - first + 1, real=True)
    transform = np.ones(size // 2 + 1, np.complex128)
    for law, count in laws:
        transform *= scipy.fft.rfft(law, size) ** count
    density = np.roll(scipy.fft.irfft(transform, size), -first)
    tail = tail_sums(density)
    return tail[np.clip(values - first, 0, size)] + _ROUNDING
