"""`fl-epe advise`."""

import dataclasses
import json

import numpy as np
import pytest
from limit_settings import REAL, SERVERS, T, synthetic_log

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import answers
from fl_epe.cli.main import main
from fl_epe.config import RunConfig
from fl_epe.limit import (
    canary_advice,
    exposure,
    limit_like,
    limit_record,
    noise_for_epsilon,
)
from fl_epe.limit.client import expected_epsilon
from fl_epe.mechanism import AdaptiveClip, strategy_matrix
from fl_epe.schedules import Poisson, ShuffledEpochs, Trace

CLIENTS = synthetic_log().population


class TestCommandLine:
    @pytest.fixture
    def log(self, tmp_path):
        trace = synthetic_log()
        path = tmp_path / "log.csv"
        rows = [
            f"{t},phone-{c}\n"
            for t, c in zip(trace.round_ids, trace.client_ids, strict=True)
        ]
        path.write_text("round,client_id\n" + "".join(rows))
        return path

    def _json(self, capsys, *arguments):
        assert main(["advise", *map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    def test_noise(self, capsys):
        common = ("noise", "--target-epsilon", 1, "--rounds", 50)
        assert main(["advise", *map(str, common)]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        for part in (
            "Noise multiplier z = ",
            "client takes part once",
            "theory allows ε ≤",
        ):
            assert part in printed
        assert len(printed.split()) <= 200
        found = self._json(capsys, *common, "--clients", 300)
        direct = noise_for_epsilon(
            ShuffledEpochs(50, 1), 1.0, 300**-1.1, 300, momentum=0.9
        )
        assert found["noise_multiplier"] == direct.noise_multiplier
        assert found["delta"] == 300**-1.1
        assert found["answer"] == dataclasses.asdict(direct.answer)

    def test_who_takes_part_once_at_most_does_not_take_part_1_times(
        self, tmp_path, capsys
    ):
        assert (
            main(["advise", "noise", "--target-epsilon", "1", "--worst-case"])
            == 0
        )
        assert "takes part at most once." in " ".join(
            capsys.readouterr().out.split()
        )
        (tmp_path / "log.csv").write_text("round,client_id\n1,a\n1,b\n2,c\n")
        assert (
            main(
                [
                    "advise",
                    "log",
                    str(tmp_path / "log.csv"),
                    "--noise-multiplier",
                    "1",
                ]
            )
            == 0
        )
        printed = capsys.readouterr().out
        assert "once" in printed
        assert " 1 times" not in printed

    @pytest.mark.slow
    def test_noise_where_no_canary_fits_promises_no_interval(self, capsys):
        asked, said = (
            ["noise", "--target-epsilon", "3", "--participation", "poisson"],
            [],
        )
        for clients in ("8", "80"):
            more = [
                "--participations",
                "12",
                "--delta",
                "0.01",
                "--clients",
                clients,
            ]
            assert main(["advise", *asked, *more]) == 0
            said.append(" ".join(capsys.readouterr().out.split()))
        assert ["would report at most" in text for text in said] == [
            False,
            True,
        ]
        assert [
            "No two canaries fit beside 8 clients" in text for text in said
        ] == [
            True,
            False,
        ]

    def test_noise_for_a_run_like_another_is_that_runs_noise(
        self, tmp_path, capsys
    ):
        settings = SERVERS["real"] | {"clip_norms": np.linspace(1, 2, T)}
        schedule = ShuffledEpochs(T, 3)
        record = limit_record(
            schedule, 0.4, 1e-3, num_canaries=13, beside=120, **settings
        )
        record.save(tmp_path / "record.npz")
        for sees in ("final", "all"):
            target = expected_epsilon(record, sees)
            found = self._json(
                capsys,
                "noise",
                "--like",
                tmp_path,
                "--adversary",
                sees,
                "--target-epsilon",
                target,
            )
            assert (found["delta"], found["clients"]) == (1e-3, 120)
            assert found["answer"]["participations"] == 3
            # Real updates hide most here, so z moves ten times as much as the mean score.
            assert found["noise_multiplier"] == pytest.approx(0.4, rel=0.1)

    @pytest.mark.parametrize("client", ["median", "worst-case"])
    def test_theory_counts_the_noisy_count_of_an_adaptive_clip_norm(
        self, tmp_path, capsys, client
    ):
        clip = AdaptiveClip(0.1, 0.5, 0.2, count_std=1.2, voters=24)
        settings = {**SERVERS["real"], "clip_norms": np.linspace(1, 2, T)}
        record = limit_record(
            ShuffledEpochs(T, 3),
            clip.sum_noise_multiplier(1.0),
            1e-3,
            num_canaries=13,
            beside=120,
            count_inverse_variance=(2 * clip.count_std) ** -2,
            **settings,
        )
        assert record.mechanism.noise_multiplier == pytest.approx(1.0)
        record.save(tmp_path / "record.npz")
        asked = ["noise", "--like", tmp_path, "--target-epsilon", 0.3]
        found = self._json(
            capsys,
            *asked,
            *(["--worst-case"] if client == "worst-case" else []),
        )
        z = found["noise_multiplier"]
        whole = (z**-2 + (2 * clip.count_std) ** -2) ** -0.5
        assert found["setting"] == pytest.approx(whole)
        allowed = gaussian_epsilon(whole, 1e-3, 3)
        assert found["answer"]["theory"]["epsilon"] == pytest.approx(allowed)
        # A report of that very run says the same.
        run = record.with_values(noise_multiplier=whole, sum_noise_multiplier=z)
        assert answers(run)[0].analytical.epsilon == pytest.approx(allowed)

    def test_what_is_advised_can_be_run(self, tmp_path, capsys):
        """Eight hospitals, four a round; with the clip norm of a run too."""
        few = {"clients": 8, "clients_per_round": 4}
        common = [
            "noise",
            "--participations",
            30,
            "--clients",
            8,
            "--target-epsilon",
            8,
        ]
        advised = self._json(capsys, *common, "--delta", 0.1)[
            "noise_multiplier"
        ]
        run = RunConfig(**few, noise_multiplier=advised)
        assert advised < run.sum_noise_multiplier() < 1.16 * advised
        clip = RunConfig(**few).clip_rule()
        record = limit_record(
            ShuffledEpochs(T, 3),
            clip.sum_noise_multiplier(0.25),
            0.1,
            num_canaries=13,
            beside=8,
            count_inverse_variance=(2 * clip.count_std) ** -2,
        )
        record.save(tmp_path / "record.npz")
        asked = ["noise", "--like", tmp_path, "--target-epsilon", 0.5]
        wanted = self._json(capsys, *asked)["noise_multiplier"]
        assert main(["advise", *map(str, asked)]) == 0
        words = capsys.readouterr().out.split()
        typed = {
            name: float(words[words.index(f"--{name.replace('_', '-')}") + 1])
            for name in ("noise_multiplier", "clip_count_std")
        }
        assert RunConfig(
            **few, **typed
        ).sum_noise_multiplier() == pytest.approx(wanted, rel=1e-2)

    def test_noise_of_a_mechanism(self, capsys):
        common = (
            "noise",
            "--target-epsilon",
            1,
            "--rounds",
            50,
            "--clients",
            300,
        )
        plain, independent, banded = (
            self._json(capsys, *common, *more)
            for more in (
                (),
                ("--mechanism", "independent"),
                ("--mechanism", "banded:bands=4"),
            )
        )
        assert plain == independent
        strategy = strategy_matrix("banded:bands=4", 50)
        direct = noise_for_epsilon(
            ShuffledEpochs(50, 1),
            1.0,
            300**-1.1,
            300,
            strategy=strategy,
            momentum=0.9,
        )
        assert banded["noise_multiplier"] == direct.noise_multiplier
        assert banded["noise_multiplier"] > 1.5 * plain["noise_multiplier"]
        arguments = [
            "advise",
            *map(str, common),
            "--mechanism",
            "banded:bands=51",
        ]
        assert main(arguments) == 2
        assert "--mechanism='banded:bands=51'" in capsys.readouterr().err

    @pytest.mark.parametrize("sees", ["final", "all"])
    def test_a_run_like_another_has_its_mechanism(self, tmp_path, capsys, sees):
        strategy, schedule = strategy_matrix("tree", T), ShuffledEpochs(T, 3)
        record = limit_record(
            schedule,
            0.4,
            1e-3,
            num_canaries=13,
            beside=120,
            strategy=strategy,
            real=REAL,
        )
        record.save(tmp_path / "record.npz")
        common = [
            "noise",
            "--like",
            tmp_path,
            "--adversary",
            sees,
            "--target-epsilon",
            1,
        ]
        found = self._json(capsys, *common)
        direct = noise_for_epsilon(
            schedule,
            1.0,
            1e-3,
            120,
            sees=sees,
            strategy=strategy,
            **limit_like(record),
        )
        assert found["noise_multiplier"] == direct.noise_multiplier
        other = self._json(capsys, *common, "--mechanism", "independent")
        assert other["noise_multiplier"] != direct.noise_multiplier

    def test_a_run_like_another_has_as_many_rounds(self, tmp_path, capsys):
        record = limit_record(
            Poisson(T, 0.5), 0.4, 1e-3, num_canaries=20, unobserved=0
        )
        record.save(tmp_path / "record.npz")
        arguments = f"noise --target-epsilon 1 --rounds 7 --like {tmp_path}"
        assert main(["advise", *arguments.split()]) == 2
        assert f"--rounds=7 to be {T}" in capsys.readouterr().err

    def test_noise_of_a_log(self, log, capsys):
        found = self._json(
            capsys, "noise", "--target-epsilon", 2, "--participation", f"trace:path={log}",
            "--worst-case",
        )  # fmt: skip
        whole = exposure(
            Trace.read(log),
            found["noise_multiplier"],
            found["delta"],
            momentum=0.9,
        )
        assert whole.top(1)[0].epsilon == pytest.approx(2, rel=1e-6)
        assert found["delta"] == CLIENTS**-1.1

    def test_log(self, log, capsys):
        arguments = ["log", log, "--noise-multiplier", 0.7]
        assert main(["advise", *map(str, arguments)]) == 0
        printed = capsys.readouterr().out
        for part in (
            "median",
            "worst-case client",
            "Caps:",
            "phone-",
            "sees the final model",
        ):
            assert part in printed
        assert max(map(len, printed.splitlines())) <= 80
        assert len(printed.splitlines()) <= 25
        assert len(printed.split()) <= 200
        found = self._json(capsys, *arguments)
        whole = exposure(Trace.read(log), 0.7, CLIENTS**-1.1, momentum=0.9)
        assert found["top"] == list(map(vars, whole.top(3)))
        assert found["median"] == vars(whole.median)
        assert found["caps"] == list(map(vars, whole.caps))
        in_windows = self._json(capsys, *arguments, "--window", 3)["caps"]
        assert [(row["cap"], row["window"]) for row in in_windows] == [
            (1, 3),
            (2, 3),
            (3, 3),
        ]

    def test_canaries(self, capsys):
        arguments = [
            "canaries",
            "--clients",
            "120",
            "--rounds",
            "60",
            "--participations",
            "12",
        ]
        assert main(["advise", *arguments]) == 0
        printed = capsys.readouterr().out
        assert len(printed.splitlines()) <= 25
        assert len(printed.split()) <= 200
        assert "at δ = 0.0052" in printed
        found = self._json(capsys, *arguments, "--share", 0.1)
        (advice,) = found["advice"]
        direct = canary_advice(
            ShuffledEpochs(60, 12), 0.25, 120**-1.1, 120, 0.1, momentum=0.9
        )
        assert advice["load"]["places"] == direct.load.places == 13
        assert advice["answers"] == list(
            map(dataclasses.asdict, direct.answers)
        )

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            pytest.param(
                "noise --target-epsilon -1",
                "--target-epsilon=-1.0",
                id="target_epsilon=-1.0",
            ),
            pytest.param(
                "noise --target-epsilon 1 --participation nope",
                "kind='nope'",
                id="kind=nope",
            ),
            pytest.param(
                "noise --target-epsilon 1 --clients 1",
                "--clients=1 >= 2",
                id="clients=1-at-least-2",
            ),
            pytest.param(
                "noise --target-epsilon 1 --like nowhere",
                "nowhere/record.npz' to exist",
                id="nowhere-record.npz-to-exist",
            ),
            pytest.param(
                "noise --target-epsilon 1 --momentum 1",
                "--momentum=1.0",
                id="momentum=1.0",
            ),
            pytest.param(
                "log nowhere.csv --noise-multiplier 1",
                "'nowhere.csv' to exist",
                id="path=nowhere.csv-to-exist",
            ),
            pytest.param(
                "log {log} --noise-multiplier 0",
                "--noise-multiplier=0.0 > 0",
                id="noise_multiplier=0.0-above-0",
            ),
            pytest.param(
                "log {log} --noise-multiplier 1 --window 0",
                "--window=0 to be an integer",
                id="window=0",
            ),
            pytest.param(
                "canaries --clients 0", "--clients=0 >= 2", id="clients=0"
            ),
            pytest.param(
                "canaries --clients 9 --share 0", "--share=0.0", id="share=0"
            ),
            pytest.param(
                "log {log} --noise-multiplier 1 --top 0",
                "--top=0",
                id="count=0",
            ),
            pytest.param(
                "log {log} --noise-multiplier 1 --delta 2",
                "--delta=2.0",
                id="delta=2.0",
            ),
        ],
    )
    def test_errors(self, arguments, message, log, capsys):
        assert main(["advise", *arguments.format(log=log).split()]) == 2
        assert message in capsys.readouterr().err
