"""Three lower bounds on ε for scores of any law: "weighted", "lifted" and "one-run".

"weighted" guesses whether each canary took part, and gives each guess a weight: the excess of the
log-odds of the guess, computed as if scores were Gaussian, over the tested ε. It tests every ε by
the weight of the right guesses, which is valid for any law of the scores. It is the sharpest
bound for up to about 0.05 / δ canaries, but weak for more of them against unobserved scores, and
for fewer than about 16 canaries. Derivation: docs/notes/lower-bounds.md.

"lifted" allows scores that depend on each other. It counts the run as one trial, while other
bounds count k canaries as k independent trials (Pillutla et al. 2023, arXiv 2305.18447). It
assumes that the score of a canary that did not take part is distributed like the scores of the
unobserved canaries of the same run, or as the exact null of a cosine. Random canaries satisfy
this by construction. Proof, and the cost of correlation: docs/notes/lifted.md.

"one-run" also allows dependent scores. It is for canaries that were included by independent fair
coins. The attack guesses "in" for the canaries with the highest scores, "out" for as many with
the lowest, and abstains on the others (Steinke, Nasr, Jagielski 2023). Each tested ε has its own
number of guesses, fixed before any score is seen. Why no correction is needed for the many
tests: docs/notes/lower-bounds.md.

"weighted" and "one-run" are the end of the range from 0 in which every ε is rejected.
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

# All values of ε in a cell are tested by the test that is designed for its upper end. A cell has
# this width, or a twentieth of ε if that is larger.
_CELL_WIDTH = 0.1
_CELLS_PER_EPSILON = 20

# Bisections of an interval, after which its width is below the rounding error.
_BISECTIONS = 55

# No score is farther than this from the mean of N(0, 1).
_FAR = 40

# "lifted" tests three shares of the canaries, each at a third of the level. At the smallest
# share s, α·s is four times δ, which has to be subtracted from it.
_NUM_SHARES = 3
_LARGEST_SHARE = 0.5
_MIN_LIMIT_OVER_DELTA = 4.0

# Relative rounding error of a share times a number of canaries.
_ROUNDING_OF_COUNT = 1e-9

# Weights of guesses are integers of up to 16. Weights below 3 are set to 0, as labels without a
# weight lower the cost of the condition in `_two_groups`. Tied groups of at least a tenth of
# all scores keep their weight.
_LARGEST_WEIGHT = 16
_LEAST_WEIGHT = 3
_LARGE_GROUP = 0.1

# Denominators are at least this large.
_TINY = 1e-9

# Share of the level that is spent on improbably many leaks.
_SHARE_FOR_LEAKS = 0.01

# Upper bound on the rounding error of a probability from `_tail_of_sum`.
_ROUNDING = 1e-11

# With probability 1 − 10⁻¹², a sum of independent variables deviates from its mean by at most
# this factor times the root of the sum of their squared ranges.
_HOEFFDING = np.sqrt(np.log(2e12) / 2)

Law = tuple[Floats, int]
"""The probabilities of 0, 1, 2, …, and the number of variables with this law."""

Margin = Callable[[float], float]
"""The p-value of a test of ε minus its level, an increasing function of ε; rejects where < 0."""


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

    return rejected_up_to(test_for)


def steinke_p_value(
    epsilon: float, num_canaries: int, guesses: int, right: int, delta: float
) -> float:
    """An upper bound on the probability of at least ``right`` right ``guesses`` under (ε, δ)-DP.

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


def rejected_up_to(test_for: Callable[[float], Margin]) -> float:
    """The end of the range of rejected values of ε that starts at 0.

    Args:
        test_for: a function from a value of ε to the test that is designed for it. All values
            in a cell are tested by the test of its upper end.

    Returns:
        The end, or infinity if all values up to 10⁶ are rejected: these scores rule out every
        finite ε.
    """
    low = 0.0
    high = _CELL_WIDTH
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
        high += max(_CELL_WIDTH, high / _CELLS_PER_EPSILON)
    return math.inf


