"""An adversary who does not know in which round a canary took part."""

import numpy as np
import pytest

from fl_epe import epsilon_from_record, epsilon_two_gaussians
from fl_epe.accounting import unknown_rounds_epsilon
from fl_epe.asymptotics import limit_record
from fl_epe.schedules import Poisson, ShuffledEpochs


class TestSecretRounds:
    @pytest.mark.parametrize("signal", [0.3, 1.0, 4.0, 20.0, 300.0])
    def test_one_round_is_known(self, signal):
        exact = epsilon_two_gaussians(0, 1, signal, 1, 1e-3)
        assert unknown_rounds_epsilon([np.array([signal])], 1e-3) == pytest.approx(exact, rel=1e-4)

    def test_epochs_of_one_round_compose(self):
        exact = epsilon_two_gaussians(0, 1, 2.0, 1, 1e-3)
        assert unknown_rounds_epsilon([np.ones(1)] * 4, 1e-3) == pytest.approx(exact, rel=1e-4)

    def test_equals_a_plain_simulation(self):
        """δ(ε) from 400,000 losses drawn with no formula but the likelihood ratio."""
        rng = np.random.default_rng(0)
        signal, rounds, draws = 1.5, 8, 400_000
        scores = rng.standard_normal((draws, rounds))
        scores[:, 0] += signal
        losses = np.log(np.mean(np.exp(signal * scores - signal**2 / 2), axis=1))
        epsilon = unknown_rounds_epsilon([np.full(rounds, signal)], 0.05)
        excess = np.maximum(-np.expm1(epsilon - losses), 0)
        error = excess.std() / np.sqrt(draws)
        # 2,000 draws of the background stand in for all: their share of the spread of one loss
        error = np.hypot(error, excess.std() / np.sqrt(2000))
        assert abs(excess.mean() - 0.05) < 4 * error

    def test_secrecy_helps_and_more_epochs_hurt(self):
        known = epsilon_two_gaussians(0, 1, 1.5, 1, 1e-3)
        once = unknown_rounds_epsilon([np.full(30, 1.5)], 1e-3)
        twice = unknown_rounds_epsilon([np.full(15, 1.5)] * 2, 1e-3)
        assert once < twice < epsilon_two_gaussians(0, 1, 1.5 * np.sqrt(2), 1, 1e-3)
        assert once < known

    def test_no_signal_is_no_loss(self):
        assert unknown_rounds_epsilon([np.full(30, 1e-4)], 1e-3) == 0

    def test_from_a_record(self):
        record = limit_record(ShuffledEpochs(60, 1), 0.5, 1e-3)
        estimate = epsilon_from_record(record, threat="all", statistic="likelihood-ratio")
        exact = unknown_rounds_epsilon([np.full(60, 2.0)], 1e-3)
        assert estimate.low < exact < estimate.high
        assert estimate.high < epsilon_from_record(record, threat="all").low

    def test_poisson_meets_its_accountant(self):
        from fl_epe.accounting import poisson_epsilon

        record = limit_record(Poisson(60, 0.1), 0.8, 1e-3)
        estimate = epsilon_from_record(record, threat="all", statistic="likelihood-ratio")
        assert estimate.low < poisson_epsilon(0.8, 0.1, 60, 1e-3) < estimate.high

    @pytest.mark.parametrize(
        ("epochs", "delta", "message"),
        [
            pytest.param([], 1e-3, r"epochs=\[\]", id="empty"),
            pytest.param([np.array([1.0, np.nan])], 1e-3, "positive and finite", id="nan"),
            pytest.param([np.array([0.0])], 1e-3, "positive and finite", id="zero"),
            pytest.param([np.ones(2)], 0.0, r"delta=0\.0 in \(0, 1\)", id="delta=0"),
        ],
    )
    def test_errors(self, epochs, delta, message):
        with pytest.raises(ValueError, match=message):
            unknown_rounds_epsilon(epochs, delta)
