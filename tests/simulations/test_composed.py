"""Noise from ε, and ε of composed rounds."""

import math

import pytest

from fl_epe.accounting import gaussian_epsilon, poisson_epsilon
from simulations.shared.composed import composed_epsilon, noise_of_epsilon

DELTA = 1e-5


@pytest.mark.parametrize("noise", [0.05, 0.2, 1.0, 4.2, 50.0])
def test_noise_and_epsilon_are_inverse(noise):
    epsilon = gaussian_epsilon(noise, DELTA)
    assert gaussian_epsilon(
        noise_of_epsilon(epsilon, DELTA), DELTA
    ) == pytest.approx(epsilon, 1e-7)
    assert noise_of_epsilon(epsilon, DELTA) == pytest.approx(noise, rel=1e-6)


def test_nothing_and_everything():
    assert noise_of_epsilon(0.0, DELTA) == math.inf
    assert composed_epsilon([], 0.1, DELTA) == 0.0
    assert composed_epsilon([(math.inf, 10), (1.0, 0)], 0.1, DELTA) == 0.0


def test_equal_rounds_are_those_of_poisson_epsilon():
    mixed = composed_epsilon([(1.0, 20), (1.0, 30)], 0.05, DELTA)
    assert mixed == pytest.approx(
        poisson_epsilon(1.0, 0.05, 50, DELTA), rel=0.02
    )


def test_renyi_divergences_are_not_below():
    rounds = [(0.9, 10), (2.0, 40)]
    assert composed_epsilon(rounds, 0.05, DELTA, by="rdp") > composed_epsilon(
        rounds, 0.05, DELTA
    )
    one_round = composed_epsilon([(0.2, 1)], 1.0, 1 / 60_000, by="rdp")
    assert one_round == pytest.approx(
        34.5, abs=0.05
    )  # the paper's analytical ε, Fashion-MNIST
    assert gaussian_epsilon(0.2, 1 / 60_000) < one_round
