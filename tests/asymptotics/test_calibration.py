"""Noise for a wanted ε, and who of a log is most exposed: against closed forms and naive code."""

import csv
import json

import numpy as np
import pytest

from fl_epe import epsilon_from_record, epsilon_two_gaussians
from fl_epe.asymptotics import (
    RealUpdates,
    caps,
    exposure,
    limit_footprints,
    limit_record,
    limit_weights,
    noise_for_epsilon,
)
from fl_epe.auditing import footprints, scores_from_record
from fl_epe.cli.main import main
from fl_epe.mechanism import ServerSGD, sgd_weights
from fl_epe.reporting import advice_lines, exposure_lines, exposure_tables
from fl_epe.schedules import (
    Capped,
    FixedSize,
    MinSeparation,
    Poisson,
    ShuffledEpochs,
    Trace,
    presence,
)

DELTA = 1e-5
T = 12
REAL = RealUpdates(np.linspace(0.1, 0.3, T), 2.0)
SERVERS = {
    "plain": {},
    "momentum": {"server": ServerSGD(0.3, 0.9), "clip_norms": np.linspace(1, 2, T)},
    "decay": {"server": ServerSGD(1.0, 0.5), "decay": 0.8 ** np.arange(T)},
    "real": {"server": ServerSGD(1.0, 0.9), "real": REAL},
}


def _epsilon(shift):
    return float(epsilon_two_gaussians(0, 1, shift, 1, DELTA))


class TestFootprints:
    @pytest.mark.parametrize("settings", SERVERS.values(), ids=SERVERS)
    @pytest.mark.parametrize("population", [None, 500])
    def test_they_are_those_of_the_record(self, settings, population):
        schedule = Poisson(T, 0.2)
        options = {"num_canaries": 60, "population": population, "seed": 7, **settings}
        final, every_round = limit_footprints(schedule, 0.4, **options)
        record = limit_record(schedule, 0.4, DELTA, unobserved=0, **options)
        np.testing.assert_allclose(final, footprints(record, "final"), rtol=1e-12)
        present = record.presence.any(axis=0)
        np.testing.assert_allclose(every_round[present], footprints(record, "all"), rtol=1e-12)
        assert not np.any(every_round[~present])

    def test_of_a_trace(self):
        trace = Trace(np.array([0, 0, 1, 3]), np.array([5, 6, 6, 7]))
        final, every_round = limit_footprints(trace, 0.5, num_canaries=30)
        record = limit_record(trace, 0.5, DELTA, num_canaries=30, unobserved=0)
        np.testing.assert_allclose(final, footprints(record, "final"), rtol=1e-12)
        np.testing.assert_allclose(every_round, footprints(record, "all"), rtol=1e-12)


