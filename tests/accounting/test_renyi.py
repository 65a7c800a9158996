"""Privacy losses that are added by their moments, where δ is too small for a Fourier transform."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from fl_epe.accounting import (
    composed_gaussians,
    fixed_size_epsilon,
    hidden_rounds_epsilon,
    poisson_epsilon,
)
from fl_epe.accounting.composed_gaussians import gaussian_epsilon
from fl_epe.accounting.renyi import MIN_FFT_DELTA, chernoff_bound, renyi_epsilon
from fl_epe.schedules import Events, make_schedule

TINY = [1e-12, 1e-15, 1e-20, 1e-30, 1e-60]


def of_a_gaussian(noise_multiplier, cells=4000):
    """A Gaussian mechanism's loss on a grid of equal probabilities in steps of its score."""
    scores = np.linspace(-40, 40, cells) + 1 / noise_multiplier
    masses = np.exp(-((scores - 1 / noise_multiplier) ** 2) / 2)
    return (
        scores / noise_multiplier - noise_multiplier**-2 / 2,
        masses / masses.sum(),
    )


@pytest.mark.parametrize("delta", [1e-5, *TINY])
def test_gaussians_that_are_added_are_close_to_the_exact_epsilon(delta):
    losses, masses = of_a_gaussian(2.0)
    exact = gaussian_epsilon(2.0, delta, 10)
    assert exact <= renyi_epsilon([(losses, masses, 10)], delta) <= 1.15 * exact


def test_a_sum_exceeds_its_bound_as_seldom_as_asked():
    losses, masses = of_a_gaussian(1.0)
    mean, deviation = 10 * 0.5, math.sqrt(10)
    bound = chernoff_bound([(losses, masses, 10)], 1e-20)
    assert bound == pytest.approx(
        mean + deviation * math.sqrt(2 * math.log(1e20)), rel=1e-2
    )


class TestTinyDeltas:
    @pytest.mark.slow
    @pytest.mark.parametrize("rate", [0.01, 0.1])
    @pytest.mark.parametrize("delta", TINY)
    def test_sampled_rounds_meet_renyis(self, rate, delta):
        theirs = RdpAccountant(orders=range(2, 300))
        event = dp_accounting.PoissonSampledDpEvent(
            rate, dp_accounting.GaussianDpEvent(2.0)
        )
        theirs.compose(event, 100)
        expected = theirs.get_epsilon(delta)
        # Theirs has to count a tail that ours adds to δ.
        assert (
            0.7 * expected
            < poisson_epsilon(2.0, rate, 100, delta)
            < 1.005 * expected
        )
        events = Events.coins(np.full(100, rate))
        hidden = hidden_rounds_epsilon(events, np.full(100, 0.5), delta)
        assert 0.7 * expected < hidden < 1.005 * expected

    def test_the_two_ways_meet(self, monkeypatch):
        closely = poisson_epsilon(2.0, 0.1, 100, 1e-10)
        monkeypatch.setattr(composed_gaussians, "MIN_FFT_DELTA", 1.0)
        monkeypatch.setattr(
            composed_gaussians,
            "_pld_epsilon",
            composed_gaussians._pld_epsilon.__wrapped__,
        )
        assert closely < poisson_epsilon(2.0, 0.1, 100, 1e-10) < 1.1 * closely

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "epsilon_at",
        [
            pytest.param(
                lambda d: poisson_epsilon(1.0, 0.02, 50, d), id="coins"
            ),
            pytest.param(
                lambda d: poisson_epsilon(1.0, 0.02, 50, d, replace_one=True),
                id="replaced",
            ),
            pytest.param(
                lambda d: fixed_size_epsilon(1.0, 1000, 20, 50, d),
                id="fixed-size",
            ),
            pytest.param(
                lambda d: hidden_rounds_epsilon(
                    make_schedule("balls-in-bins", rounds=40, participations=4)
                    .law(1000)
                    .events,
                    np.full(40, 0.5),
                    d,
                ),
                id="balls-in-bins",
            ),
        ],
    )
    def test_epsilon_rises_as_delta_falls(self, epsilon_at):
        found = [
            epsilon_at(d) for d in (1e-8, 2e-11, 0.99 * MIN_FFT_DELTA, 1e-13)
        ]
        assert found == sorted(found)
        assert found[2] <= 1.3 * found[1]
