"""Substitute adjacency in the hidden state: the fast game is the slow one, and the bound holds."""

import math

import numpy as np
import pytest
import scipy

from fl_epe.accounting import gaussian_epsilon, poisson_epsilon
from fl_epe.auditing import Scores
from fl_epe.conformance import games
from simulations.pradhan_2025.hidden_substitute import (
    HiddenSubstitute,
    hidden_state_ratio,
    hidden_substitute_lower_bound,
    play_hidden_state,
)
from simulations.shared.noisy_sum import NoisySum

PAIR = HiddenSubstitute(2.0, 0.3, 12)
DELTA = 1e-5


def test_the_fast_game_has_the_law_of_the_slow_one():
    """Kolmogorov and Smirnov's test, in each world, at a level of 0.1%."""
    statistic = hidden_state_ratio(PAIR, clip_norm=3.0)
    slow = games.play_game(
        NoisySum(3.0, 2.0),
        "substitute",
        [3.0, 0.0],
        observations=200,
        steps=12,
        sampling_rate=0.3,
        statistic=statistic,
        seed=1,
    )
    fast = play_hidden_state(PAIR, observations=200, seed=2)
    assert slow.statistic == fast.statistic
    for slow_scores, fast_scores in zip(slow.both(), fast.both(), strict=True):
        assert scipy.stats.ks_2samp(slow_scores, fast_scores).pvalue > 1e-3
    assert not np.array_equal(*fast.both())


def test_the_statistic_is_the_log_of_the_ratio_of_densities():
    observation = np.array([[4.0, 9.0], [2.0, 1.0]]), np.array([[3.0, 0.0]] * 2)
    ratio = hidden_state_ratio(PAIR, clip_norm=3.0).score(*observation)
    assert ratio == pytest.approx(float(PAIR.log_ratio(2.0)))


def test_error_rates_along_the_curve_give_back_its_epsilon():
    """Scores at the quantiles of the law: the bound comes near its ε from below."""
    pair, count = HiddenSubstitute(3.0, 0.5, 40), 20_000
    grid = np.linspace(-150, 150, 300_001)
    levels = (np.arange(count) + 0.5) / count
    worlds = [
        np.interp(levels, 1 - pair.above(grid[::100], s), grid[::100])
        for s in (1, -1)
    ]
    bound = hidden_substitute_lower_bound(Scores(*worlds), 0.5, 40, DELTA)
    assert 0.9 * pair.epsilon(DELTA) < bound < pair.epsilon(DELTA)


def test_the_bound_is_above_add_or_remove_and_below_substitute():
    """What one promises of a record's presence is no promise about what the record says."""
    pair = HiddenSubstitute(10.0, 0.25, 500)
    scores = play_hidden_state(pair, observations=5000, seed=1)
    bound = hidden_substitute_lower_bound(scores, 0.25, 500, DELTA)
    assert poisson_epsilon(10.0, 0.25, 500, DELTA) < bound < pair.epsilon(DELTA)


@pytest.mark.weekly
def test_the_bound_holds_in_its_share_of_runs():
    """Above the true ε in at most 5% of 200 runs, with three standard errors."""
    pair, runs = HiddenSubstitute(3.0, 0.5, 10), 200
    truth = pair.epsilon(DELTA)
    above = 0
    for seed in range(runs):
        scores = play_hidden_state(pair, observations=100, seed=seed)
        above += hidden_substitute_lower_bound(scores, 0.5, 10, DELTA) > truth
    assert above <= runs * 0.05 + 3 * math.sqrt(runs * 0.05 * 0.95)


