"""Trade-off curves of sampled Gaussian steps: as their formulas, and never above them."""

import math

import numpy as np
import pytest
import scipy

from fl_epe.accounting import gaussian_epsilon, poisson_epsilon
from simulations.nasr_2023.sampled_gaussian import (
    poisson_epsilon_below,
    poisson_trade_off,
)

RATES = np.array([1e-3, 0.01, 0.05, 0.3, 0.7])


@pytest.mark.parametrize("noise", [0.5, 1.0, 8.0])
@pytest.mark.parametrize("steps", [1, 6])
def test_without_sampling_the_curve_is_gaussian(noise, steps):
    shift = math.sqrt(steps) / noise
    exact = scipy.stats.norm.cdf(scipy.stats.norm.ppf(1 - RATES) - shift)
    least = poisson_trade_off(noise, 1.0, steps).least_fnr(RATES)
    assert np.all(least <= exact + 1e-12)
    np.testing.assert_allclose(least, exact, atol=2e-3)


def test_one_sampled_step_is_the_lower_of_its_two_directions():
    """The errors of thresholds on N(0, z²) against its mixture with N(1, z²): the best tests."""
    noise, rate = 0.5, 0.25
    thresholds = np.linspace(-4, 5, 4001)
    absent = scipy.stats.norm.sf(thresholds / noise)
    present = (1 - rate) * absent + rate * scipy.stats.norm.sf(
        (thresholds - 1) / noise
    )
    least = poisson_trade_off(noise, rate, 1).least_fnr
    assert np.all(least(absent) <= 1 - present + 1e-12)  # who looks for members
    assert np.all(least(1 - present) <= absent + 1e-12)  # who looks for others
    gap = np.minimum(1 - present - least(absent), absent - least(1 - present))
    assert gap.min() < 1e-3
    few = np.argmin(
        np.abs(absent - 1e-3)
    )  # there members are the easier to find
    assert 1 - present[few] - least(absent[few]) < 2e-3


@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [(1.0, 0.1, 10), (2.0, 0.3, 4), (0.125, 0.25, 40)],
)
def test_epsilon_is_bracketed(noise, rate, steps):
    below = poisson_epsilon_below(noise, rate, steps, 1e-5)
    above = poisson_epsilon(noise, rate, steps, 1e-5)
    assert 0.985 * above < below <= above


def test_one_step_has_the_formula_of_sampling():
    epsilon = poisson_epsilon_below(1.0, 0.25, 1, 1e-5)
    assert epsilon == pytest.approx(
        poisson_epsilon(1.0, 0.25, 1, 1e-5), rel=1e-3
    )
    assert poisson_epsilon_below(1.0, 1.0, 7, 1e-5) == gaussian_epsilon(
        1.0, 1e-5, 7
    )
    assert poisson_epsilon_below(math.inf, 0.3, 5, 1e-5) == 0
    assert poisson_epsilon_below(1.0, 1e-6, 1, 1e-5) == 0
    assert poisson_epsilon_below(0.01, 0.5, 1, 1e-5) == pytest.approx(
        gaussian_epsilon(0.01, 2e-5) - math.log(2)
    )


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("noise_multiplier=0 > 0", {"noise_multiplier": 0}),
        (r"sampling_rate=0 in \(0, 1\]", {"sampling_rate": 0}),
        ("steps=0 >= 1", {"steps": 0}),
    ],
    ids=["noise", "rate", "steps"],
)
def test_a_wrong_argument_is_named(said, change):
    right = {"noise_multiplier": 1.0, "sampling_rate": 0.5, "steps": 2}
    for function in (
        poisson_trade_off,
        lambda **kw: poisson_epsilon_below(**kw, delta=1e-5),
    ):
        with pytest.raises(ValueError, match=said):
            function(**right | change)