def tied_groups(sample: Sample) -> tuple[Integers, Integers]:
    """The number of scores with each value, from the highest, and of observed ones among them."""
    observed, unobserved = sample.both()
    pooled = np.concatenate([observed, unobserved])
    # Negative scores are sorted from the highest score.
    values, sizes = np.unique(-pooled, return_counts=True)
    group_of_observed = np.searchsorted(values, -observed)
    members = np.bincount(group_of_observed, minlength=values.size)
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
    is_in_upper_half = starts + ends < total
    is_in_lower_half = starts + ends > total
    guessed_in = (starts < wanted // 2) & is_in_upper_half
    guessed_out = (total - ends < wanted // 2) & is_in_lower_half
    right = members[guessed_in].sum() + (sizes - members)[guessed_out].sum()
    return int(sizes[guessed_in | guessed_out].sum()), int(right)


def guess_design(
    num_canaries: int, alpha: float, epsilon: float
) -> tuple[int, float]:
    """The design of the test of ``epsilon``: best for Gaussian scores, and valid for any scores.

    Returns:
        An even number of guesses, and the shift between two unit Gaussians at which the test
        rejects that ``epsilon`` in half of the runs.
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
    shift = shifts[:, np.newaxis]
    distance = distance_of_share(guesses / num_canaries, shift)
    # ε that is rejected if as many guesses are right as expected, by Clopper–Pearson limits.
    expected_right = guesses * (1 - wrong_share(distance, shift))
    rates = scipy.special.betaincinv(
        expected_right, guesses - expected_right + 1, alpha
    )
    rejected = scipy.special.logit(rates)
    epsilons = np.maximum.accumulate(np.max(rejected, axis=1))
    return epsilons, guesses[np.argmax(rejected, axis=1)], shifts


def distance_of_share(share: Floats, shift: Floats | float) -> Floats:
    """The distance from the midpoint of N(0, 1) and N(shift, 1) beyond which ``share`` lies.

    It is the inverse of `share_beyond`.
    """
    low = np.zeros(np.broadcast_shapes(np.shape(share), np.shape(shift)))
    high = low + np.max(shift) / 2 + _FAR
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_too_near = share_beyond(middle, shift) > share
        low = np.where(is_too_near, middle, low)
        high = np.where(is_too_near, high, middle)
    return low


def share_beyond(distance: Floats, shift: Floats | float) -> Floats:
    """The share of N(0, 1), and of N(shift, 1), beyond ``distance`` from their midpoint."""
    above = shift / 2 - distance
    below = -distance - shift / 2
    return np.asarray(scipy.special.ndtr(above) + scipy.special.ndtr(below))


def wrong_share(distance: Floats, shift: Floats | float) -> Floats:
    """The share of wrong guesses for the scores that `share_beyond` counts."""
    log_right = scipy.special.log_ndtr(shift / 2 - distance)
    log_wrong = scipy.special.log_ndtr(-distance - shift / 2)
    return np.asarray(scipy.special.expit(log_wrong - log_right))


def lifted(sample: Sample) -> float:
    """A bound on ε from one run whose scores may depend on each other in any way.

    Under (ε, δ)-DP the expected share of canaries with a p-value of at most x is at most
    e^ε·x + δ. If the share is s in this run, then its expectation is at least α·s, except with
    probability α (Markov's inequality). So ε is at least ln((α·s − δ)/x).
    """
    log_p = log_p_values(sample)
    count = log_p.size
    # Against u unobserved scores a p-value is at least 1/(u + 1), so small shares give weak bounds,
    # and only the largest share is tested.
    num_shares = _NUM_SHARES if sample.unobserved is None else 1
    alpha = sample.alpha / num_shares
    smallest = max(_MIN_LIMIT_OVER_DELTA * sample.delta / alpha, 1 / count)
    shares = np.geomspace(
        min(smallest, _LARGEST_SHARE), _LARGEST_SHARE, _NUM_SHARES
    )
    epsilon = 0.0
    for share in shares[-num_shares:]:
        excess = alpha * share - sample.delta
        if excess > 0:
            number = math.ceil(share * count * (1 - _ROUNDING_OF_COUNT))
            epsilon = max(epsilon, float(np.log(excess) - log_p[number - 1]))
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

    Two groups of k and u scores are treated as k + u canaries, each of which is included by a
    coin with probability k/(k + u), under the condition that k are included. Without the
    condition, a guess "in" is right with odds of at most e^ε·k/u, and a guess "out" with odds of
    at most e^ε·u/k. Each label leaks with probability δ (Kairouz, Oh, Viswanath 2015). So the
    weight of the right guesses is at most a sum of independent variables, plus the largest weight
    for each label that leaks. Tied scores share the mean weight of their ranks, so that weights
    depend on scores alone.

    The condition has the probability P[k]. Given the labels with a weight, its probability is at
    most M, as the labels without a weight are coins as well. So under the condition every event
    of the labels with a weight is at most M/P[k] times as likely.
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
            for weight, number in num_by_weight.items():
                chance_of_right = scipy.special.expit(
                    tested + np.sign(weight) * log_odds
                )
                law = np.zeros(abs(weight) + 1)
                law[0] = 1 - chance_of_right
                law[-1] = chance_of_right
                laws.append((law, number))
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
    share, counted from the nearer end.
    """
    count = int(sizes.sum())
    half = count // 2
    ranks = (np.arange(half) + 0.5) / half
    largest = distance_of_share(ranks[:1], shift)[0]
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
