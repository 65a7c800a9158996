"""Bounds by the accountant's curve hold, beat what ignores sampling, and are composed rightly."""

import math

import numpy as np
import pytest

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import Scores
from fl_epe.auditing.bounds import lower_bound
from simulations.nasr_2023.sampled_gaussian import poisson_epsilon_below
from simulations.nasr_2023.step_bounds import VALID, lower_bounds_at
from simulations.nasr_2023.subsampled_bounds import (
    composed_lower_bound,
    noise_multiplier_limit,
    subsampled_lower_bound,
)

DELTA = 1e-5


def drawn(noise, rate, count, seed):
    """Scores of one step whose canary is sampled, along the canary."""
    rng = np.random.default_rng(seed)
    is_sampled = rng.random(count) < rate
    return Scores(
        is_sampled + noise * rng.standard_normal(count),
        noise * rng.standard_normal(count),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "rate"), [(0.5, 0.25), (1.0, 1.0)], ids=["sampled", "all"]
)
def test_the_limit_is_seldom_below_the_noise(noise, rate):
    audits = 60
    missed = sum(
        noise_multiplier_limit(
            drawn(noise, rate, 300, seed), sampling_rate=rate
        )
        < noise
        for seed in range(audits)
    )
    assert missed <= audits * 0.05 + 3 * math.sqrt(audits * 0.05 * 0.95)


def test_where_a_step_is_sampled_its_own_curve_proves_more():
    noise, rate = 0.3, 0.25
    pairs = [
        (
            subsampled_lower_bound(scores, DELTA, sampling_rate=rate, steps=1),
            lower_bound(scores, DELTA, method="gdp"),
        )
        for scores in (drawn(noise, rate, 2000, seed) for seed in range(5))
    ]
    by_curve, gaussian = np.mean(pairs, axis=0)
    truth = poisson_epsilon_below(noise, rate, 1, DELTA)
    assert gaussian < by_curve
    assert 0.7 * truth < by_curve < truth


def test_without_sampling_it_is_gdp():
    scores = drawn(1.0, 1.0, 1000, 3)
    bound = subsampled_lower_bound(scores, DELTA, sampling_rate=1.0, steps=1)
    assert bound == pytest.approx(
        lower_bound(scores, DELTA, method="gdp"), rel=1e-9
    )
    of_many = noise_multiplier_limit(scores, steps=9)
    assert of_many == pytest.approx(3 * noise_multiplier_limit(scores))


def test_steps_are_composed_by_the_accountant():
    scores = drawn(1.0, 1.0, 1000, 3)
    limit = noise_multiplier_limit(scores)
    assert 1.0 < limit < 1.5
    bound = composed_lower_bound(scores, DELTA, sampling_rate=0.1, steps=5)
    assert bound == poisson_epsilon_below(limit, 0.1, 5, DELTA)
    unsampled = composed_lower_bound(scores, DELTA, sampling_rate=1.0, steps=5)
    assert unsampled == gaussian_epsilon(limit, DELTA, 5)


def test_scores_that_say_nothing_prove_nothing():
    same = Scores(np.ones(9), np.ones(9))
    mixed = drawn(1e3, 1.0, 100, 1)
    for scores in (same, mixed):
        assert noise_multiplier_limit(scores) == math.inf
        assert (
            subsampled_lower_bound(scores, DELTA, sampling_rate=0.5, steps=1)
            == 0
        )
        assert (
            composed_lower_bound(scores, DELTA, sampling_rate=0.5, steps=3) == 0
        )


def test_a_perfect_attack_stops_at_the_least_noise_of_the_family():
    scores = Scores(10 + np.arange(2000.0), -np.arange(2000.0))
    bound = subsampled_lower_bound(scores, DELTA, sampling_rate=0.999, steps=1)
    assert 0 < bound <= poisson_epsilon_below(2.0**-4, 0.999, 1, DELTA)


def test_cosines_have_their_exact_null():
    rng = np.random.default_rng(4)
    dim = 10_000
    scores = Scores.from_cosines(
        (2 + rng.standard_normal(500)) / math.sqrt(dim), dim
    )
    assert 0.5 < noise_multiplier_limit(scores) < 0.7
    assert noise_multiplier_limit(scores, sampling_rate=0.5) < 0.5


@pytest.mark.parametrize("method", VALID)
def test_bounds_at_thresholds_are_of_all_scores(method):
    scores = drawn(1.0, 1.0, 1000, 1)
    places = np.array([-50.0, 0.5, 50.0])
    bounds = lower_bounds_at(
        scores, places, DELTA, confidence=0.95, method=method
    )
    looser = lower_bounds_at(
        scores, places, DELTA, confidence=0.6, method=method
    )
    assert bounds[0] == bounds[2] == 0
    assert 0 < bounds[1] < looser[1]


def test_wrong_arguments_are_named():
    scores = drawn(1.0, 1.0, 10, 1)
    with pytest.raises(ValueError, match="sampling_rate=0"):
        noise_multiplier_limit(scores, sampling_rate=0)
    with pytest.raises(ValueError, match="steps=0"):
        noise_multiplier_limit(scores, steps=0)
    with pytest.raises(ValueError, match="unobserved=None"):
        noise_multiplier_limit(Scores([1.0, 2.0]))
