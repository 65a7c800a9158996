"""`fl-epe compare`."""

import json
import shlex
from pathlib import Path

import pytest

from fl_epe import cli


class TestCommand:
    def _run(self, *options):
        size = ["--rounds", "16", "--clients", "100", "--workers", "1"]
        return cli.main(["compare", *size, *options])

    @pytest.mark.slow
    def test_files(self, tmp_path, capsys):
        output = tmp_path / "out"
        options = ("--output", str(output), "--participations", "1", "2")
        schedules = [
            "--schedules",
            "cyclic",
            "poisson",
            "min-separation:separation=9",
        ]
        schedules += ["--noise-multipliers", "0.3", "0.6"]
        assert self._run(*options, *schedules) == 0
        shown = capsys.readouterr().out
        assert "poisson" in shown
        assert (
            "ε of the median client for an adversary who sees the final model"
            in shown
        )
        assert self._run(*options, *schedules, "--details") == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "other attacks may find more" in shown
        assert (
            "ε of the worst-case client for an adversary who sees every round's model"
            in shown
        )
        values = json.loads((output / "compare.json").read_text())
        assert len(values["rows"]) == 12
        assert values["plan"]["rounds"] == 16
        page = (output / "compare.html").read_text()
        assert page.count("<table") == 8
        assert "http" not in page.replace("http-equiv", "")

    def test_a_log_with_time_stamps_is_asked_about(self, tmp_path, capsys):
        path = tmp_path / "log.csv"
        rows = [
            f"{1_700_000_000 + 3600 * t},{c}\n"
            for t in range(4)
            for c in (t, t + 1)
        ]
        path.write_text("round,client_id\n" + "".join(rows))
        command = [
            "compare",
            "--workers",
            "1",
            "--noise-multipliers",
            "1",
            "--output",
        ]
        spec = f"trace:path={path}"
        assert (
            cli.main([*command, str(tmp_path / "out"), "--schedules", spec])
            == 2
        )
        assert (
            "10,801 rounds, and 4 of them have clients"
            in capsys.readouterr().err
        )

    def test_a_log_is_compared_with_schedules_like_it(self, tmp_path, capsys):
        path = tmp_path / "log.csv"
        rows = [f"{t},{(3 * t + i) % 9}" for t in range(12) for i in range(3)]
        path.write_text("round,client_id\n" + "\n".join(rows) + "\n")
        command = [
            "compare",
            "--from-log",
            str(path),
            "--noise-multipliers",
            "1",
        ]
        command += ["--schedules", "k-out-of-t", "poisson", "--workers", "1"]
        assert cli.main([*command, "--output", str(tmp_path / "out")]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "Run k-out-of-t: ε of every client is at most" in shown
        assert "with 4 participations in 12 rounds" in shown
        found = json.loads((tmp_path / "out" / "compare.json").read_text())
        assert [row["schedule"] for row in found["rows"]] == [
            f"trace:path={path}",
            "k-out-of-t",
            "poisson",
        ]
        assert found["plan"]["clients"] == 9

    def test_a_trace(self, tmp_path, capsys):
        path = tmp_path / "log.csv"
        rows = [f"{t},{client}" for t in range(4) for client in range(t, t + 2)]
        path.write_text("round,client_id\n" + "\n".join(rows) + "\n")
        options = [
            "--rounds",
            "4",
            "--participations",
            "1.6",
            "--noise-multipliers",
            "0.5",
        ]
        command = ["compare", "--schedules", f"trace:path={path}", *options]
        assert (
            cli.main(
                [*command, "--output", str(tmp_path / "out"), "--workers", "1"]
            )
            == 0
        )
        (row,) = json.loads((tmp_path / "out" / "compare.json").read_text())[
            "rows"
        ]
        assert [each["participations"] for each in row["answers"]] == [
            2,
            2,
            2,
            2,
        ]

    def test_the_participations_of_a_log_are_rounded_but_can_be_typed(
        self, tmp_path, capsys
    ):
        path = (
            tmp_path / "log.csv"
        )  # 14 participations of 9 clients: 1.5555… of each
        pairs = [f"{number // 4 + 1},{number % 9}" for number in range(14)]
        path.write_text("round,client_id\n" + "\n".join(pairs) + "\n")
        command = [
            "compare",
            "--schedules",
            f"trace:path={path}",
            "--noise-multipliers",
            "0.5",
        ]
        command += ["--workers", "1", "--output", str(tmp_path / "out")]
        assert cli.main(command) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert "z = 0.5, 1.56 participations at" in printed
        assert cli.main([*command, "--participations", "3"]) == 2
        wanted = capsys.readouterr().err.split("to hold ")[1].split()[0]
        assert cli.main([*command, "--participations", wanted]) == 0
        assert (
            cli.main([*command, "--participations", "1.55556"]) == 0
        )  # six digits

    @pytest.mark.slow
    def test_a_trace_says_how_many_rounds_there_are(self, tmp_path, capsys):
        """The README's example, with a log as a deployment writes it."""
        path = tmp_path / "log.csv"
        rows = [
            f"{t},phone-{c}\n"
            for t in range(8)
            for c in range(30)
            if (c + 3 * t) % 5 < 2
        ]
        path.write_text("round,client_id\n" + "".join(rows))
        readme = (Path(__file__).parents[2] / "README.md").read_text()
        (line,) = [
            line for line in readme.splitlines() if "trace:path=log.csv" in line
        ]
        words = shlex.split(line.replace("log.csv", str(path)))[1:]
        output = tmp_path / "out"
        assert (
            cli.main([*words, "--output", str(output), "--workers", "1"]) == 0
        )
        values = json.loads((output / "compare.json").read_text())
        assert [row["skipped"] for row in values["rows"]] == [None, None]
        assert all(
            each["participations"] > 0
            for r in values["rows"]
            for each in r["answers"]
        )
        plan = values["plan"]
        assert (plan["rounds"], plan["clients"]) == (8, 30)
        assert plan["participations"] == [len(rows) / 30]
        capsys.readouterr()
        assert cli.main([*words, "--output", str(output), "--rounds", "9"]) == 2
        assert (
            "--rounds=9 to be left out, or 8 as in" in capsys.readouterr().err
        )
        assert (
            cli.main([*words, "--output", str(output), "--participations", "5"])
            == 2
        )
        assert (
            "--participations=[5.0] to be left out" in capsys.readouterr().err
        )

    @pytest.mark.slow
    def test_settings_of_a_task(self, tmp_path):
        output = tmp_path / "out"
        command = [
            "compare",
            "--task",
            "digits",
            "--schedules",
            "cyclic",
            "--participations",
            "1",
        ]
        command += [
            "--noise-multipliers",
            "0.5",
            "--task-option",
            "num-clients=12",
        ]
        settings = {
            "num_canaries": 4,
            "clients_per_round": 2,
            "clipping": "fixed",
        }
        for name, value in settings.items():
            command += ["--set", f"{name.replace('_', '-')}={value}"]
        more = ["--rounds", "2", "--workers", "1", "--output", str(output)]
        assert cli.main([*command, *more]) == 0
        plan = json.loads((output / "compare.json").read_text())["plan"]
        assert plan["settings"] == settings
        assert plan["task_options"] == {"num_clients": 12}
        assert plan["rounds"] == 2

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            pytest.param(
                ["--schedules", "nonsense"], "nonsense", id="nonsense"
            ),
            pytest.param(["--like", "missing"], "missing", id="missing"),
            pytest.param(["--workers", "0"], "--workers=0", id="workers=0"),
            pytest.param(
                ["--participations", "99"],
                "participations=99.0",
                id="participations=99.0",
            ),
        ],
    )
    def test_errors(self, options, message, tmp_path, capsys):
        assert self._run("--output", str(tmp_path / "out"), *options) == 2
        assert message in capsys.readouterr().err