class TestNoise:
    @pytest.mark.parametrize("shift", [0.05, 0.5, 3.0, 40.0])
    @pytest.mark.parametrize("who", ["mean", "most-exposed"])
    def test_one_participation_is_one_gaussian_mechanism(self, shift, who):
        schedule = ShuffledEpochs(2048, 1)
        for threat, exact in (("final", 1 / (shift * np.sqrt(2048))), ("all", 1 / shift)):
            advice = noise_for_epsilon(
                schedule, _epsilon(shift), DELTA, threat=threat, who=who, num_canaries=64
            )
            assert advice.noise_multiplier == pytest.approx(exact, rel=1e-6)
            assert advice.low == pytest.approx(advice.high, rel=1e-9)
            assert advice.participations == 1

    @pytest.mark.parametrize("target", [1e-6, 1e-2, 1.0, 30.0, 1e5])
    @pytest.mark.parametrize("settings", SERVERS.values(), ids=SERVERS)
    def test_epsilon_of_the_noise_is_the_target_or_a_little_less(self, target, settings):
        for threat in ("final", "all"):
            advice = noise_for_epsilon(
                Poisson(T, 0.3), target, DELTA, threat=threat, num_canaries=40, **settings
            )
            assert advice.epsilon <= target
            if advice.noise_multiplier:
                assert advice.epsilon == pytest.approx(target, rel=1e-5)
                assert advice.low <= advice.noise_multiplier <= advice.high
            assert advice.measured_low <= advice.epsilon <= advice.measured_high

    @pytest.mark.parametrize("threat", ["final", "all"])
    @pytest.mark.parametrize("settings", SERVERS.values(), ids=SERVERS)
    @pytest.mark.parametrize(
        "schedule", [Poisson(T, 0.3), ShuffledEpochs(T, 2.5), MinSeparation(T, 0.25, 3)]
    )
    def test_the_limit_measures_the_target(self, schedule, settings, threat):
        target = 4.0
        advice = noise_for_epsilon(schedule, target, DELTA, threat=threat, **settings)
        record = limit_record(
            schedule, advice.noise_multiplier, DELTA, unobserved=0, seed=3, **settings
        )
        scores = scores_from_record(record, threat, _STATISTIC[threat]).observed
        # Both the advice and the run draw the schedule; the run's scores have noise of their own.
        variance = scores.var(ddof=1)
        error = np.sqrt(variance / len(scores) + max(variance - 1, 0) / advice.num_canaries)
        middle = scores.mean()
        slope = (_epsilon(middle + 1e-4) - _epsilon(middle - 1e-4)) / 2e-4
        measured = epsilon_from_record(record, threat=threat).epsilon
        if advice.noise_multiplier:
            assert abs(measured - target) < 4 * slope * error
        else:
            assert measured < target + 4 * slope * error

    @pytest.mark.parametrize("threat", ["final", "all"])
    def test_the_most_exposed_of_the_limit_has_the_target(self, threat):
        schedule = Poisson(T, 0.3)
        advice = noise_for_epsilon(
            schedule, 4.0, DELTA, threat=threat, who="most-exposed", num_canaries=200
        )
        largest = np.array(
            [
                limit_footprints(
                    schedule, advice.noise_multiplier, num_canaries=200, seed=100 + seed
                )[threat == "all"].max()
                for seed in range(40)
            ]
        )
        error = largest.std(ddof=1) * np.sqrt(1 / 40 + 1 / 16)  # of these draws, and the advice's
        wanted = np.interp(4.0, *_curve())
        assert abs(largest.mean() - wanted) < 4 * error
        mean = noise_for_epsilon(schedule, 4.0, DELTA, threat=threat, num_canaries=200)
        assert mean.noise_multiplier < advice.noise_multiplier
        assert mean.participations < advice.participations

    def test_the_interval_covers_the_exact_noise(self):
        rate, server = 0.2, ServerSGD(1.0, 0.9)
        weights = sgd_weights(np.ones(T), 0.9)
        exact = rate * weights.sum() / np.linalg.norm(weights) / 0.8
        runs = 150
        inside = 0
        for seed in range(runs):
            advice = noise_for_epsilon(
                Poisson(T, rate), _epsilon(0.8), DELTA, num_canaries=150, server=server, seed=seed
            )
            inside += advice.low <= exact <= advice.high
        assert abs(inside / runs - 0.95) < 3 * np.sqrt(0.95 * 0.05 / runs)

    def test_the_interval_of_the_most_exposed_covers_its_mean(self):
        schedule, canaries, runs = Poisson(T, 0.3), 30, 60
        largest = [
            limit_footprints(schedule, 1.0, num_canaries=canaries, seed=5000 + seed)[0].max()
            for seed in range(1000)
        ]
        exact = np.mean(largest) / 0.8
        inside = 0
        for seed in range(runs):
            advice = noise_for_epsilon(
                schedule, _epsilon(0.8), DELTA, who="most-exposed", num_canaries=canaries, seed=seed
            )
            inside += advice.low <= exact <= advice.high
        assert abs(inside / runs - 0.95) < 3 * np.sqrt(0.95 * 0.05 / runs)

    def test_fixed_cohorts_leave_nothing_open_and_the_interval_is_too_wide(self):
        schedule = FixedSize(T, 0.25)
        advice = [
            noise_for_epsilon(schedule, 4.0, DELTA, num_canaries=80, seed=s) for s in range(3)
        ]
        for one in advice:
            assert one.noise_multiplier == pytest.approx(advice[0].noise_multiplier, rel=1e-9)
            assert one.high > 1.05 * one.low

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
        assert (advice.noise_multiplier, advice.low, advice.high) == (0, 0, 0)
        assert 0 < advice.epsilon < 5
        assert any("Without noise there is no guarantee" in note for note in advice.notes)
        # In the first round nothing hides a canary from who sees every round.
        every_round = noise_for_epsilon(Poisson(T, 0.3), 5.0, DELTA, threat="all", real=real)
        assert every_round.noise_multiplier > 0

    def test_real_updates_take_noise_off(self):
        kinds = [noise_for_epsilon(Poisson(T, 0.3), 2.0, DELTA, real=r) for r in (None, REAL)]
        bare, hidden = (advice.noise_multiplier for advice in kinds)
        assert hidden == pytest.approx(np.sqrt(bare**2 - REAL.final), rel=1e-9)
        assert "held as they were measured" in " ".join(kinds[1].notes)

    @pytest.mark.parametrize("who", ["mean", "most-exposed"])
    def test_a_schedule_for_many_clients(self, who):
        advice = [
            noise_for_epsilon(
                FixedSize(T, 0.25), 2.0, DELTA, who=who, num_canaries=400, population=population
            ).noise_multiplier
            for population in (None, 20_000)
        ]
        assert advice[0] == pytest.approx(advice[1], rel=0.2)

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
            pytest.param({"threat": "some"}, "threat='some'", id="threat=some"),
            pytest.param({"who": "worst"}, "who='worst'", id="who=worst"),
            pytest.param(
                {"num_canaries": 1}, "num_canaries=1 >= 2", id="num_canaries=1-at-least-2"
            ),
            pytest.param({"confidence": 95}, "confidence=95", id="confidence=95"),
            pytest.param(
                {"population": 5},
                "population=5 >= num_canaries=2000",
                id="population=5-at-least-num_canaries=2000",
            ),
            pytest.param({"clip_norms": np.ones(3)}, "clip_norms.shape", id="clip_norms.shape"),
            pytest.param(
                {"real": RealUpdates(np.ones(3), 1.0)},
                "real.every_round.shape",
                id="real.every_round.shape",
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
        advice = noise_for_epsilon(Poisson(T, 0.3), 1.0, DELTA, who="most-exposed", num_canaries=50)
        text = "\n".join(advice_lines(advice))
        for part in ("z = ", "95% interval", "δ = 1e-05", "50 canaries", "not a guarantee"):
            assert part in text
        shown = float(text.split("z = ")[1].split(" ")[0])
        assert 0 <= shown / advice.noise_multiplier - 1 < 1e-3


_STATISTIC = {"final": "displacement", "all": "matched-filter"}


def _curve():
    shifts = np.linspace(0.01, 5, 4000)
    return np.asarray(epsilon_two_gaussians(0, 1, shifts, 1, DELTA)), shifts


def _log(seed=0, rounds=T, clients=40):
    """A log in which some take part far more often than others."""
    rng = np.random.default_rng(seed)
    there = rng.random((rounds, clients)) < rng.beta(0.5, 1.5, clients)
    there[0, 0] = there[-1, 0] = True
    when, who = np.nonzero(there)
    return Trace(when, who)


CLIENTS = _log().population


class TestExposure:
    @pytest.mark.parametrize(
        "cap",
        [{}, {"per_run": 3}, {"per_window": 1, "window": 3}],
        ids=["no-cap", "per-run", "per-window"],
    )
    @pytest.mark.parametrize("name", ["plain", "momentum", "decay"])
    def test_it_is_what_naive_code_finds(self, name, cap):
        settings, trace, z = SERVERS[name], _log(), 0.7
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
            np.testing.assert_allclose(part.epsilon_final, [_epsilon(m) for m in final])
            np.testing.assert_allclose(part.epsilon_every_round, [_epsilon(m) for m in every_round])
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

    @pytest.mark.parametrize("threat", ["final", "all"])
    def test_the_noise_under_a_cap_leaves_the_most_exposed_where_it_was(self, threat):
        trace, server = _log(), ServerSGD(1.0, 0.9)
        found = exposure(trace, 0.7, DELTA, per_run=2, server=server)
        name = {"final": "final", "all": "every_round"}[threat]
        z = getattr(found.cap, f"noise_{name}")
        assert z < 0.7
        again = exposure(trace, z, DELTA, per_run=2, server=server)
        was = getattr(found, f"epsilon_{name}").max()
        assert getattr(again.capped, f"epsilon_{name}").max() == pytest.approx(was, rel=1e-9)

    def test_top_and_levels(self):
        found = exposure(_log(), 0.7, DELTA, server=ServerSGD(1.0, 0.9))
        for threat, name in (("final", "final"), ("all", "every_round")):
            top = found.top(5, threat)
            values = [getattr(client, f"epsilon_{name}") for client in top]
            assert values == sorted(getattr(found, f"epsilon_{name}"), reverse=True)[:5]
            assert top[0].name in found.clients
            place = list(found.clients).index(top[0].name)
            assert top[0].participations == found.participations[place]
        assert len(found.top(10**6)) == len(found.clients)
        mean, median, high, most = found.levels()
        assert mean.epsilon_final == pytest.approx(_epsilon(found.final.mean()))
        assert median.final in found.final
        assert most.epsilon_final == pytest.approx(found.epsilon_final.max(), rel=1e-12)
        assert median.epsilon_every_round <= high.epsilon_every_round <= most.epsilon_every_round
        assert np.mean(found.every_round <= median.every_round) >= 0.5

    @pytest.mark.parametrize("window", [None, 1, 3, T, 100])
    @pytest.mark.parametrize("seed", range(3))
    def test_looser_caps_refuse_less_and_expose_more(self, window, seed):
        trace = _log(seed)
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
        trace = _log()
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
            pytest.param({"clip_norms": [1.0, 2.0]}, "clip_norms.shape", id="clip_norms.shape"),
        ],
    )
    def test_errors(self, changes, message):
        arguments = {"trace": _log(), "noise_multiplier": 1.0, "delta": DELTA}
        with pytest.raises(ValueError, match=message):
            exposure(**(arguments | changes))
        with pytest.raises(ValueError, match="threat='both'"):
            exposure(_log(), 1.0, DELTA).order("both")
        with pytest.raises(ValueError, match="window=0"):
            caps(_log(), 1.0, DELTA, window=0)

    def test_tables(self):
        found = exposure(_log(), 0.7, DELTA, per_run=2)
        titles = [table.title for table in exposure_tables(found, caps(_log(), 0.7, DELTA), 3)]
        assert len(titles) == 4
        assert f"{len(found.clients)} clients" in titles[0]
        assert "At most 2 a run" in exposure_lines(found)[0]


