"""The difference of two ε: its ends by hand, and what it refuses."""

import math

import pytest

from fl_epe.auditing import EpsilonEstimate, epsilon_difference


def estimate(epsilon, low, high, delta=1e-5, confidence=0.95):
    return EpsilonEstimate(epsilon, low, high, delta, confidence, "by hand")


def test_distances_of_independent_runs_add_as_squares():
    found = epsilon_difference(estimate(10, 7, 14), estimate(5, 1, 17))
    assert (found.value, found.low, found.high) == (
        5,
        5 - math.hypot(3, 12),
        5 + math.hypot(4, 4),
    )
    assert found.confidence == 0.95
    assert found.independent
    assert not found.larger_than_chance


def test_an_interval_that_ends_at_0_counts_as_reaching_as_far_below_as_above():
    found = epsilon_difference(estimate(1, 0, 4), estimate(5, 1, 9))
    assert (found.low, found.high) == (
        -4 - math.hypot(3, 4),
        -4 + math.hypot(3, 4),
    )
    found = epsilon_difference(estimate(5, 1, 9), estimate(0, 0, 3))
    assert (found.low, found.high) == (
        5 - math.hypot(4, 3),
        5 + math.hypot(4, 3),
    )


def test_the_other_way_round_has_the_other_sign():
    one = estimate(10, 9, 12)
    other = estimate(5, 4, 5.5)
    there = epsilon_difference(one, other)
    back = epsilon_difference(other, one)
    assert (there.value, there.low, there.high) == (
        -back.value,
        -back.high,
        -back.low,
    )
    assert there.larger_than_chance
    assert back.larger_than_chance


def test_whatever_two_runs_share():
    found = epsilon_difference(
        estimate(10, 7, 14), estimate(5, 1, 6), independent=False
    )
    assert (found.low, found.high) == (1, 13)
    assert found.confidence == pytest.approx(0.9)
    assert found.larger_than_chance


def test_an_infinite_epsilon_is_no_number():
    without_noise = estimate(math.inf, math.inf, math.inf)
    found = epsilon_difference(without_noise, estimate(5, 4, 6))
    assert (found.value, found.low, found.high) == (
        math.inf,
        math.inf,
        math.inf,
    )
    found = epsilon_difference(without_noise, without_noise)
    assert math.isnan(found.value)
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert not found.larger_than_chance
    open_above = epsilon_difference(estimate(5, 4, math.inf), estimate(1, 0, 2))
    assert (open_above.low, open_above.high) == (2, math.inf)


@pytest.mark.parametrize("name", ["delta", "confidence"])
def test_delta_and_confidence_have_to_be_the_same(name):
    with pytest.raises(ValueError, match=f"second.{name}=0.5"):
        epsilon_difference(estimate(1, 0, 2), estimate(1, 0, 2, **{name: 0.5}))
