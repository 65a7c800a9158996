"""Records drawn from the limit of a large model."""

import numpy as np
import pytest

from fl_epe import epsilon_from_record
from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import (
    EVERY_ROUND,
    Adversary,
    ServerStep,
    scores_of,
    seen_by,
)
from fl_epe.auditing.answer.ladder_fit import ladder_fit
from fl_epe.limit import limit_record
from fl_epe.limit.simulated_record import RealUpdates
from fl_epe.mechanism import sgd_weights
from fl_epe.schedules import Poisson, ShuffledEpochs, Trace
from fl_epe.schedules.sampled import FixedSize

DELTA = 1e-3
T = 30


def test_weights_of_a_decaying_server_are_those_of_its_steps():
    rng = np.random.default_rng(0)
    rates, means = 0.9 ** np.arange(8), rng.standard_normal((8, 5))
    velocity, theta = np.zeros(5), np.zeros(5)
    for rate, mean in zip(rates, means, strict=True):
        velocity = 0.7 * velocity + mean
        theta += rate * velocity
    np.testing.assert_allclose(
        sgd_weights(rates, 0.7) @ means, theta, rtol=1e-12
    )


class TestDecay:
    def test_expected_scores_explain_the_scores(self):
        record = limit_record(
            Poisson(T, 0.2),
            0.3,
            DELTA,
            momentum=0.9,
            learning_rates=0.9 ** np.arange(T),
        )
        assert np.ptp(seen_by(record).expected_scores.observed) > 1
        for sees in ("final", "all"):
            view = seen_by(record, Adversary(sees))
            fit = ladder_fit(view, scores_of(view), confidence=0.999)
            assert fit.low < 1 < fit.high

    def test_deltas_are_those_of_a_server_that_decays(self):
        rates = 2.0 * 0.8 ** np.arange(T)
        record = limit_record(
            ShuffledEpochs(T, 1), 0.3, DELTA, momentum=0.5, learning_rates=rates
        )
        means = record.observed.means * record.norms.means[:, None]
        velocity = np.zeros(record.num_canaries)
        theta = np.zeros(record.num_canaries)
        for t in range(T):
            velocity = 0.5 * velocity + means[t]
            theta += rates[t] * velocity
            cosines = rates[t] * velocity / record.norms.model_updates[t]
            np.testing.assert_allclose(
                record.model_update_cosines()[0][t], cosines, rtol=1e-9
            )
        cosines = theta / record.norms.displacement
        np.testing.assert_allclose(
            record.observed.displacement, cosines, rtol=1e-9
        )

    def test_the_final_model_is_the_sum_of_its_rounds(self):
        # At some lengths the shares of the rounds add up to 1 less a rounding error, whose root
        # must not come in as noise. At which ones depends on the processor.
        for rounds in range(2, 60):
            rates = 0.9 ** np.arange(rounds)
            record = limit_record(
                Poisson(rounds, 0.5),
                0.3,
                DELTA,
                num_canaries=9,
                learning_rates=rates,
            )
            means = record.observed.means * record.norms.means[:, None]
            cosines = rates @ means / record.norms.displacement
            np.testing.assert_allclose(
                record.observed.displacement, cosines, rtol=0, atol=1e-15
            )

    def test_a_constant_factor_changes_nothing(self):
        records = [
            limit_record(
                ShuffledEpochs(T, 2),
                0.3,
                DELTA,
                learning_rates=rate,
                num_canaries=50,
            )
            for rate in (1.0, 0.5)
        ]
        first, second = (
            seen_by(record).expected_scores.observed for record in records
        )
        np.testing.assert_allclose(first, second)

    @pytest.mark.parametrize("rates", [0.0, -1.0, np.ones(T - 1), np.nan])
    def test_errors(self, rates):
        with pytest.raises(ValueError, match="learning_rates"):
            limit_record(ShuffledEpochs(T, 1), 0.3, DELTA, learning_rates=rates)
        with pytest.raises(ValueError, match="momentum=1"):
            limit_record(ShuffledEpochs(T, 1), 0.3, DELTA, momentum=1)


