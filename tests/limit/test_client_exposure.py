"""How exposed the clients of a log are."""

import numpy as np
import pytest
from limit_settings import DELTA, SERVERS, T, epsilon_of_shift, synthetic_log

from fl_epe.auditing import Adversary
from fl_epe.limit import caps, exposure
from fl_epe.mechanism import ServerSGD, sgd_weights
from fl_epe.reporting import exposure_lines, exposure_tables
from fl_epe.schedules import Capped, presence


class TestExposure:
    @pytest.mark.parametrize(
        "cap",
        [{}, {"per_run": 3}, {"per_window": 1, "window": 3}],
        ids=["no-cap", "per-run", "per-window"],
    )
    @pytest.mark.parametrize("name", ["plain", "momentum", "decay"])
    def test_it_is_what_naive_code_finds(self, name, cap):
        settings, trace, z = SERVERS[name], synthetic_log(), 0.7
        found = exposure(trace, z, DELTA, **settings, **cap)
        schedules = [trace] if not cap else [trace, Capped(trace, **cap)]
        server = settings.get("server", ServerSGD())
        rates = server.learning_rate * np.broadcast_to(settings.get("decay", 1.0), T)
        steps = sgd_weights(rates, server.momentum) * settings.get("clip_norms", 1.0)
        for part, schedule in zip((found, found.capped), schedules, strict=False):
            dense = presence(schedule, trace.population, np.random.default_rng(0))
            final = steps @ dense / (z * np.linalg.norm(steps))
            every_round = np.sqrt(dense.sum(axis=0)) / z
            np.testing.assert_array_equal(part.participations, dense.sum(axis=0))
            np.testing.assert_allclose(part.final, final, rtol=1e-12)
            np.testing.assert_allclose(part.every_round, every_round, rtol=1e-12)
            np.testing.assert_allclose(part.epsilon_final, [epsilon_of_shift(m) for m in final])
            np.testing.assert_allclose(
                part.epsilon_every_round, [epsilon_of_shift(m) for m in every_round]
            )
        if not cap:
            assert found.cap is None
            assert found.capped is None
            return
        before, after = found.participations, found.capped.participations
        assert found.cap.refused == pytest.approx(1 - after.sum() / before.sum())
        assert found.cap.touched == pytest.approx(np.mean(after < before))
        for name in ("epsilon_final", "epsilon_every_round"):
            largest = getattr(found.capped, name).max()
            assert getattr(found.cap, name) == pytest.approx(largest, rel=1e-12)

    @pytest.mark.parametrize("sees", ["final", "all"])
    def test_the_noise_under_a_cap_leaves_the_worst_case_where_it_was(self, sees):
        trace, server = synthetic_log(), ServerSGD(1.0, 0.9)
        found = exposure(trace, 0.7, DELTA, per_run=2, server=server)
        name = {"final": "final", "all": "every_round"}[sees]
        z = getattr(found.cap, f"noise_{name}")
        assert z < 0.7
        again = exposure(trace, z, DELTA, per_run=2, server=server)
        was = getattr(found, f"epsilon_{name}").max()
        assert getattr(again.capped, f"epsilon_{name}").max() == pytest.approx(was, rel=1e-9)

    def test_top_and_levels(self):
        found = exposure(synthetic_log(), 0.7, DELTA, server=ServerSGD(1.0, 0.9))
        for sees, name in (("final", "final"), ("all", "every_round")):
            top = found.top(5, Adversary(sees))
            values = [getattr(client, f"epsilon_{name}") for client in top]
            assert values == sorted(getattr(found, f"epsilon_{name}"), reverse=True)[:5]
            assert top[0].name in found.clients
            place = list(found.clients).index(top[0].name)
            assert top[0].participations == found.participations[place]
        assert len(found.top(10**6)) == len(found.clients)
        mean, median, high, most = found.levels()
        assert mean.epsilon_final == pytest.approx(epsilon_of_shift(found.final.mean()))
        assert median.final in found.final
        assert most.epsilon_final == pytest.approx(found.epsilon_final.max(), rel=1e-12)
        assert median.epsilon_every_round <= high.epsilon_every_round <= most.epsilon_every_round
        assert np.mean(found.every_round <= median.every_round) >= 0.5

    @pytest.mark.parametrize("window", [None, 1, 3, T, 100])
    @pytest.mark.parametrize("seed", range(3))
    def test_looser_caps_refuse_less_and_expose_more(self, window, seed):
        trace = synthetic_log(seed)
        found = caps(trace, 0.7, DELTA, window=window, server=ServerSGD(1.0, 0.9))
        name = "per_run" if window is None else "per_window"
        limits = [getattr(effect, name) for effect in found]
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
            (tighter,) = caps(trace, 0.7, DELTA, window=window, limits=[limits[-1] - 1])
            assert tighter.refused > 0
        whole = exposure(trace, 0.7, DELTA, server=ServerSGD(1.0, 0.9))
        assert found[-1].epsilon_final == pytest.approx(whole.epsilon_final.max(), rel=1e-12)

    def test_a_cap_agrees_with_its_row(self):
        trace = synthetic_log()
        (row,) = caps(trace, 0.7, DELTA, limits=[2])
        assert row == exposure(trace, 0.7, DELTA, per_run=2).cap

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            pytest.param(
                {"noise_multiplier": 0}, "noise_multiplier=0 > 0", id="noise_multiplier=0-above-0"
            ),
            pytest.param(
                {"noise_multiplier": -1},
                "noise_multiplier=-1 >= 0",
                id="noise_multiplier=-1-at-least-0",
            ),
            pytest.param({"delta": 0.0}, r"delta=0.0 in \(0, 1\)", id="delta=0.0-in-0,1"),
            pytest.param({"per_run": 0}, "per_run=0", id="per_run=0"),
            pytest.param(
                {"window": 3},
                "per_run=None and per_window=None",
                id="per_run=None-and-per_window=None",
            ),
            pytest.param(
                {"per_window": 3}, "per_window=3 and window=None", id="per_window=3-and-window=None"
            ),
            pytest.param({"clip_norms": [1.0, 2.0]}, "clip_norms=", id="clip_norms="),
        ],
    )
    def test_errors(self, changes, message):
        arguments = {"trace": synthetic_log(), "noise_multiplier": 1.0, "delta": DELTA}
        with pytest.raises(ValueError, match=message):
            exposure(**(arguments | changes))
        with pytest.raises(ValueError, match="window=0"):
            caps(synthetic_log(), 1.0, DELTA, window=0)

    def test_tables(self):
        found = exposure(synthetic_log(), 0.7, DELTA, per_run=2)
        titles = [
            table.title for table in exposure_tables(found, caps(synthetic_log(), 0.7, DELTA), 3)
        ]
        assert len(titles) == 4
        assert f"{len(found.clients)} clients" in str(titles[0])
        assert "At most 2 a run" in exposure_lines(found)[0]
