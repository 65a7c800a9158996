"""Lower bounds on ε for scores of any law: weighted evidence, guesses, a run as one trial.

"weighted" is a test for each ε, without a model of the scores. It is the sharpest bound for up to
about 0.05 / δ canaries. It is weak for more of them against unobserved scores, and for fewer than
about 16 canaries. The weight of a canary's score is the excess of the log-odds that it gives to
the canary's label, if scores were Gaussian, over the tested ε. Derivation:
docs/notes/lower-bounds.md.

The other two bounds allow scores that depend on each other.

"lifted" counts a run as one trial, as only runs are certainly independent, where other bounds count
k canaries as k independent trials (Pillutla et al. 2023, arXiv 2305.18447). It assumes that the
score of a canary that did not take part is distributed like the scores of the unobserved
canaries of the same run, or as the exact null of a cosine. Random canaries satisfy this by
construction. Proof, and the cost of correlation: docs/notes/lifted.md.

"one-run" is for canaries that were included by independent fair coins. The attack guesses "in" for
the canaries with the highest scores, "out" for as many with the lowest, and abstains on the others
(Steinke, Nasr, Jagielski 2023). Each ε has its own number of guesses, fixed before any score is
seen, and the bound is the end of the range from 0 in which every ε is rejected. Why no correction
is needed: docs/notes/lower-bounds.md.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy

from fl_epe.auditing.bounds.error_rates import (
    Sample,
    log_null_tail,
    normal_scores,
)
from fl_epe.checks import Floats, Integers, tail_sums

_TOLERANCE = 1e-4  # absolute error of a bound on ε
_LARGEST_EPSILON = 1e6  # the search for a bound ends here

# Values of ε in one cell share a test. This is a cell's width; above 2 it is a twentieth of ε.
_CELL = 0.1

# "lifted" tests three shares of the canaries, each at a third of the level. The largest share
# is a half; at the smallest, the limit is four times δ.
_SHARES = 3
_LARGEST_SHARE = 0.5
_LIMIT_OVER_DELTA = 4.0

# Weights of guesses are integers of up to 16. Weights below 3 are set to 0, as labels without a
# weight lower the cost of the condition in `_two_groups`. Tied groups of at least a tenth of
# all scores keep their weight.
_LARGEST_WEIGHT = 16
_LEAST_WEIGHT = 3
_LARGE_GROUP = 0.1

# Share of the level that is spent on improbably many leaks.
_SHARE_FOR_LEAKS = 0.01

# Upper bound on the rounding error of a probability from `_tail_of_sum`.
_ROUNDING = 1e-11

# A sum deviates from its mean by more than this many root sums of squared ranges with
# probability below 10⁻¹².
_HOEFFDING = np.sqrt(np.log(2e12) / 2)

Law = tuple[Floats, int]
"""The probabilities of 0, 1, 2, …, and the number of variables with this law."""

Margin = Callable[[float], float]
"""An increasing function of ε, negative where a test rejects ε."""


def one_run(sample: Sample) -> float:
    """A bound on ε at δ from the number of right guesses (Steinke et al. 2023)."""
    sizes, members = tied_groups(sample)
    count = int(sizes.sum())

    def test_for(epsilon: float) -> Margin:
        wanted, _ = guess_design(count, sample.alpha, epsilon)
        guesses, right = guesses_on_groups(sizes, members, wanted)

        def margin(tested: float) -> float:
            p_value = steinke_p_value(
                tested, count, guesses, right, sample.delta
            )
            return p_value - sample.alpha

        return margin

    return first_accepted(test_for)


def steinke_p_value(
    epsilon: float, num_canaries: int, guesses: int, right: int, delta: float
) -> float:
    """The largest probability of at least ``right`` right ``guesses`` under (ε, δ)-DP.

    It is β + 2·m·δ·max_i P[v > B ≥ v − i]/i (Steinke et al. 2023) for m canaries, r guesses and
    v right ones. B ~ Bin(r, q) is the number of right guesses at δ = 0, q = 1/(1 + e^−ε), and
    β = P[B ≥ v]. It is near 1 unless 2·m·δ is small.
    """
    if right == 0:
        return 1.0
    q = scipy.special.expit(epsilon)
    tail = scipy.special.bdtrc(np.arange(right - 1, -2, -1), guesses, q)
    by_leaks = np.max((tail[1:] - tail[0]) / np.arange(1, right + 1))
    return float(min(1.0, tail[0] + 2 * num_canaries * delta * by_leaks))


def first_accepted(test_for: Callable[[float], Margin]) -> float:
    """The end of the range of rejected values that starts at 0.

    Args:
        test_for: a function from a value to the test that is designed for it. Each cell of
            values uses the test of its upper end.

    Returns:
        The end, or infinity if all values up to 10⁶ are rejected: these scores rule out every
        finite ε.
    """
    low = 0.0
    high = _CELL
    while high < _LARGEST_EPSILON:
        margin = test_for(high)
        if margin(high) >= 0:
            if margin(low) >= 0:
                return low
            root = float(
                scipy.optimize.brentq(margin, low, high, xtol=_TOLERANCE)
            )
            return max(low, root - _TOLERANCE)
        low = high
        high += max(_CELL, high / 20)
    return math.inf


def tied_groups(sample: Sample) -> tuple[Integers, Integers]:
    """The number of scores with each value, from the highest, and of observed ones among them."""
    observed, unobserved = sample.both()
    pooled = np.concatenate([observed, unobserved])
    values, sizes = np.unique(-pooled, return_counts=True)
    members = np.bincount(
        np.searchsorted(values, -observed), minlength=values.size
    )
    return sizes, members


def guesses_on_groups(
    sizes: Integers, members: Integers, wanted: int
) -> tuple[int, int]:
    """The number of guesses, and of right ones.

    Half of the guesses are "in", for the highest scores, and half "out", for the lowest. Tied
    scores get the same guess or none, so that guesses depend on the scores alone; with ties at
    an end there are more guesses than ``wanted``. A group that is centred on the middle gets
    none.

    Args:
        sizes: the sizes of `tied_groups`.
        members: the numbers of observed scores of `tied_groups`.
        wanted: the wanted number of guesses, even.
    """
    total = sizes.sum()
    ends = np.cumsum(sizes)
    starts = ends - sizes
    guess_in = (starts < wanted // 2) & (starts + ends < total)
    guess_out = (total - ends < wanted // 2) & (starts + ends > total)
    right = members[guess_in].sum() + (sizes - members)[guess_out].sum()
    return int(sizes[guess_in | guess_out].sum()), int(right)


def guess_design(
    num_canaries: int, alpha: float, epsilon: float
) -> tuple[int, float]:
    """The design of the test of ``epsilon``, tuned to Gaussian scores and valid for all.

    Returns:
        An even number of guesses, and the shift between two unit Gaussians that a test of that
        ``epsilon`` detects in half of the runs.
    """
    epsilons, guesses, shifts = _designs(num_canaries, alpha)
    index = min(int(np.searchsorted(epsilons, epsilon)), epsilons.size - 1)
    return int(guesses[index]), float(shifts[index])


@functools.lru_cache
def _designs(num_canaries: int, alpha: float) -> tuple[Floats, Floats, Floats]:
    """Values of ε, increasing, with the guesses and the shift of `guess_design` at each."""
    shifts = np.geomspace(0.02, 40.0, 120)
    counts = np.geomspace(2, num_canaries, 60)
    guesses = np.unique([max(2, 2 * int(count / 2)) for count in counts])
    distance = confidence_quantile(
        guesses / num_canaries, shifts[:, np.newaxis]
    )
    right = guesses * (1 - wrong_share(distance, shifts[:, np.newaxis]))
    limits = scipy.special.logit(
        scipy.special.betaincinv(right, guesses - right + 1, alpha)
    )
    epsilons = np.maximum.accumulate(np.max(limits, axis=1))
    return epsilons, guesses[np.argmax(limits, axis=1)], shifts


def confidence_quantile(share: Floats, shift: Floats | float) -> Floats:
    """The distance from the middle of N(0, 1) and N(shift, 1) beyond which ``share`` lies."""
    low = np.zeros(np.broadcast_shapes(np.shape(share), np.shape(shift)))
    high = low + np.max(shift) / 2 + 40
    for _ in range(55):
        middle = (low + high) / 2
        is_too_near = share_beyond(middle, shift) > share
        low = np.where(is_too_near, middle, low)
        high = np.where(is_too_near, high, middle)
    return low


def share_beyond(distance: Floats, shift: Floats | float) -> Floats:
    """The part of N(0, 1) plus that of N(shift, 1) farther than ``distance`` from the middle."""
    above = shift / 2 - distance
    below = -distance - shift / 2
    return np.asarray(scipy.special.ndtr(above) + scipy.special.ndtr(below))


def wrong_share(distance: Floats, shift: Floats | float) -> Floats:
    """Of the scores farther than ``distance`` from the middle, the share on the wrong side."""
    log_right = scipy.special.log_ndtr(shift / 2 - distance)
    log_wrong = scipy.special.log_ndtr(-distance - shift / 2)
    return np.asarray(scipy.special.expit(log_wrong - log_right))


def lifted(sample: Sample) -> float:
    """A bound on ε from one run whose scores may depend on each other in any way.

    If a share s of the canaries has p-values of at most x, the expectation of this share is at
    least α·s, except with probability α (Markov's inequality), and at most e^ε·x + δ.
    """
    log_p = log_p_values(sample)
    # Against u unobserved scores a p-value is at least 1/(u + 1), so that small shares give weak
    # bounds: only the largest share is tested.
    tried = _SHARES if sample.unobserved is None else 1
    alpha = sample.alpha / tried
    smallest = max(_LIMIT_OVER_DELTA * sample.delta / alpha, 1 / log_p.size)
    shares = np.geomspace(
        min(smallest, _LARGEST_SHARE), _LARGEST_SHARE, _SHARES
    )
    epsilon = 0.0
    for share in shares[-tried:]:
        excess = alpha * share - sample.delta
        if excess > 0:
            last = math.ceil(share * log_p.size * (1 - 1e-9)) - 1
            epsilon = max(epsilon, float(np.log(excess) - log_p[last]))
    return epsilon


def log_p_values(sample: Sample) -> Floats:
    """The logarithm of each observed canary's p-value, sorted.

    P₀[p ≤ x] ≤ x for a canary that did not take part. Against u unobserved scores, of which v
    are not below the canary's score, it is (1 + v) / (u + 1).
    """
    if sample.unobserved is None:
        return np.sort(log_null_tail(sample.observed, sample.dim))
    total = sample.unobserved.size
    below = np.searchsorted(sample.unobserved, sample.observed, side="left")
    return np.sort(np.log((1 + total - below) / (total + 1)))


def weighted(sample: Sample) -> float:
    """A bound on ε from weighted evidence, against unobserved canaries or the exact null."""
    if sample.unobserved is None:
        return _exact_null(sample)
    return _two_groups(sample)


def _two_groups(sample: Sample) -> float:
    """Weighted guesses of the labels of canaries, from two independent groups of scores.

    Two groups of k and u scores are treated as k + u canaries, each included by a coin with
    probability k/(k + u), conditioned on k inclusions. By the coins, a guess "in" is right with
    odds of at most e^ε·k/u, and a guess "out" with odds of at most e^ε·u/k. Tied scores share
    the mean weight of their ranks, so that weights depend on scores alone. The weight of the
    right guesses is at most a sum of independent variables, plus the largest weight for each
    label that leaks, with probability δ (Kairouz, Oh, Viswanath 2015).

    The condition of k inclusions has the probability P[k]. Given the labels with a weight, its
    probability is at most M, as the other labels are coins as well. So the condition makes
    every event of the coins at most M/P[k] times as likely.
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
    above = scipy.special.bdtrc(leaks, count, sample.delta)
    leak_chances = -np.diff(above, prepend=1.0)
    few_leaks = int(
        np.searchsorted(np.cumsum(leak_chances), 1 - _SHARE_FOR_LEAKS * alpha)
    )

    def test_for(epsilon: float) -> Margin:
        _, shift = guess_design(count, alpha, epsilon)
        weights = _group_weights(sizes, shift, epsilon)
        labels = {
            int(w): int(sizes[weights == w].sum()) for w in np.unique(weights)
        }
        unweighted = max(labels.pop(0, 0) - few_leaks, 0)
        right = np.where(weights > 0, members, sizes - members)
        right_weight = int(np.abs(weights) @ right)
        needed = np.maximum(right_weight - _LARGEST_WEIGHT * leaks, 0)

        def margin(tested: float) -> float:
            laws = []
            for weight, number in labels.items():
                q = scipy.special.expit(tested + np.sign(weight) * log_odds)
                law = np.zeros(abs(weight) + 1)
                law[0] = 1 - q
                law[-1] = q
                laws.append((law, number))
            extremes = scipy.special.expit(
                [log_odds - tested, log_odds + tested]
            )
            variance = float(np.min(extremes * (1 - extremes)))
            largest = _largest_probability(unweighted, variance)
            conditional = np.where(leaks <= few_leaks, largest, 1.0)
            tail = _tail_of_sum(laws, needed)
            return float((leak_chances * conditional) @ tail) - alpha

        return margin

    return first_accepted(test_for)


def _group_weights(sizes: Integers, shift: float, epsilon: float) -> Integers:
    """The integer weight of each group of tied scores: > 0 for a guess "in", < 0 for "out".

    The weight at a rank is in proportion to the excess over ``epsilon`` of the log-odds of the
    guess there, of two unit Gaussians ``shift`` apart. Ranks are shares from either end.
    """
    count = int(sizes.sum())
    half = count // 2
    ranks = (np.arange(half) + 0.5) / half
    largest = confidence_quantile(ranks[:1], shift)[0]
    distance = np.linspace(0.0, largest, _LARGEST_WEIGHT * 100)
    share = share_beyond(distance, shift)
    log_odds = shift * np.interp(ranks, share[::-1], distance[::-1])
    excess = np.maximum(log_odds - epsilon, 0.0)
    signed = np.concatenate([excess, np.zeros(count % 2), -excess[::-1]])
    shared = np.add.reduceat(signed, np.cumsum(sizes) - sizes) / sizes
    scaled = _LARGEST_WEIGHT * shared / max(np.abs(shared).max(), 1e-9)
    weights: Integers = np.round(scaled).astype(int)
    is_weak = (np.abs(weights) < _LEAST_WEIGHT) & (sizes < _LARGE_GROUP * count)
    weights[is_weak] = 0
    return weights


def _largest_probability(count: int, variance: float) -> float:
    """An upper bound on the probability of any number of heads among ``count`` coins.

    Each coin has at least the variance ``variance``.

    The characteristic function of a coin has the square 1 − 2·p·(1 − p)·(1 − cos t), and no number
    is more likely than the mean of the product's absolute value. The mean over this many angles
    is exact.
    """
    power = count // 2
    angles = 2 * np.pi * np.arange(power + 1) / (power + 1)
    return float(np.mean((1 - 2 * variance * (1 - np.cos(angles))) ** power))


def _exact_null(sample: Sample) -> float:
    """A bound on ε from weighted cosines of observed canaries.

    Under (ε, δ)-DP, P[C ≥ c] is at most e^ε·P₀[C ≥ c] + δ and at most 1 − e^−ε·(P₀[C < c] − δ),
    where P₀ is the exact null. Cosines are turned into scores that are N(0, 1) under it.
    """
    count = sample.observed.size
    scores = normal_scores(sample.observed, sample.dim)
    shifts, epsilons = _detectable_shifts(count, sample.alpha)

    def test_for(epsilon: float) -> Margin:
        cuts = _cuts(
            epsilon, float(np.interp(epsilon, epsilons, shifts)), count
        )
        value = np.searchsorted(cuts, scores, side="right").sum(keepdims=True)
        log_tail = scipy.special.log_ndtr(-cuts)
        below_cut = np.maximum(-np.expm1(log_tail) - sample.delta, 0.0)

        def margin(tested: float) -> float:
            by_hits = np.exp(np.minimum(tested + log_tail, 0.0)) + sample.delta
            by_misses = 1 - np.exp(-tested) * below_cut
            tail = np.minimum(np.minimum(by_hits, by_misses), 1.0)
            law = -np.diff(tail, prepend=1.0, append=0.0)
            return float(_tail_of_sum([(law, count)], value)[0]) - sample.alpha

        return margin

    return first_accepted(test_for)


@functools.lru_cache
def _detectable_shifts(count: int, alpha: float) -> tuple[Floats, Floats]:
    """Gaussian shifts, and the ε that ``count`` scores with each shift rule out, increasing."""
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
    step = max(log_odds - epsilon, 1e-9) / _LARGEST_WEIGHT
    excess = epsilon + step * (np.arange(_LARGEST_WEIGHT) + 0.5)
    return np.concatenate([-excess[::-1], excess]) / shift + shift / 2


def _tail_of_sum(laws: list[Law], values: Integers) -> Floats:
    """P[S ≥ v] at each v of ``values`` for a sum S of independent variables, rounded up.

    It is computed by Fourier transform, on a window around the mean that S leaves with probability
    below 10⁻¹² (Hoeffding's inequality).
    """
    mean = sum(count * (law @ np.arange(law.size)) for law, count in laws)
    squares = sum(count * (law.size - 1) ** 2 for law, count in laws)
    reach = _HOEFFDING * np.sqrt(squares)
    first = int(mean - reach)
    last = int(mean + reach) + 1
    size = scipy.fft.next_fast_len(last - first + 1, real=True)
    transform = np.ones(size // 2 + 1, np.complex128)
    for law, count in laws:
        transform *= scipy.fft.rfft(law, size) ** count
    density = np.roll(scipy.fft.irfft(transform, size), -first)
    tail = tail_sums(density)
    return tail[np.clip(values - first, 0, size)] + _ROUNDING
