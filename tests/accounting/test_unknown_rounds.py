"""An adversary who does not know in which round a canary took part."""

import numpy as np
import pytest
from scipy.special import ndtr

from fl_epe import epsilon_from_record, epsilon_two_gaussians
from fl_epe.accounting import (
    hidden_rounds_epsilon,
    poisson_epsilon,
    unknown_rounds,
)
from fl_epe.auditing import EVERY_ROUND, Adversary
from fl_epe.limit import limit_record
from fl_epe.schedules import Events, Poisson, ShuffledEpochs


def unknown_rounds_epsilon(epochs, delta):
    """ε of one uniform round in each epoch, of these signals."""
    starts = np.cumsum([0, *map(len, epochs)])
    blocks = [
        (start, np.full(len(part), 1 / len(part)))
        for start, part in zip(starts, epochs, strict=False)
    ]
    return hidden_rounds_epsilon(
        Events.blocks(blocks), np.concatenate(epochs), delta
    )


def secret_coins_epsilon(signals, rate, delta):
    """ε of a coin in each round, of these signals."""
    return hidden_rounds_epsilon(
        Events.coins(np.full(len(signals), rate)), signals, delta
    )


class TestSecretRounds:
    @pytest.mark.parametrize("signal", [0.3, 1.0, 4.0, 20.0, 300.0])
    def test_one_round_is_known(self, signal):
        exact = epsilon_two_gaussians(0, 1, signal, 1, 1e-3)
        assert unknown_rounds_epsilon(
            [np.array([signal])], 1e-3
        ) == pytest.approx(exact, rel=1e-4)

    def test_epochs_of_one_round_compose(self):
        exact = epsilon_two_gaussians(0, 1, 2.0, 1, 1e-3)
        assert unknown_rounds_epsilon([np.ones(1)] * 4, 1e-3) == pytest.approx(
            exact, rel=1e-4
        )

    @pytest.mark.parametrize(
        ("rounds", "signal", "delta", "exact"),
        [
            pytest.param(60, 1.0, 1e4**-1.1, 0.7092, id="60-rounds"),
            pytest.param(500, 1.0, 1e-6, 0.2731, id="500-rounds"),
            pytest.param(2048, 1.0, 1e-6, 0.1114, id="2048-rounds"),
            pytest.param(10, 3.0, 1e-6, 15.8607, id="large-epsilon"),
        ],
    )
    def test_is_exact_and_rounded_up(self, rounds, signal, delta, exact):
        """``exact`` from grids of 1,024 and 2,048 points, extrapolated to a step of 0."""
        epsilon = unknown_rounds_epsilon([np.full(rounds, signal)], delta)
        assert exact * 0.9998 < epsilon < exact * 1.002

    @pytest.mark.parametrize(
        ("rounds", "signal", "delta"),
        [
            pytest.param(60, 1.0, 1e-6, id="60-rounds"),
            pytest.param(8, 3.0, 1e-9, id="8-rounds"),
        ],
    )
    def test_equals_a_simulation(self, rounds, signal, delta):
        """δ at that ε from importance sampling, with no formula but the likelihood ratio.

        Draws are of a participant with a larger signal, whose losses are about ε.
        """
        epsilon = unknown_rounds_epsilon([np.full(rounds, signal)], delta)
        rng = np.random.default_rng(0)
        larger = np.log(rounds * np.expm1(epsilon) + 1) / signal + signal / 2
        values = []
        for _ in range(20):
            scores = rng.standard_normal((5000, rounds))
            scores[:, 0] += larger
            ratio, drawn = (
                np.mean(np.exp(a * scores - a**2 / 2), axis=1)
                for a in (signal, larger)
            )
            values.append(np.maximum(ratio - np.exp(epsilon), 0) / drawn)
        found = np.concatenate(values)
        error = found.std() / np.sqrt(len(found))
        assert error < 0.03 * delta
        assert abs(found.mean() - delta) < 4 * error

    @pytest.mark.parametrize(
        ("rounds", "delta"), [(60, 1e-6), (500, 1e-6), (2048, 1e-5)]
    )
    def test_equals_a_power_of_a_transform(self, rounds, delta):
        """δ at that ε from a plain grid of 2^18 values of the sum, for a signal of 1."""
        epsilon = unknown_rounds_epsilon([np.ones(rounds)], delta)
        values = 0.03 * np.arange(
            2**18
        )  # up to 7,864, which a sum exceeds by chance of 1e-12
        edges = ndtr(np.log(np.append(values[1:] - 0.015, np.inf)) + 0.5)
        transform = np.fft.rfft(np.diff(edges, prepend=0.0)) ** rounds
        total = np.maximum(np.fft.irfft(transform, len(values)), 0)
        removed = total @ np.maximum(values / rounds - np.exp(epsilon), 0)
        assert (
            0.97 * delta < removed < 1.001 * delta
        )  # ε is rounded up by 0.15% at most

    def test_two_rounds_equal_an_integral(self):
        """δ at that ε from the two scores' densities on a fine grid."""
        signals, delta = np.array([1.0, 2.0]), 1e-4
        epsilon = unknown_rounds_epsilon([signals], delta)
        first, second = np.meshgrid(
            *2 * [np.linspace(-9, 12, 1401)], indexing="ij"
        )
        scores = np.stack([first, second], axis=-1)
        null = (
            np.exp(-np.sum(scores**2, axis=-1) / 2)
            / (2 * np.pi)
            * (21 / 1400) ** 2
        )
        ratio = np.mean(np.exp(scores * signals - signals**2 / 2), axis=-1)
        removed = np.sum(null * np.maximum(ratio - np.exp(epsilon), 0))
        assert removed == pytest.approx(delta, rel=5e-3)  # ε to 0.05%

    def test_several_epochs_equal_a_simulation(self):
        rng = np.random.default_rng(1)
        signal, rounds, draws = 1.5, 8, 200_000
        epsilon = unknown_rounds_epsilon([np.full(rounds, signal)] * 2, 0.02)
        scores = rng.standard_normal((2, draws, rounds))
        scores[:, :, 0] += signal
        losses = np.log(
            np.mean(np.exp(signal * scores - signal**2 / 2), axis=2)
        ).sum(axis=0)
        excess = np.maximum(-np.expm1(epsilon - losses), 0)
        assert abs(excess.mean() - 0.02) < 4 * excess.std() / np.sqrt(draws)

    @pytest.mark.parametrize(
        "signals",
        [
            pytest.param(np.r_[[4.0], np.full(16, 0.5)], id="one-large"),
            pytest.param(np.geomspace(0.5, 2, 17), id="spread"),
        ],
    )
    def test_grouped_signals(self, signals, monkeypatch):
        """Signals that are told apart and signals that are not: less than 0.5% of ε."""
        exact = unknown_rounds_epsilon([signals * (1 + 1e-9)], 1e-6)
        monkeypatch.setattr(
            unknown_rounds,
            "_MAX_SHORT_EPOCH",
            0 if len(np.unique(signals)) < 5 else 20,
        )
        monkeypatch.setattr(unknown_rounds, "_MAX_GROUPS", 0)
        assert unknown_rounds_epsilon([signals], 1e-6) == pytest.approx(
            exact, rel=5e-3
        )

    @pytest.mark.parametrize("signal", [1e-6, 60.0, 2000.0, 1e6])
    def test_extreme_signals(self, signal):
        secret = unknown_rounds_epsilon([np.full(30, signal)], 1e-5)
        known = epsilon_two_gaussians(0, 1, signal, 1, 1e-5)
        assert known * 0.98 - np.log(30) - 0.1 <= secret <= known * 1.001

    def test_a_tiny_delta(self):
        secret = unknown_rounds_epsilon([np.ones(30)], 1e-200)
        known = epsilon_two_gaussians(0, 1, 1.0, 1, 1e-200)
        assert known - np.log(30) - 0.1 < secret < known

    @pytest.mark.parametrize("delta", [1e-300, 5e-324])
    def test_a_delta_below_what_the_grid_leaves_out(self, delta):
        known = epsilon_two_gaussians(0, 1, 1.0, 1, delta)
        assert (
            known - np.log(30) - 0.1
            < unknown_rounds_epsilon([np.ones(30)], delta)
            <= known
        )

    def test_rounds_without_a_signal_take_no_memory(self):
        """A round that releases no model has the signal 1e-9 in a report; it asked for 72 GiB."""
        none, small = (
            unknown_rounds_epsilon(
                [np.r_[np.full(5, 3.0), np.full(5, signal)]], 1e-5
            )
            for signal in (1e-9, 1e-3)
        )
        assert none == pytest.approx(small, rel=1e-6)

    def test_secrecy_helps_and_more_epochs_hurt(self):
        known = epsilon_two_gaussians(0, 1, 1.5, 1, 1e-3)
        once = unknown_rounds_epsilon([np.full(30, 1.5)], 1e-3)
        twice = unknown_rounds_epsilon([np.full(15, 1.5)] * 2, 1e-3)
        assert (
            once
            < twice
            < epsilon_two_gaussians(0, 1, 1.5 * np.sqrt(2), 1, 1e-3)
        )
        assert once < known

    def test_no_signal_is_no_loss(self):
        assert unknown_rounds_epsilon([np.full(30, 1e-4)], 1e-3) == 0

    def test_from_a_record(self):
        record = limit_record(ShuffledEpochs(60, 1), 0.5, 1e-3)
        estimate = epsilon_from_record(
            record, adversary=Adversary("all", knows_rounds=False)
        )
        exact = unknown_rounds_epsilon([np.full(60, 2.0)], 1e-3)
        assert estimate.low < exact < estimate.high
        assert (
            estimate.high
            < epsilon_from_record(record, adversary=EVERY_ROUND).low
        )

    @pytest.mark.slow
    def test_poisson_meets_its_accountant(self):
        record = limit_record(Poisson(60, 0.1), 0.8, 1e-3)
        estimate = epsilon_from_record(
            record, adversary=Adversary("all", knows_rounds=False)
        )
        assert (
            estimate.low < poisson_epsilon(0.8, 0.1, 60, 1e-3) < estimate.high
        )

    @pytest.mark.parametrize(
        ("epochs", "delta", "message"),
        [
            pytest.param([], 1e-3, "at least one", id="empty"),
            pytest.param(
                [np.array([1.0, np.nan])], 1e-3, "positive and finite", id="nan"
            ),
            pytest.param(
                [np.array([0.0])], 1e-3, "positive and finite", id="zero"
            ),
            pytest.param(
                [np.ones(2)], 0.0, r"delta=0\.0 in \(0, 1\)", id="delta=0"
            ),
        ],
    )
    def test_errors(self, epochs, delta, message):
        with pytest.raises(ValueError, match=message):
            unknown_rounds_epsilon(epochs, delta)


