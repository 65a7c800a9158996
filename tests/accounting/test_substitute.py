"""ε where a record is replaced: against closed forms, direct integration and theorems."""

import math

import numpy as np
import pytest
import scipy

from fl_epe.accounting import (
    HiddenSubstitute,
    gaussian_epsilon,
    group_epsilon,
    poisson_epsilon,
    substitute_epsilon,
)

DELTA = 1e-5
SETTINGS = [(1.0, 0.05, 100), (10.0, 0.25, 500), (20.0, 0.0625, 2500)]


@pytest.mark.parametrize(("noise", "rate"), [(2.0, 0.5), (2.0, 0.1)])
def test_one_step_is_that_of_two_mixtures(noise, rate):
    exact = HiddenSubstitute(noise, rate, 1).epsilon(DELTA)
    assert substitute_epsilon(noise, rate, 1, DELTA) == pytest.approx(exact, rel=2e-3)


def test_without_sampling_it_is_gaussian_at_twice_the_distance():
    expected = gaussian_epsilon(2.0, DELTA, 9)
    assert substitute_epsilon(4.0, 1.0, 9, DELTA) == expected
    assert HiddenSubstitute(4.0, 1.0, 9).epsilon(DELTA) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "rate", "rounds"), SETTINGS)
def test_it_lies_between_add_or_remove_and_the_group(noise, rate, rounds):
    arguments = (noise, rate, rounds, DELTA)
    substitute = substitute_epsilon(*arguments)
    assert poisson_epsilon(*arguments) < substitute <= group_epsilon(*arguments)
    assert HiddenSubstitute(noise, rate, rounds).epsilon(DELTA) <= 1.002 * substitute


def test_group_privacy_is_its_formula():
    """Without sampling: ε_S = 2·ε′ where (1 + e^ε′)·δ′ = δ, and δ′ is in closed form."""
    half = group_epsilon(2.0, 1.0, 4, DELTA) / 2
    assert gaussian_epsilon(2.0, DELTA / (1 + math.exp(half)), 4) == pytest.approx(half, rel=1e-6)
    half = group_epsilon(10.0, 0.25, 500, DELTA) / 2
    found = poisson_epsilon(10.0, 0.25, 500, DELTA / (1 + math.exp(half)))
    assert found == pytest.approx(half, rel=5e-3)


@pytest.mark.parametrize("of", [substitute_epsilon, group_epsilon])
def test_what_nobody_takes_part_in_or_has_no_noise(of):
    assert of(1.0, 0.0, 10, DELTA) == 0
    assert of(1.0, 0.5, 0, DELTA) == 0
    assert of(0.0, 0.5, 1, DELTA) == math.inf
    assert of(1000.0, 0.5, 1, 0.1) == 0
    with pytest.raises(ValueError, match="sampling_rate=2"):
        of(1.0, 2, 1, DELTA)


def test_the_hidden_pair_is_its_mixture():
    pair = HiddenSubstitute(1.5, 0.3, 6)
    std = 1.5 * math.sqrt(6)
    weights = scipy.stats.binom.pmf(np.arange(7), 6, 0.3)
    totals = np.linspace(-9, 9, 7)
    densities = [
        scipy.stats.norm.pdf(totals[:, np.newaxis], sign * np.arange(7), std) @ weights
        for sign in (1, -1)
    ]
    np.testing.assert_allclose(pair.log_ratio(totals), np.log(densities[0] / densities[1]))
    grid = np.linspace(-60, 60, 200_001)
    present, absent = (
        scipy.stats.norm.pdf(grid[:, np.newaxis], sign * np.arange(7), std) @ weights
        for sign in (1, -1)
    )
    excess = np.maximum(present - np.exp(0.7) * absent, 0).sum() * (grid[1] - grid[0])
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
    for arguments, said in (((0, 0.5, 1), "noise"), ((1, 0, 1), "rate"), ((1, 0.5, 0), "rounds")):
        with pytest.raises(ValueError, match=said):
            HiddenSubstitute(*arguments)
