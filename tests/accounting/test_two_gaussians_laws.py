"""Laws of two Gaussians that hold for every pair, on pairs that nobody picked by hand."""

import math

from hypothesis import given
from hypothesis import strategies as st
from pairs import delta_of as _delta
from pairs import epsilon_of as _epsilon

from fl_epe import epsilon_two_gaussians

means = st.floats(-10, 10)
stds = st.floats(0.05, 20)
pairs = st.tuples(means, stds, means, stds)
deltas = st.floats(-12, math.log10(0.5)).map(lambda exponent: 10**exponent)
epsilons = st.floats(0, 50)

ROUNDING = (
    1e-9  # the promise of `epsilon_two_gaussians`, where ε is 1e-3 or more
)


@given(pairs, deltas, deltas)
def test_a_larger_delta_never_needs_a_larger_epsilon(pair, one, other):
    small, large = sorted([one, other])
    epsilon = _epsilon(pair, large)
    assert epsilon <= _epsilon(pair, small) * (1 + ROUNDING)


@given(pairs, epsilons, epsilons)
def test_a_larger_epsilon_never_needs_a_larger_delta(pair, one, other):
    small, large = sorted([one, other])
    delta = _delta(pair, large)
    assert delta <= _delta(pair, small) * (1 + 1e-12)
    assert 0 <= delta <= 1


@given(pairs, deltas)
def test_epsilon_is_enough_and_no_larger_than_needed(pair, delta):
    epsilon = _epsilon(pair, delta)
    assert _delta(pair, epsilon) <= delta
    if epsilon >= 1e-3:
        assert _delta(pair, epsilon * (1 - 2 * ROUNDING)) > delta
    elif epsilon == 0:
        assert _delta(pair, 0) <= delta


@given(pairs, deltas)
def test_exchanging_null_and_alternative_changes_nothing(pair, delta):
    swapped = (*pair[2:], *pair[:2])
    assert _epsilon(swapped, delta) == _epsilon(pair, delta)


@given(pairs, deltas, st.integers(-40, 40))
def test_the_unit_does_not_matter(pair, delta, power):
    """A power of two changes no digit of the arguments, so none of the answer."""
    scaled = [math.ldexp(value, power) for value in pair]
    assert _epsilon(scaled, delta) == _epsilon(pair, delta)


@given(pairs, deltas)
def test_the_sign_does_not_matter(pair, delta):
    mirrored = (-pair[0], pair[1], -pair[2], pair[3])
    assert _epsilon(mirrored, delta) == _epsilon(pair, delta)


@given(st.floats(0, 10), st.floats(0, 10), stds, deltas)
def test_at_equal_spread_farther_apart_is_never_more_private(
    one, other, std, delta
):
    near, far = sorted([one, other])
    epsilon = epsilon_two_gaussians(0, std, near, std, delta)
    assert epsilon <= epsilon_two_gaussians(0, std, far, std, delta) * (
        1 + ROUNDING
    )


@given(st.lists(pairs, min_size=1, max_size=5), deltas)
def test_an_array_is_answered_entry_by_entry(several, delta):
    """Newton stops for all at once, so that the last digits may depend on the company."""
    together = _epsilon(zip(*several, strict=True), delta)
    for pair, epsilon in zip(several, together, strict=True):
        alone = _epsilon(pair, delta)
        assert math.isclose(epsilon, alone, rel_tol=ROUNDING, abs_tol=1e-12)
