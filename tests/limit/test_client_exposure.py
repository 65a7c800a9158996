"""How exposed the clients of a log are."""

import numpy as np
import pytest
from limit_settings import DELTA, T, epsilon_of_shift, synthetic_log

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import Adversary, AuditedClient, client_epsilon, seen_by
from fl_epe.limit import exposure, exposure_lines, exposure_tables, limit_record
from fl_epe.mechanism import sgd_weights
from fl_epe.schedules import Capped, Trace, presence

SEES = pytest.mark.parametrize("sees", ["final", "all"])


class TestExposure:
    @SEES
    @pytest.mark.parametrize("window", [None, 3])
    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_it_is_what_naive_code_finds(self, momentum, window, sees):
        trace, z = synthetic_log(), 0.7
        found = exposure(
            trace, z, DELTA, sees=sees, window=window, momentum=momentum
        )
        steps = sgd_weights(np.ones(T), momentum)

        def naive(schedule):
            dense = presence(
                schedule, trace.population, np.random.default_rng(0)
            )
            final = steps @ dense / (z * np.linalg.norm(steps))
            times = dense.sum(axis=0)
            return times, final if sees == "final" else np.sqrt(times) / z

        times, scores = naive(trace)
        np.testing.assert_array_equal(found.participations, times)
        np.testing.assert_allclose(found.expected_scores, scores, rtol=1e-8)
        for effect in found.caps:
            limits = (
                {"per_window": effect.cap, "window": window} if window else {}
            )
            left, scores = naive(
                Capped(trace, **limits or {"per_run": effect.cap})
            )
            assert effect.refused == pytest.approx(1 - left.sum() / times.sum())
            assert effect.touched == pytest.approx(np.mean(left < times))
            assert effect.epsilon == pytest.approx(
                epsilon_of_shift(scores.max())
            )

    @SEES
    def test_the_noise_under_a_cap_leaves_the_worst_case_where_it_was(
        self, sees
    ):
        trace, options = synthetic_log(), {"sees": sees, "momentum": 0.9}
        found = exposure(trace, 0.7, DELTA, **options)
        z = found.caps[1].noise_multiplier
        assert z < 0.7
        again = exposure(trace, z, DELTA, **options)
        assert again.caps[1].epsilon == pytest.approx(
            found.top(1)[0].epsilon, rel=1e-6
        )

    @SEES
    def test_the_median_client_is_that_of_a_run(self, sees):
        trace = synthetic_log()
        found = exposure(trace, 0.7, DELTA, sees=sees)
        record = limit_record(trace, 0.7, DELTA, beside=trace.population)
        client, view = (
            AuditedClient.of(record),
            seen_by(record, Adversary(sees)),
        )
        assert found.median.participations == np.quantile(
            found.participations, 0.5, method="lower"
        )
        assert found.median.epsilon == pytest.approx(
            client_epsilon(view, client, 1.0, DELTA)
        )
        assert found.median.analytical >= found.median.epsilon * (1 - 1e-6)

    def test_top(self):
        found = exposure(synthetic_log(), 0.7, DELTA, momentum=0.9)
        top, clients = found.top(5), found.trace.clients
        place = list(clients).index(top[0].name)
        assert top[0].participations == found.participations[place]
        assert top[0].epsilon == pytest.approx(
            epsilon_of_shift(found.expected_scores.max())
        )
        assert [c.epsilon for c in top] == sorted(
            [c.epsilon for c in top], reverse=True
        )
        assert top[0].analytical == gaussian_epsilon(
            0.7, DELTA, top[0].participations
        )
        assert len(found.top(10**6)) == len(clients)

    @pytest.mark.parametrize("window", [None, 1, 3, T, 100])
    @pytest.mark.parametrize("seed", range(3))
    def test_looser_caps_refuse_less_and_expose_more(self, window, seed):
        trace = synthetic_log(seed)
        whole = exposure(trace, 0.7, DELTA, sees="all", window=window)
        found, limits = whole.caps, [effect.cap for effect in whole.caps]
        assert limits[:-1] == [2**power for power in range(len(limits) - 1)]
        for values, order in (
            ([effect.refused for effect in found], -1),
            ([effect.touched for effect in found], -1),
            ([effect.epsilon for effect in found], 1),
            ([effect.noise_multiplier for effect in found], 1),
        ):
            assert np.all(order * np.diff(values) >= 0)
        # The last is the least that refuses nothing.
        assert found[-1].refused == found[-1].touched == 0
        assert found[-1].noise_multiplier == 0.7
        if limits[-1] > 1:
            tight = limits[-1] - 1
            caps = (
                {"per_run": tight}
                if window is None
                else {"per_window": tight, "window": window}
            )
            left = presence(
                Capped(trace, **caps),
                trace.population,
                np.random.default_rng(0),
            )
            assert left.sum() < len(trace.client_ids)
        assert found[-1].epsilon == pytest.approx(whole.top(1)[0].epsilon)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"noise_multiplier": 0}, "noise_multiplier=0 > 0"),
            ({"noise_multiplier": -1}, "noise_multiplier=-1 > 0"),
            ({"delta": 0.0}, r"delta=0.0 in \(0, 1\)"),
            ({"window": 0}, "window=0"),
            ({"momentum": 1.0}, "momentum="),
        ],
        ids=["no-noise", "negative-noise", "delta", "window", "momentum"],
    )
    def test_errors(self, changes, message):
        arguments = {
            "trace": synthetic_log(),
            "noise_multiplier": 1.0,
            "delta": DELTA,
        }
        with pytest.raises(ValueError, match=message):
            exposure(**(arguments | changes))

    def test_tables(self):
        found = exposure(synthetic_log(), 0.7, DELTA)
        titles = [str(table.title) for table in exposure_tables(found, 3)]
        assert len(titles) == 2
        assert f"{len(found.participations)} clients" in titles[0]
        lines = exposure_lines(found)
        assert (
            "sees the final model and knows the client's rounds; zero-out"
            in lines[0]
        )
        gaps = exposure(Trace([0, 3], [1, 2]), 0.7, DELTA)
        assert exposure_lines(gaps) == [
            *lines,
            "• The log has 4 rounds; 2 have clients.",
        ]