def test_scores_that_tell_nothing_or_everything():
    zeros, ones = np.zeros(400), np.ones(400)
    assert (
        hidden_substitute_lower_bound(Scores(zeros, zeros), 0.5, 10, DELTA) == 0
    )
    assert (
        hidden_substitute_lower_bound(Scores(zeros, ones), 0.5, 10, DELTA) == 0
    )
    # No noise at all: who never takes part, in (1 − 0.1)^5 of runs, is still not found out.
    assert (
        hidden_substitute_lower_bound(Scores(ones, zeros), 0.1, 5, DELTA)
        == math.inf
    )
    with pytest.raises(ValueError, match="unobserved=None"):
        hidden_substitute_lower_bound(Scores(ones, None), 0.5, 10, DELTA)
    with pytest.raises(ValueError, match="observations=1"):
        play_hidden_state(PAIR, observations=1)
    with pytest.raises(ValueError, match="clip_norm=0"):
        hidden_state_ratio(PAIR, 0)


@pytest.mark.parametrize(("noise", "rate"), [(2.0, 0.5), (2.0, 0.1)])
def test_one_step_is_that_of_two_mixtures(noise, rate):
    exact = HiddenSubstitute(noise, rate, 1).epsilon(DELTA)
    assert poisson_epsilon(
        noise, rate, 1, DELTA, replace_one=True
    ) == pytest.approx(exact, rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "rate", "rounds"),
    [(1.0, 0.05, 100), (10.0, 0.25, 500), (20.0, 0.0625, 2500)],
)
def test_it_is_within_that_of_who_sees_every_step(noise, rate, rounds):
    substitute = poisson_epsilon(noise, rate, rounds, DELTA, replace_one=True)
    assert (
        HiddenSubstitute(noise, rate, rounds).epsilon(DELTA)
        <= 1.002 * substitute
    )


def test_without_sampling_it_is_gaussian_at_twice_the_distance():
    expected = gaussian_epsilon(2.0, DELTA, 9)
    assert HiddenSubstitute(4.0, 1.0, 9).epsilon(DELTA) == pytest.approx(
        expected, rel=1e-6
    )


def test_the_hidden_pair_is_its_mixture():
    pair = HiddenSubstitute(1.5, 0.3, 6)
    std = 1.5 * math.sqrt(6)
    weights = scipy.stats.binom.pmf(np.arange(7), 6, 0.3)
    totals = np.linspace(-9, 9, 7)
    densities = [
        scipy.stats.norm.pdf(totals[:, np.newaxis], sign * np.arange(7), std)
        @ weights
        for sign in (1, -1)
    ]
    np.testing.assert_allclose(
        pair.log_ratio(totals), np.log(densities[0] / densities[1])
    )
    grid = np.linspace(-60, 60, 200_001)
    present, absent = (
        scipy.stats.norm.pdf(grid[:, np.newaxis], sign * np.arange(7), std)
        @ weights
        for sign in (1, -1)
    )
    excess = np.maximum(present - np.exp(0.7) * absent, 0).sum() * (
        grid[1] - grid[0]
    )
    assert pair.delta(0.7) == pytest.approx(excess, rel=1e-6)
    assert pair.delta(pair.epsilon(1e-3)) == pytest.approx(1e-3)
    assert pair.epsilon(0.9) == 0


def test_the_hidden_pair_s_trade_off_touches_the_lines_of_its_epsilon():
    """f(α) = max over ε ≥ 0 of the lines of (ε, δ(ε)), for it is symmetric."""
    pair = HiddenSubstitute(2.0, 0.5, 20)
    epsilons = np.linspace(0, 6, 61)
    deltas = np.array([pair.delta(epsilon) for epsilon in epsilons])
    for fpr in (0.001, 0.05, 0.3):
        steep = 1 - deltas - np.exp(epsilons) * fpr
        flat = np.exp(-epsilons) * (1 - deltas - fpr)
        line = max(steep.max(), flat.max())
        assert line <= pair.least_fnr(fpr) + 1e-12
        assert line == pytest.approx(pair.least_fnr(fpr), rel=2e-3)


def test_a_hidden_pair_that_cannot_be_is_refused():
    for arguments, message in (
        ((0, 0.5, 1), "noise"),
        ((1, 0, 1), "rate"),
        ((1, 0.5, 0), "rounds"),
    ):
        with pytest.raises(ValueError, match=message):
            HiddenSubstitute(*arguments)
