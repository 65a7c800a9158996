"""Substitute adjacency in the hidden state: the fast game is the slow one, and the bound holds."""

import math

import numpy as np
import pytest
import scipy

from fl_epe.accounting import HiddenSubstitute, poisson_epsilon
from fl_epe.auditing import Scores, games, hidden_substitute_lower_bound

PAIR = HiddenSubstitute(2.0, 0.3, 12)
DELTA = 1e-5


def test_the_fast_game_has_the_law_of_the_slow_one():
    """Kolmogorov and Smirnov's test, in each world, at a level of 0.1%."""
    statistic = games.hidden_state_ratio(PAIR, clip_norm=3.0)
    slow = games.play_game(
        games.NoisySum(3.0, 2.0),
        games.SUBSTITUTE,
        games.dirac(2, norm=3.0),
        observations=200,
        steps=12,
        sampling_rate=0.3,
        statistic=statistic,
        seed=1,
    )
    fast = games.play_hidden_state(PAIR, observations=200, seed=2)
    assert slow.statistic == fast.statistic
    for one, other in zip(slow.both(), fast.both(), strict=True):
        assert scipy.stats.ks_2samp(one, other).pvalue > 1e-3
    assert not np.array_equal(*fast.both())


def test_the_statistic_is_the_log_of_the_ratio_of_densities():
    seen = games.Transcript(np.array([[4.0, 9.0], [2.0, 1.0]]), np.array([[3.0, 0.0]] * 2))
    ratio = games.hidden_state_ratio(PAIR, clip_norm=3.0).score(seen)
    assert ratio == pytest.approx(float(PAIR.log_ratio(2.0)))


def test_error_rates_along_the_curve_give_back_its_epsilon():
    """Scores at the quantiles of the law: the bound comes near its ε from below."""
    pair, count = HiddenSubstitute(3.0, 0.5, 40), 20_000
    grid = np.linspace(-150, 150, 300_001)
    levels = (np.arange(count) + 0.5) / count
    worlds = [np.interp(levels, 1 - pair.above(grid[::100], s), grid[::100]) for s in (1, -1)]
    bound = hidden_substitute_lower_bound(Scores(*worlds), 0.5, 40, DELTA)
    assert 0.9 * pair.epsilon(DELTA) < bound < pair.epsilon(DELTA)


def test_the_bound_is_above_add_or_remove_and_below_substitute():
    """What one promises of a record's presence is no promise about what the record says."""
    pair = HiddenSubstitute(10.0, 0.25, 500)
    scores = games.play_hidden_state(pair, observations=5000, seed=1)
    bound = hidden_substitute_lower_bound(scores, 0.25, 500, DELTA)
    assert poisson_epsilon(10.0, 0.25, 500, DELTA) < bound < pair.epsilon(DELTA)


@pytest.mark.slow
def test_the_bound_holds_in_its_share_of_runs():
    """Above the true ε in at most 5% of 200 runs, with three standard errors."""
    pair, runs = HiddenSubstitute(3.0, 0.5, 10), 200
    truth = pair.epsilon(DELTA)
    above = 0
    for seed in range(runs):
        scores = games.play_hidden_state(pair, observations=100, seed=seed)
        above += hidden_substitute_lower_bound(scores, 0.5, 10, DELTA) > truth
    assert above <= runs * 0.05 + 3 * math.sqrt(runs * 0.05 * 0.95)


def test_scores_that_tell_nothing_or_everything():
    zeros, ones = np.zeros(400), np.ones(400)
    assert hidden_substitute_lower_bound(Scores(zeros, zeros), 0.5, 10, DELTA) == 0
    assert hidden_substitute_lower_bound(Scores(zeros, ones), 0.5, 10, DELTA) == 0
    # No noise at all: who never takes part, in (1 − 0.1)^5 of runs, is still not found out.
    assert hidden_substitute_lower_bound(Scores(ones, zeros), 0.1, 5, DELTA) == math.inf
    with pytest.raises(ValueError, match="unobserved=None"):
        hidden_substitute_lower_bound(Scores(ones, None), 0.5, 10, DELTA)
    with pytest.raises(ValueError, match="observations=1"):
        games.play_hidden_state(PAIR, observations=1)
    with pytest.raises(ValueError, match="clip_norm=0"):
        games.hidden_state_ratio(PAIR, 0)
