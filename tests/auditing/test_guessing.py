"""Bounds that test each ε with guesses: published special values, naive versions, simulation."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing import epsilon_lower_bound
from fl_epe.auditing.bounds.error_rates import Sample
from fl_epe.auditing.bounds.guessing import (
    distance_of_share,
    guess_design,
    guesses_on_groups,
    rejected_up_to,
    steinke_p_value,
    tied_groups,
    wrong_share,
)
from fl_epe.auditing.bounds.weighted import (
    _detectable_shifts,
    _largest_probability,
    _tail_of_sum,
)

ALPHA = 0.05
DELTA = 1e-5


def _sample(observed, unobserved):
    return Sample(
        np.array(observed, float), np.array(unobserved, float), 0, DELTA, ALPHA
    )


# Steinke, Nasr, Jagielski 2023.


@pytest.mark.parametrize("guesses", [1, 10, 1000])
def test_steinke_ceiling(guesses):
    """All right, δ = 0: the bound is logit(α^(1/r))."""
    ceiling = math.log(
        ALPHA ** (1 / guesses) / -math.expm1(math.log(ALPHA) / guesses)
    )
    assert steinke_p_value(
        ceiling, 2000, guesses, guesses, 0.0
    ) == pytest.approx(ALPHA, rel=1e-9)


def _naive_steinke(epsilon, canaries, guesses, right, delta):
    q = 1 / (1 + math.exp(-epsilon))
    law = [stats.binom.pmf(j, guesses, q) for j in range(guesses + 1)]
    beta = sum(law[right:])
    leaks = max(
        (sum(law[max(right - i, 0) : right]) / i for i in range(1, right + 1)),
        default=1.0,
    )
    return min(1.0, beta + 2 * canaries * delta * leaks)


@pytest.mark.parametrize(
    ("right", "delta"), [(0, 0.0), (1, 1e-3), (17, 1e-4), (20, 0.0), (20, 0.3)]
)
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0])
def test_steinke_p_value_is_its_formula(epsilon, right, delta):
    naive = _naive_steinke(epsilon, 50, 20, right, delta)
    assert steinke_p_value(epsilon, 50, 20, right, delta) == pytest.approx(
        naive, rel=1e-9
    )


def test_steinke_p_value_increases_where_it_is_small():
    values = [
        steinke_p_value(e, 1000, 100, 90, 1e-4) for e in np.linspace(0, 5, 400)
    ]
    assert all(a <= b for a, b in itertools.pairwise(values) if a < 0.5)


def test_one_run_says_nothing_where_delta_is_large():
    observed, unobserved = np.arange(100.0, 200), np.arange(100.0)
    assert epsilon_lower_bound(observed, unobserved, 1e-6, method="one-run") > 3
    assert epsilon_lower_bound(observed, unobserved, 0.01, method="one-run") < 1


# Guesses.


def test_guesses_are_from_both_ends():
    groups = tied_groups(_sample([5, 4, 1], [3, 2, 0]))
    assert [guesses_on_groups(*groups, wanted) for wanted in (2, 4, 6)] == [
        (2, 2),
        (4, 3),
        (6, 4),
    ]


def test_tied_scores_are_guessed_together_or_not_at_all():
    """Which of them come first would be chosen with their labels in sight."""
    ones, zeros = [1.0] * 3, [0.0] * 3
    same = tied_groups(_sample(ones, ones))
    assert guesses_on_groups(*same, 4) == (0, 0)
    response = tied_groups(_sample([1.0, 1.0, 0.0], [1.0, 0.0, 0.0]))
    assert guesses_on_groups(*response, 2) == (6, 4)
    middle = tied_groups(_sample([2.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]))
    assert guesses_on_groups(*middle, 8) == (2, 2)
    rare = tied_groups(_sample([1.0, *zeros], [*zeros, 0.0]))
    assert guesses_on_groups(*rare, 4) == (8, 5)


def test_confidence_is_about_the_middle():
    share = np.array([0.01, 0.3, 0.9])
    distance = distance_of_share(share, 1.4)
    far = stats.norm.sf(0.7 + distance), stats.norm.sf(distance - 0.7)
    assert sum(far) == pytest.approx(share, rel=1e-9)
    assert wrong_share(distance, 1.4) == pytest.approx(far[0] / share, rel=1e-9)


def test_design_has_even_odds_at_its_epsilon():
    """With the expected number of right guesses its ε is just not ruled out."""
    for epsilon in (0.5, 2.0, 4.0):
        guesses, shift = guess_design(1000, ALPHA, epsilon)
        wrong = wrong_share(
            distance_of_share(np.array([guesses / 1000]), shift), shift
        )[0]
        right = round(guesses * (1 - wrong))
        assert steinke_p_value(epsilon - 0.3, 1000, guesses, right, 0.0) < ALPHA
        assert steinke_p_value(epsilon + 0.3, 1000, guesses, right, 0.0) > ALPHA


def test_the_end_of_the_first_rejected_range_is_found():
    assert rejected_up_to(
        lambda _: lambda value: value - 1.234
    ) == pytest.approx(1.234, abs=2e-4)
    assert rejected_up_to(lambda _: lambda value: value - 1.234) <= 1.234
    assert rejected_up_to(lambda _: lambda _: 1.0) == 0.0
    # Rejected again after an accepted cell: that does not count.
    assert rejected_up_to(
        lambda high: lambda _: 1.0 if 2.05 < high < 3 else -1.0
    ) == pytest.approx(2.0)


# Weighted evidence.


def test_tail_of_sum_is_the_convolution():
    laws = [
        (np.array([0.5, 0.2, 0.0, 0.3]), 5),
        (np.array([0.9, 0.1]), 40),
        (np.ones(1), 3),
    ]
    law = np.ones(1)
    for part, count in laws:
        for _ in range(count):
            law = np.convolve(law, part)
    values = np.arange(-3, law.size + 3)
    exact = [law[max(value, 0) :].sum() for value in values]
    tail = _tail_of_sum(laws, values)
    assert tail == pytest.approx(exact, abs=1e-10)
    assert np.all(tail >= exact)


def test_tail_of_sum_sees_far_into_a_long_one():
    """40,000 coins of weight 16: the window is a small part of the range."""
    coin = np.zeros(17)
    coin[0], coin[-1] = 0.7, 0.3
    heads = np.array([11_500, 12_000, 12_200, 12_400])
    tail = _tail_of_sum([(coin, 40_000)], 16 * heads)
    exact = stats.binom.sf(heads - 1, 40_000, 0.3)
    assert tail == pytest.approx(exact, abs=2e-11)
    assert np.all(tail >= exact)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 12, 40])
@pytest.mark.parametrize("variance", [0.05, 0.1, 0.2, 0.25])
def test_no_number_of_heads_is_more_likely(count, variance):
    rng = np.random.default_rng(count)
    low = (1 - math.sqrt(1 - 4 * variance)) / 2
    for share in np.linspace(0, 1, 21):
        chances = np.where(rng.random(count) < share, low, 1 - low)
        law = np.ones(1)
        for chance in chances:
            law = np.convolve(law, [1 - chance, chance])
        assert law.max() <= _largest_probability(count, variance) + 1e-12


@pytest.mark.parametrize(
    ("observed", "unobserved"), [(3, 3), (4, 4), (5, 5), (2, 12)]
)
def test_weighted_tests_0_as_fisher_does(observed, unobserved):
    """Flawless scores: every labelling is equally likely at ε = 0."""
    p_value = 1 / math.comb(observed + unobserved, observed)
    scores = np.arange(float(observed + unobserved))[::-1]
    found = epsilon_lower_bound(
        scores[:observed], scores[observed:], 0.0, method="weighted"
    )
    assert (found > 0) == (p_value < ALPHA)


def test_weighted_of_flawless_scores_is_its_formula():
    """20 + 20: P[all guesses right]/P[20 of 40 coins are heads] = α."""
    scores = np.arange(40.0)[::-1]
    chance = (ALPHA * stats.binom.pmf(20, 40, 0.5)) ** (1 / 40)
    exact = math.log(chance / (1 - chance))
    found = epsilon_lower_bound(
        scores[:20], scores[20:], 0.0, method="weighted"
    )
    assert exact - 0.01 < found <= exact


@pytest.mark.slow
def test_weighted_pays_for_leaks():
    """(0, δ)-DP can reveal some canaries outright: as many as δ says are no evidence."""
    trials, failures = 200, 0
    for trial in range(trials):
        rng = np.random.default_rng((2, trial))
        observed, unobserved = rng.random((2, 100))
        observed[rng.random(100) < 0.05] += 1
        unobserved[rng.random(100) < 0.05] -= 1
        failures += (
            epsilon_lower_bound(observed, unobserved, 0.05, method="weighted")
            > 0
        )
    assert failures / trials <= ALPHA + 3 * math.sqrt(
        ALPHA * (1 - ALPHA) / trials
    )


@pytest.mark.slow
def test_weighted_beats_unweighted_guesses():
    """Although its groups have a fixed size, a condition that it pays for."""
    gains = []
    for trial in range(20):
        rng = np.random.default_rng((3, trial))
        scores = rng.normal(1.0, 1.0, 500), rng.normal(0.0, 1.0, 500)
        bounds = [
            epsilon_lower_bound(*scores, DELTA, method=m)
            for m in ("weighted", "one-run")
        ]
        gains.append(bounds[0] - bounds[1])
    assert np.mean(gains) > 0


def test_detectable_shift_increases_with_epsilon():
    shifts, epsilons = _detectable_shifts(500, ALPHA)
    assert np.all(np.diff(epsilons) >= 0)
    at_one = np.interp(1.0, shifts, epsilons)
    assert 0 < at_one < epsilon_two_gaussians(0, 1, 1, 1, DELTA)