class TestParticipation:
    def test_a_cohort_is_of_canaries_alone(self):
        record = limit_record(FixedSize(400, 0.1), 0.3, DELTA, num_canaries=10)
        assert set(record.presence.sum(axis=1)) == {1}

    def test_a_trace_gives_its_own(self):
        trace = Trace([0, 1, 1, 2], [5, 5, 6, 7])
        record = limit_record(trace, 0.3, DELTA, num_canaries=3)
        assert sorted(record.presence.sum(axis=0)) == [1, 1, 2]
        assert record.mechanism.participation.name == "trace"


class TestRealUpdates:
    def test_round_trip(self):
        rng = np.random.default_rng(1)
        real = RealUpdates(rng.uniform(0.01, 1, T), 3.0)
        record = limit_record(
            Poisson(T, 0.2),
            0.3,
            DELTA,
            clip_norms=np.geomspace(1, 3, T),
            learning_rates=0.5,
            momentum=0.9,
            real=real,
        )
        again = RealUpdates.of(record)
        np.testing.assert_allclose(
            again.every_round, real.every_round, rtol=1e-9
        )
        assert again.final == pytest.approx(real.final)

    def test_a_server_that_never_steps_shows_nothing(self):
        record = limit_record(Poisson(T, 0.2), 0.3, DELTA).with_values(
            server=ServerStep("sgd", np.zeros(T))
        )
        message = r"learning_rates=0.0 of the record > 0 and known"
        with pytest.raises(ValueError, match=message):
            RealUpdates.of(record)

    def test_scores_are_hidden_by_noise_and_updates(self):
        real = RealUpdates(np.full(T, 0.4**2), 0.9**2)
        record = limit_record(
            ShuffledEpochs(T, 1),
            0.3,
            DELTA,
            num_canaries=4000,
            unobserved=4000,
            real=real,
        )
        error = 1 / np.sqrt(4000)
        final = record.observed.displacement * np.sqrt(record.dim)
        assert (
            abs(final.mean() - 1 / np.sqrt(T * (0.3**2 + 0.9**2))) < 4 * error
        )
        for scores in (
            final,
            record.unobserved.displacement * np.sqrt(record.dim),
        ):
            assert abs(scores.std() - 1) < 4 * error
        loud = record.observed.means[record.presence] * np.sqrt(record.dim)
        assert abs(loud.mean() - 1 / 0.5) < 4 * error  # √(0.3² + 0.4²) = 0.5

    def test_updates_alone_hide_canaries(self):
        real = RealUpdates(np.full(T, 1.0), 1.0)
        record = limit_record(ShuffledEpochs(T, 1), 0.0, DELTA, real=real)
        # Real updates act as noise with a multiplier of 1.
        estimate = epsilon_from_record(
            record, adversary=EVERY_ROUND, confidence=0.999
        )
        assert estimate.low < gaussian_epsilon(1.0, DELTA) < estimate.high

    def test_errors(self):
        with pytest.raises(ValueError, match=r"every_round="):
            limit_record(
                Poisson(T, 0.1), 0.3, DELTA, real=RealUpdates(np.ones(3), 1.0)
            )
        with pytest.raises(ValueError, match="noise_multiplier=0"):
            limit_record(
                Poisson(T, 0.1), 0, DELTA, real=RealUpdates(np.zeros(T), 1.0)
            )
        record = limit_record(Poisson(T, 0.1), 0.3, DELTA, num_canaries=20)
        with pytest.raises(ValueError, match="sum_noise_multiplier=None"):
            RealUpdates.of(record.with_values(sum_noise_multiplier=None))


def test_single_participation_is_the_gaussian_mechanism():
    # Expected expected scores, no draws: exactly what theory says.
    for momentum in (0.0, 0.9):
        record = limit_record(
            ShuffledEpochs(T, 1), 0.3, DELTA, num_canaries=T, momentum=momentum
        )
        np.testing.assert_allclose(
            seen_by(record, EVERY_ROUND).expected_scores.observed, 1 / 0.3
        )
        if momentum == 0:
            np.testing.assert_allclose(
                seen_by(record).expected_scores.observed, 1 / (0.3 * np.sqrt(T))
            )
