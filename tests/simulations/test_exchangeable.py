"""Limits of a rate from canaries that are exchangeable, but not independent."""

import numpy as np
import pytest
from scipy import stats

from simulations.studies.exchangeable import lower_limits


@pytest.mark.slow
def test_limits_of_a_rate_keep_their_confidence_where_the_plain_one_does_not():
    below = np.zeros(3)
    for repeat in range(400):
        rng = np.random.default_rng((3, repeat))
        limits = lower_limits(rng.binomial(200, rng.beta(1, 1, 10)) / 200, 200)
        below += (
            np.array([limits.independent, limits.betting, limits.bernstein])
            <= 0.5
        )
    assert below[0] < 300
    assert min(below[1:]) >= stats.binom.ppf(0.001, 400, 0.95)


@pytest.mark.slow
def test_second_order_limits_hold_for_many_runs():
    held = 0
    for repeat in range(300):
        rng = np.random.default_rng((5, repeat))
        limits = lower_limits(rng.binomial(50, rng.beta(2, 2, 100)) / 50, 50)
        held += limits.wilson <= 0.5
    assert held >= stats.binom.ppf(0.001, 300, 0.95)
    assert limits.bernstein < limits.wilson < 0.5


@pytest.mark.parametrize(
    "shares", [[0.0], [0.0, 0.0], [0.0] * 200 + [1.0], [1.0] * 3]
)
def test_odd_shares_have_limits(shares):
    limits = lower_limits(shares, 10)
    mean = float(np.mean(shares))
    for limit in (
        limits.independent,
        limits.betting,
        limits.bernstein,
        limits.wilson,
    ):
        assert 0 <= limit <= mean


def test_wrong_shares_and_counts_are_named():
    with pytest.raises(ValueError, match="shares"):
        lower_limits([1.5], 10)
    with pytest.raises(ValueError, match="canaries=1"):
        lower_limits([0.5], 1)
