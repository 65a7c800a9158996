"""ε where a record is replaced: against closed forms, direct integration and theorems."""

import functools
import math

import pytest

from fl_epe.accounting import gaussian_epsilon, poisson_epsilon
from simulations.pradhan_2025.group_privacy import group_epsilon

DELTA = 1e-5
SETTINGS = [(1.0, 0.05, 100), (10.0, 0.25, 500), (20.0, 0.0625, 2500)]


def test_without_sampling_it_is_gaussian_at_twice_the_distance():
    expected = gaussian_epsilon(2.0, DELTA, 9)
    assert poisson_epsilon(4.0, 1.0, 9, DELTA, replace_one=True) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "rate", "rounds"), SETTINGS)
def test_it_lies_between_add_or_remove_and_the_group(noise, rate, rounds):
    arguments = (noise, rate, rounds, DELTA)
    substitute = poisson_epsilon(*arguments, replace_one=True)
    assert poisson_epsilon(*arguments) < substitute <= group_epsilon(*arguments)


def test_group_privacy_is_its_formula():
    """Without sampling: ε_S = 2·ε′ where (1 + e^ε′)·δ′ = δ, and δ′ is in closed form."""
    half = group_epsilon(2.0, 1.0, 4, DELTA) / 2
    assert gaussian_epsilon(
        2.0, DELTA / (1 + math.exp(half)), 4
    ) == pytest.approx(half, rel=1e-6)
    half = group_epsilon(10.0, 0.25, 500, DELTA) / 2
    epsilon = poisson_epsilon(10.0, 0.25, 500, DELTA / (1 + math.exp(half)))
    assert epsilon == pytest.approx(half, rel=5e-3)


@pytest.mark.parametrize(
    "of", [functools.partial(poisson_epsilon, replace_one=True), group_epsilon]
)
def test_what_nobody_takes_part_in_or_has_no_noise(of):
    assert of(1.0, 0.0, 10, DELTA) == 0
    assert of(1.0, 0.5, 0, DELTA) == 0
    assert of(0.0, 0.5, 1, DELTA) == math.inf
    assert of(1000.0, 0.5, 1, 0.1) == 0
    with pytest.raises(ValueError, match="sampling_rate=2"):
        of(1.0, 2, 1, DELTA)
