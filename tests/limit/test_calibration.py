"""The noise for a target ε."""

import math

import numpy as np
import pytest
from limit_settings import DELTA, REAL, SERVERS, T, epsilon_of_shift, expected_scores

from fl_epe import delta_two_gaussians, epsilon_from_record, epsilon_two_gaussians
from fl_epe.auditing import EVERY_ROUND, STATISTICS, Adversary, average_case_client, seen_by
from fl_epe.limit import limit_record, noise_for_epsilon
from fl_epe.limit.simulated_record import RealUpdates, limit_weights
from fl_epe.reporting import advice_lines
from fl_epe.schedules import Capped, Poisson, ShuffledEpochs, Trace
from fl_epe.schedules.sampled import FixedSize, MinSeparation


class TestExpectedScores:
    @pytest.mark.parametrize("settings", SERVERS.values(), ids=SERVERS)
    @pytest.mark.parametrize("population", [None, 500])
    def test_they_are_those_of_the_record(self, settings, population):
        schedule = Poisson(T, 0.2)
        options = {"num_canaries": 60, "population": population, "seed": 7, **settings}
        final, every_round = expected_scores(schedule, 0.4, **options)
        record = limit_record(schedule, 0.4, DELTA, unobserved=0, **options)
        np.testing.assert_allclose(final, seen_by(record).expected_scores, rtol=1e-8)
        present = record.presence.any(axis=0)
        np.testing.assert_allclose(
            every_round[present], seen_by(record, EVERY_ROUND).expected_scores, rtol=1e-8
        )
        assert not np.any(every_round[~present])

    def test_of_a_trace(self):
        trace = Trace(np.array([0, 0, 1, 3]), np.array([5, 6, 6, 7]))
        final, every_round = expected_scores(trace, 0.5, num_canaries=30)
        record = limit_record(trace, 0.5, DELTA, num_canaries=30, unobserved=0)
        np.testing.assert_allclose(final, seen_by(record).expected_scores, rtol=1e-8)
        np.testing.assert_allclose(
            every_round, seen_by(record, EVERY_ROUND).expected_scores, rtol=1e-8
        )