def test_weights_do_not_depend_on_the_cohort():
    final, every_round = limit_weights(T, 0.5, server=ServerSGD(2.0, 0.0), clip_norms=3.0)
    np.testing.assert_allclose(final, 1 / (0.5 * np.sqrt(T)))
    np.testing.assert_allclose(every_round, 4.0)


class TestCommandLine:
    @pytest.fixture
    def log(self, tmp_path):
        trace = _log()
        path = tmp_path / "log.csv"
        rows = [f"{t},phone-{c}\n" for t, c in zip(trace.round_ids, trace.client_ids, strict=True)]
        path.write_text("round,client_id\n" + "".join(rows))
        return path

    def _json(self, capsys, *arguments):
        assert main(["advise", *map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    def test_noise(self, capsys):
        common = ("noise", "--target-epsilon", 1, "--rounds", 50, "--num-canaries", 100)
        assert main(["advise", *map(str, common)]) == 0
        printed = capsys.readouterr().out
        for part in ("Noise multiplier z = ", "who takes part once", "Theory guarantees ε ≤"):
            assert part in printed
        found = self._json(capsys, *common, "--clients", 300, "--momentum", 0.9)
        direct = noise_for_epsilon(
            ShuffledEpochs(50, 1),
            1.0,
            300**-1.1,
            num_canaries=100,
            population=300,
            server=ServerSGD(1.0, 0.9),
        )
        assert found["noise_multiplier"] == direct.noise_multiplier
        assert found["delta"] == 300**-1.1
        assert found["analytical"][0]["rounds_known"]

    def test_noise_for_a_run_like_another_is_that_runs_noise(self, tmp_path, capsys):
        settings = SERVERS["real"] | {"clip_norms": np.linspace(1, 2, T)}
        record = limit_record(
            Poisson(T, 0.25), 0.4, 1e-3, num_canaries=50, unobserved=0, **settings
        )
        record.save(tmp_path / "record.npz")
        for threat, place in (("final", 0), ("all", 1)):
            scores = limit_footprints(Poisson(T, 0.25), 0.4, num_canaries=20_000, **settings)[place]
            mean = scores[scores > 0].mean() if threat == "all" else scores.mean()
            target = float(epsilon_two_gaussians(0, 1, mean, 1, 1e-3))
            found = self._json(
                capsys, "noise", "--like", tmp_path, "--threat", threat, "--target-epsilon", target
            )
            assert found["delta"] == 1e-3
            width = found["high"] - found["low"]
            assert abs(found["noise_multiplier"] - 0.4) < width

    def test_a_run_like_another_has_as_many_rounds(self, tmp_path, capsys):
        record = limit_record(Poisson(T, 0.5), 0.4, 1e-3, num_canaries=20, unobserved=0)
        record.save(tmp_path / "record.npz")
        arguments = f"noise --target-epsilon 1 --rounds 7 --like {tmp_path}"
        assert main(["advise", *arguments.split()]) == 2
        assert f"rounds=7 to be {T}" in capsys.readouterr().err

    def test_noise_of_a_log(self, log, capsys):
        found = self._json(
            capsys, "noise", "--target-epsilon", 2, "--participation", f"trace:path={log}",
            "--num-canaries", CLIENTS,
        )  # fmt: skip
        whole = exposure(Trace.read(log), found["noise_multiplier"], found["delta"])
        assert whole.levels()[0].epsilon_final == pytest.approx(2, rel=1e-6)
        assert found["delta"] == CLIENTS**-1.1

    def test_log(self, log, tmp_path, capsys):
        out = tmp_path / "clients.csv"
        arguments = ["log", log, "--noise-multiplier", 0.7, "--per-run", 2, "--csv", out]
        assert main(["advise", *map(str, arguments), "--top", "3"]) == 0
        printed = capsys.readouterr().out
        for part in ("99th percentile", "Most exposed", "With the cap", "Caps:", "phone-"):
            assert part in printed
        assert max(map(len, printed.splitlines())) <= 80
        found = self._json(capsys, *arguments)
        whole = exposure(Trace.read(log), 0.7, CLIENTS**-1.1, per_run=2)
        assert found["cap"] == vars(whole.cap)
        assert found["top"][0] == vars(whole.top(1)[0])
        assert found["capped"]["levels"][-1]["participations"] == 2
        assert [row["per_run"] for row in found["caps"]][:2] == [1, 2]
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == CLIENTS
        assert rows[0]["client_id"] == whole.top(1)[0].name
        for name in ("final", "epsilon_every_round"):
            written = sorted(float(row[name]) for row in rows)
            np.testing.assert_array_equal(written, np.sort(getattr(whole, name)))
        assert max(int(row["capped_participations"]) for row in rows) == 2

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            pytest.param(
                "noise --target-epsilon -1", "target_epsilon=-1.0", id="target_epsilon=-1.0"
            ),
            pytest.param(
                "noise --target-epsilon 1 --participation nope", "kind='nope'", id="kind=nope"
            ),
            pytest.param(
                "noise --target-epsilon 1 --clients 1", "clients=1 >= 2", id="clients=1-at-least-2"
            ),
            pytest.param(
                "noise --target-epsilon 1 --like nowhere",
                "nowhere/record.npz' to exist",
                id="nowhere-record.npz-to-exist",
            ),
            pytest.param(
                "noise --target-epsilon 1 --momentum 1", "momentum=1.0", id="momentum=1.0"
            ),
            pytest.param(
                "log nowhere.csv --noise-multiplier 1",
                "path='nowhere.csv' to exist",
                id="path=nowhere.csv-to-exist",
            ),
            pytest.param(
                "log {log} --noise-multiplier 0",
                "noise_multiplier=0.0 > 0",
                id="noise_multiplier=0.0-above-0",
            ),
            pytest.param(
                "log {log} --noise-multiplier 1 --per-window 2",
                "per_window=2 and window=None",
                id="per_window=2-and-window=None",
            ),
            pytest.param("log {log} --noise-multiplier 1 --top 0", "count=0", id="count=0"),
            pytest.param("log {log} --noise-multiplier 1 --delta 2", "delta=2.0", id="delta=2.0"),
        ],
    )
    def test_errors(self, arguments, message, log, capsys):
        assert main(["advise", *arguments.format(log=log).split()]) == 2
        assert message in capsys.readouterr().err