class TestSecretCoins:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("signal", "rate", "rounds", "delta"),
        [
            pytest.param(1.0, 0.5, 8, 1e-5, id="8-rounds"),
            pytest.param(1.0, 0.1, 60, 1e-9, id="60-rounds"),
            pytest.param(0.5, 0.01, 3000, 1e-8, id="rare"),
            pytest.param(0.05, 0.1, 100, 1e-5, id="weak"),
            pytest.param(2.0, 0.999, 10, 1e-5, id="nearly-always"),
        ],
    )
    def test_equal_signals_meet_the_accountant(
        self, signal, rate, rounds, delta, monkeypatch
    ):
        theirs = poisson_epsilon(1 / signal, rate, rounds, delta)
        assert (
            secret_coins_epsilon(np.full(rounds, signal), rate, delta) <= theirs
        )
        monkeypatch.setattr(
            unknown_rounds, "poisson_epsilon", lambda *_: np.inf
        )
        ours = secret_coins_epsilon(np.full(rounds, signal), rate, delta)
        assert ours == pytest.approx(theirs, rel=4e-4)

    def test_large_signals_do_not_overflow(self):
        assert secret_coins_epsilon(
            np.full(40, 8.0), 0.25, 1e-5
        ) == pytest.approx(718.0, rel=1e-4)

    def test_unequal_signals_equal_a_simulation(self):
        """δ at that ε by importance sampling, with no formula but the likelihood ratio.

        Of equal signals of the same root mean square ε is 29.1.
        """
        signals, rate = np.array([0.4, 0.6, 0.8, 1.1, 1.6, 2.2, 3.0, 3.9]), 0.5
        epsilon = secret_coins_epsilon(signals, rate, 1e-5)
        rng, drawn, often = np.random.default_rng(0), 200_000, 0.9
        scores = rng.standard_normal((drawn, 8)) + 1.6 * signals * (
            rng.random((drawn, 8)) < often
        )
        losses, proposed = (
            np.log(1 - q + q * np.exp(a * scores - a**2 / 2)).sum(axis=1)
            for a, q in ((signals, rate), (1.6 * signals, often))
        )
        found = np.maximum(np.exp(losses) - np.exp(epsilon), 0) / np.exp(
            proposed
        )
        error = found.std() / np.sqrt(drawn)
        assert error < 0.01e-5
        assert abs(found.mean() - 1e-5) < 4 * error

    def test_bounds(self):
        assert secret_coins_epsilon(np.full(3, 1e-9), 0.5, 1e-3) == 0
        known = epsilon_two_gaussians(0, 1, 5.0, 1, 1e-3)
        assert secret_coins_epsilon(
            np.array([3.0, 4.0]), 1.0, 1e-3
        ) == pytest.approx(known)
        assert secret_coins_epsilon(np.array([3.0, 4.0]), 0.9, 1e-3) < known

    @pytest.mark.parametrize(
        ("signals", "rate", "delta", "message"),
        [
            pytest.param([], 0.5, 1e-3, "at least one", id="empty"),
            pytest.param(
                [1.0, np.nan], 0.5, 1e-3, "positive and finite", id="nan"
            ),
            pytest.param([1.0], 0.0, 1e-3, "at least one", id="rate=0"),
            pytest.param([1.0], 0.5, 1.0, r"delta=1\.0 in", id="delta=1"),
        ],
    )
    def test_errors(self, signals, rate, delta, message):
        with pytest.raises(ValueError, match=message):
            secret_coins_epsilon(np.array(signals), rate, delta)