class TestNoise:
    @pytest.mark.parametrize(
        "shift", [0.5, 40.0, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.05, 3.0))]
    )
    @pytest.mark.parametrize("worst_case", [False, True], ids=["random", "worst-case"])
    def test_one_participation_is_one_gaussian_mechanism(self, shift, worst_case):
        schedule = ShuffledEpochs(2048, 1)
        for sees, exact in (("final", 1 / (shift * np.sqrt(2048))), ("all", 1 / shift)):
            advice = noise_for_epsilon(
                schedule,
                epsilon_of_shift(shift),
                DELTA,
                adversary=Adversary(sees),
                worst_case=worst_case,
                num_canaries=64,
            )
            assert advice.noise_multiplier == pytest.approx(exact, rel=1e-6)
            assert advice.participations == 1

    @pytest.mark.parametrize(
        "target", [1.0, *(pytest.param(e, marks=pytest.mark.slow) for e in (1e-6, 1e-2, 30.0, 1e5))]
    )
    @pytest.mark.parametrize("settings", SERVERS.values(), ids=SERVERS)
    def test_epsilon_of_the_noise_is_the_target_or_a_little_less(self, target, settings):
        for sees in ("final", "all"):
            advice = noise_for_epsilon(
                Poisson(T, 0.3),
                target,
                DELTA,
                adversary=Adversary(sees),
                num_canaries=40,
                **settings,
            )
            assert advice.epsilon <= target
            if advice.noise_multiplier:
                assert advice.epsilon == pytest.approx(target, rel=1e-5)
            assert advice.measured_low <= advice.epsilon <= advice.measured_high

    @pytest.mark.parametrize("sees", ["final", "all"])
    @pytest.mark.parametrize("settings", SERVERS.values(), ids=SERVERS)
    @pytest.mark.parametrize(
        "schedule", [Poisson(T, 0.3), ShuffledEpochs(T, 2.5), MinSeparation(T, 0.25, 3)]
    )
    def test_the_limit_measures_the_target(self, schedule, settings, sees):
        target = 4.0
        advice = noise_for_epsilon(schedule, target, DELTA, adversary=Adversary(sees), **settings)
        record = limit_record(
            schedule, advice.noise_multiplier, DELTA, unobserved=0, seed=3, **settings
        )
        four_errors = math.erf(4 / math.sqrt(2))
        client = average_case_client(seen_by(record, Adversary(sees)), confidence=four_errors)
        assert client.known.low <= target
        if advice.noise_multiplier:
            assert target <= client.known.high

    @pytest.mark.parametrize("sees", ["final", "all"])
    def test_a_client_drawn_at_random_and_the_worst_case_have_the_target(self, sees):
        schedule, runs = Poisson(T, 0.3), 60
        average, worst = (
            noise_for_epsilon(
                schedule, 4.0, DELTA, adversary=Adversary(sees), worst_case=of_all, population=200
            ).noise_multiplier
            for of_all in (False, True)
        )
        assert average < worst
        sizes = np.array(
            [
                expected_scores(schedule, 1.0, num_canaries=200, seed=seed)[sees == "all"]
                for seed in range(runs)
            ]
        )
        deltas = delta_two_gaussians(0, 1, sizes / average, 1, 4.0)
        error = deltas.std() / np.sqrt(deltas.size)  # of their mean
        assert abs(deltas.mean() - DELTA) < 3 * error
        above = np.mean(sizes.max(axis=1) / worst > 1.001 * np.interp(4.0, *_curve()))
        assert above <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)

    def test_the_worst_case_of_more_clients_needs_more_noise(self):
        few, many = (
            noise_for_epsilon(
                FixedSize(T, 0.25), 2.0, DELTA, worst_case=True, population=population
            )
            for population in (400, 10**6)
        )
        assert few.noise_multiplier < many.noise_multiplier
        assert few.participations < many.participations

    def test_clients_are_drawn_where_there_is_no_law(self):
        schedule = Capped(Poisson(T, 0.3), per_window=1, window=3)
        advice = noise_for_epsilon(schedule, 2.0, DELTA, population=400)
        assert advice.epsilon == pytest.approx(2.0, rel=1e-5)
        assert any("were drawn" in note for note in advice.notes)

    def test_a_run_reports_the_interval_that_is_announced(self):
        schedule = ShuffledEpochs(T, 2)
        advice = noise_for_epsilon(schedule, 3.0, DELTA, num_canaries=500)
        record = limit_record(
            schedule, advice.noise_multiplier, DELTA, num_canaries=500, unobserved=0, seed=1
        )
        found = epsilon_from_record(record)
        width = advice.measured_high - advice.measured_low
        assert found.high - found.low == pytest.approx(width, rel=0.05)
        assert found.low - width < advice.measured_low < found.high

    def test_no_noise_where_real_updates_hide_well_enough(self):
        real = RealUpdates(np.r_[0.0, np.full(T - 1, 0.1)], 50.0)
        advice = noise_for_epsilon(Poisson(T, 0.3), 5.0, DELTA, real=real)
        assert advice.noise_multiplier == 0
        assert 0 < advice.epsilon < 5
        assert any("Without noise there is no guarantee" in note for note in advice.notes)
        # In the first round there is no residual for who sees every round.
        every_round = noise_for_epsilon(
            Poisson(T, 0.3), 5.0, DELTA, adversary=EVERY_ROUND, real=real
        )
        assert every_round.noise_multiplier > 0

    def test_real_updates_take_noise_off(self):
        kinds = [noise_for_epsilon(Poisson(T, 0.3), 2.0, DELTA, real=r) for r in (None, REAL)]
        bare, with_real = (advice.noise_multiplier for advice in kinds)
        assert with_real == pytest.approx(np.sqrt(bare**2 - REAL.final), rel=1e-9)
        assert "held as they were measured" in " ".join(kinds[1].notes)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            pytest.param({"target_epsilon": 0}, "target_epsilon=0 in", id="target_epsilon=0-in"),
            pytest.param(
                {"target_epsilon": np.inf}, "target_epsilon=inf in", id="target_epsilon=inf-in"
            ),
            pytest.param(
                {"target_epsilon": np.nan}, "target_epsilon=nan in", id="target_epsilon=nan-in"
            ),
            pytest.param({"delta": 1.0}, r"delta=1.0 in \(0, 1\)", id="delta=1.0-in-0,1"),
            pytest.param(
                {"adversary": STATISTICS["full-knowledge"]}, "knows_others=True", id="knows-others"
            ),
            pytest.param(
                {"num_canaries": 1}, "num_canaries=1 >= 2", id="num_canaries=1-at-least-2"
            ),
            pytest.param({"confidence": 95}, "confidence=95", id="confidence=95"),
            pytest.param({"clip_norms": np.ones(3)}, "clip_norms=", id="clip_norms="),
            pytest.param(
                {"real": RealUpdates(np.ones(3), 1.0)}, "real.every_round=", id="real.every_round="
            ),
            pytest.param(
                {"schedule": Poisson(T, 1e-9)},
                "num_canaries=2000 to be enough that some take part",
                id="num_canaries=2000-to-be-enough-that-some-take-part",
            ),
        ],
    )
    def test_errors(self, changes, message):
        arguments = {"schedule": Poisson(T, 0.3), "target_epsilon": 1.0, "delta": DELTA}
        with pytest.raises(ValueError, match=message):
            noise_for_epsilon(**(arguments | changes))

    def test_lines(self):
        advice = noise_for_epsilon(Poisson(T, 0.3), 1.0, DELTA, worst_case=True, num_canaries=50)
        text = "\n".join(advice_lines(advice))
        for part in ("z = ", "95% interval", "δ = 1e-05", "50 canaries", "takes part at most"):
            assert part in text
        shown = float(text.split("z = ")[1].split()[0])
        assert 0 <= shown / advice.noise_multiplier - 1 < 1e-3


def _curve():
    shifts = np.linspace(0.01, 5, 4000)
    return np.asarray(epsilon_two_gaussians(0, 1, shifts, 1, DELTA)), shifts


def test_weights_do_not_depend_on_the_cohort():
    final, every_round = limit_weights(T, 0.5, learning_rates=2.0, clip_norms=3.0)
    np.testing.assert_allclose(final, 1 / (0.5 * np.sqrt(T)))
    np.testing.assert_allclose(every_round, 4.0)
