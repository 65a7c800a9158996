"""The noise with a given ε, at any scale, and where there is none."""

import math

import pytest

from fl_epe.accounting import gaussian_epsilon, noise_at, poisson_epsilon

DELTA = 1e-5


@pytest.mark.parametrize("noise", [1e-3, 0.7, 1.0, 30.0, 1e6])
def test_the_noise_of_an_epsilon_has_that_epsilon(noise):
    epsilon = gaussian_epsilon(noise, DELTA)
    found = noise_at(lambda z: gaussian_epsilon(z, DELTA), epsilon)
    assert gaussian_epsilon(found, DELTA) <= epsilon
    if epsilon:
        assert found == pytest.approx(noise, rel=1e-6)


@pytest.mark.slow
def test_a_sampled_claim_is_solved_to_the_accuracy_that_is_asked_for():
    epsilon = poisson_epsilon(1.0, 0.25, 4, DELTA)
    found = noise_at(
        lambda z: poisson_epsilon(z, 0.25, 4, DELTA), epsilon, close=1e-4
    )
    assert found == pytest.approx(1.0, rel=2e-4)


@pytest.mark.parametrize(
    ("epsilon_of", "noise"),
    [(lambda _: 2.0, math.inf), (lambda _: 0.5, 0.0), (lambda z: 1 / z, 1.0)],
    ids=["none-is-enough", "all-are-enough", "one"],
)
def test_the_ends(epsilon_of, noise):
    assert noise_at(epsilon_of, 1.0) == pytest.approx(noise)


def test_no_epsilon_at_all_needs_finite_noise_where_delta_allows_it():
    found = noise_at(lambda z: gaussian_epsilon(z, DELTA), 0.0)
    assert (
        gaussian_epsilon(found, DELTA)
        == 0
        < gaussian_epsilon(0.99 * found, DELTA)
    )
