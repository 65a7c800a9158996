"""How exposed the clients of a log are."""

import numpy as np
import pytest
from limit_settings import DELTA, T, epsilon_of_shift, synthetic_log

from fl_epe.limit import exposure
from fl_epe.mechanism import sgd_weights
from fl_epe.reporting import exposure_lines, exposure_tables
from fl_epe.schedules import Capped, presence


class TestExposure:
    @pytest.mark.parametrize("window", [None, 3])
    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_it_is_what_naive_code_finds(self, momentum, window):
        trace, z = synthetic_log(), 0.7
        found = exposure(trace, z, DELTA, window=window, momentum=momentum)
        steps = sgd_weights(np.ones(T), momentum)

        def naive(schedule):
            dense = presence(schedule, trace.population, np.random.default_rng(0))
            final = steps @ dense / (z * np.linalg.norm(steps))
            return dense.sum(axis=0), final, np.sqrt(dense.sum(axis=0)) / z

        times, final, every_round = naive(trace)
        np.testing.assert_array_equal(found.participations, times)
        np.testing.assert_allclose(found.final, final, rtol=1e-12)
        np.testing.assert_allclose(found.every_round, every_round, rtol=1e-12)
        for effect in found.caps:
            limits = {"per_window": effect.cap, "window": window} if window else {}
            left, *scores = naive(Capped(trace, **limits or {"per_run": effect.cap}))
            assert effect.refused == pytest.approx(1 - left.sum() / times.sum())
            assert effect.touched == pytest.approx(np.mean(left < times))
            largest = [epsilon_of_shift(values.max()) for values in scores]
            assert [effect.epsilon_final, effect.epsilon_every_round] == pytest.approx(largest)

    @pytest.mark.parametrize("name", ["final", "every_round"])
    def test_the_noise_under_a_cap_leaves_the_worst_case_where_it_was(self, name):
        trace = synthetic_log()
        found = exposure(trace, 0.7, DELTA, momentum=0.9)
        z = getattr(found.caps[1], f"noise_{name}")
        assert z < 0.7
        again = exposure(trace, z, DELTA, momentum=0.9)
        was = getattr(found.levels()[-1], f"epsilon_{name}")
        assert getattr(again.caps[1], f"epsilon_{name}") == pytest.approx(was, rel=1e-9)

    def test_top_and_levels(self):
        found = exposure(synthetic_log(), 0.7, DELTA, momentum=0.9)
        top, clients = found.top(5), found.trace.clients
        assert [c.every_round for c in top] == sorted(found.every_round, reverse=True)[:5]
        place = list(clients).index(top[0].name)
        assert top[0].participations == found.participations[place]
        assert top[0].epsilon_final == pytest.approx(epsilon_of_shift(found.final[place]))
        assert len(found.top(10**6)) == len(clients)
        mean, median, high, most = found.levels()
        assert mean.epsilon_final == pytest.approx(epsilon_of_shift(found.final.mean()))
        assert median.final in found.final
        assert most.epsilon_final == pytest.approx(epsilon_of_shift(found.final.max()), rel=1e-12)
        assert median.epsilon_every_round <= high.epsilon_every_round <= most.epsilon_every_round
        assert np.mean(found.every_round <= median.every_round) >= 0.5

    @pytest.mark.parametrize("window", [None, 1, 3, T, 100])
    @pytest.mark.parametrize("seed", range(3))
    def test_looser_caps_refuse_less_and_expose_more(self, window, seed):
        trace = synthetic_log(seed)
        whole = exposure(trace, 0.7, DELTA, window=window, momentum=0.9)
        found, limits = whole.caps, [effect.cap for effect in whole.caps]
        assert limits[:-1] == [2**power for power in range(len(limits) - 1)]
        for values, order in (
            ([effect.refused for effect in found], -1),
            ([effect.touched for effect in found], -1),
            ([effect.epsilon_every_round for effect in found], 1),
            ([effect.noise_every_round for effect in found], 1),
        ):
            assert np.all(order * np.diff(values) >= 0)
        # The last is the least that refuses nothing.
        assert found[-1].refused == found[-1].touched == 0
        assert found[-1].noise_final == found[-1].noise_every_round == 0.7
        if limits[-1] > 1:
            tight = limits[-1] - 1
            caps = {"per_run": tight} if window is None else {"per_window": tight, "window": window}
            left = presence(Capped(trace, **caps), trace.population, np.random.default_rng(0))
            assert left.sum() < len(trace.client_ids)
        assert found[-1].epsilon_final == pytest.approx(whole.levels()[-1].epsilon_final)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"noise_multiplier": 0}, "noise_multiplier=0 > 0"),
            ({"noise_multiplier": -1}, "noise_multiplier=-1 >= 0"),
            ({"delta": 0.0}, r"delta=0.0 in \(0, 1\)"),
            ({"window": 0}, "window=0"),
            ({"momentum": 1.0}, "momentum="),
        ],
        ids=["no-noise", "negative-noise", "delta", "window", "momentum"],
    )
    def test_errors(self, changes, message):
        arguments = {"trace": synthetic_log(), "noise_multiplier": 1.0, "delta": DELTA}
        with pytest.raises(ValueError, match=message):
            exposure(**(arguments | changes))

    def test_tables(self):
        found = exposure(synthetic_log(), 0.7, DELTA)
        titles = [str(table.title) for table in exposure_tables(found, 3)]
        assert len(titles) == 3
        assert f"{len(found.participations)} clients" in titles[0]
        assert f"The log has {T} rounds" in exposure_lines(found)[-1]
