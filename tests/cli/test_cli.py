"""The command line as a person meets it: real processes, real files, a real kill."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import missing
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from small_run import ROUNDS, SEED, SMALL

from fl_epe import AuditRecord
from fl_epe.cli.main import main
from fl_epe.tasks import load_task

PATIENCE = 600
"""Seconds to wait for a run: only one that hangs takes so long, on any machine."""


HELD = """
import os, sys, time

replace = os.replace

def replace_and_hold(source, target, **more):
    replace(source, target, **more)
    if str(target).endswith("checkpoint.npz") and os.path.getsize(target) > 10_000_000:
        time.sleep(3600)  # with its first checkpoint of a model, until it is killed

os.replace = replace_and_hold
from fl_epe.cli import main
sys.exit(main(sys.argv[1:]))
"""


def _spawn(*arguments, program=("-m", "fl_epe")):
    environment = os.environ | {
        "PYTHONUNBUFFERED": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
    }
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def test_a_run_leaves_everything_behind(finished):
    output, printed = finished
    files = {path.name for path in output.iterdir()}
    assert files == {
        "record.npz",
        "report.json",
        "report.html",
        "run.log",
        "epsilon.png",
    }
    for word in (
        "every round",
        "final model",
        "95% interval",
        "at least (95%)",
        "theory allows",
    ):
        assert word in printed
    assert max(map(len, printed.split("Report:")[0].splitlines())) <= 80
    assert re.search(
        rf"round {ROUNDS}/{ROUNDS} +loss \d.*acc .*ε final model \d.*, every round \d",
        printed,
    )


def test_the_json_has_its_keys(finished):
    report = json.loads((finished[0] / "report.json").read_text())
    for sees, entry in zip(("final", "all"), report["answer"], strict=True):
        assert (entry["sees"], entry["knows_rounds"]) == (sees, True)
        assert entry["low"] <= entry["epsilon"] <= entry["high"]
        assert entry["analytical"] > 0
        assert entry["delta"] == pytest.approx(120**-1.1)
    run = report["run"]
    assert (run["dim"], run["rounds"], run["canaries"]) == (
        1_206_590,
        int(ROUNDS),
        20,
    )
    assert run["held_out"]["accuracy"].endswith("%")


@pytest.mark.weekly
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_greek_letters_gets_a_table_too(finished, encoding):
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "fl_epe", "report", str(finished[0])]
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"every round" in done.stdout


def test_the_report_is_rebuilt_from_the_record_alone(
    finished, tmp_path, capsys
):
    shutil.copy2(
        finished[0] / "record.npz", tmp_path
    )  # with its date, which the page has
    assert main(["report", str(tmp_path)]) == 0
    assert "every round" in capsys.readouterr().out
    for name in ("report.json", "report.html"):
        assert (tmp_path / name).read_text() == (finished[0] / name).read_text()


def test_a_report_fits_on_a_screen_and_its_details_do_not_hide(
    finished, tmp_path, capsys
):
    shutil.copy2(finished[0] / "record.npz", tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= 25
    assert len(short.split()) <= 200
    assert main(["report", str(tmp_path), "--details"]) == 0
    long = capsys.readouterr().out
    assert "The paper's cosine" in long
    assert "paper's cosine" not in short
    assert "Theory is for zero-out adjacency" in long
    said = set(
        short.replace("(--details prints the rest)", "")
        .replace("─", "")
        .split()
    )
    assert said <= set(long.split())


@pytest.mark.slow
def test_the_page_is_self_contained(pictures, finished, tmp_path, capsys):
    shutil.copy2(finished[0] / "record.npz", tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert (
        page.count("data:image/svg+xml;base64,")
        == page.count('class="chart"')
        == 4
    )
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert "http" not in re.sub(
        r"[A-Za-z0-9+/=]{200,}", "", page
    )  # but in base64, by chance


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_result(finished, tmp_path):
    output = tmp_path / "killed"
    settings = (
        "--rounds",
        ROUNDS,
        "--seed",
        SEED,
        "--checkpoint-every",
        2,
        "--output",
        output,
    )
    process = _spawn(*SMALL, *settings, program=("-c", HELD))
    checkpoint = output / "checkpoint.npz"
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        if (
            checkpoint.exists() and checkpoint.stat().st_size > 10_000_000
        ):  # holds a model
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, process.stdout.read()
    process.stdout.close()
    assert not (output / "record.npz").exists()
    assert checkpoint.stat().st_mode & 0o077 == 0  # it holds the canary seed

    resumed = _spawn("resume", output)
    printed, _ = resumed.communicate(timeout=PATIENCE)
    assert resumed.returncode == 0, printed
    assert re.search(r"round [23]/4", printed), printed  # not from the start
    assert not checkpoint.exists()
    one, other = (
        AuditRecord.load(finished[0] / "record.npz"),
        AuditRecord.load(output / "record.npz"),
    )
    for name in (
        "observed.means",
        "unobserved.means",
        "observed.final",
        "mechanism.clip_norms",
        "presence",
        "clients.ids",
    ):
        assert np.array_equal(one.by_name()[name], other.by_name()[name]), name
    assert one.metrics.keys() == other.metrics.keys()
    assert np.array_equal(
        one.metrics["eval_accuracy"], other.metrics["eval_accuracy"]
    )


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            pytest.param(
                ["run", "chess"],
                "name='chess' to be one of digits, emnist, ",
                id="name=chess-to-be-one-of-digits,emnist",
            ),
            pytest.param(
                [
                    "run",
                    "digits",
                    "--num-canaries",
                    "1",
                    "--canary-design",
                    "paper",
                ],
                "--num-canaries=1 to be 0 or an integer >= 2",
                id="canaries=1-to-be-0-or-at-least-2",
            ),
            pytest.param(
                ["run", "digits", "--delta", "1.5"],
                "--delta=1.5 in (0, 1)",
                id="delta=1.5-in-0,1",
            ),
            pytest.param(
                ["run", "digits", "--rounds", "0"], "--rounds=0", id="rounds=0"
            ),
            pytest.param(
                ["run", "digits", "--canary-participations", "99"],
                "--canary-participations=99.0 in (0, --rounds=60]",
                id="canary_participations=99.0-in-0,rounds=60",
            ),
            pytest.param(
                ["run", "digits", "--noise-multiplier", "-1"],
                "--noise-multiplier=-1.0",
                id="--noise-multiplier=-1.0",
            ),
            pytest.param(
                ["run", "digits", "--workers", "0"],
                "--workers=0 to be an integer >= 1",
                id="workers=0-at-least-1",
            ),
            pytest.param(
                ["run", "digits", "--seed", "-3"],
                "--seed=-3 >= 0",
                id="seed=-3-at-least-0",
            ),
            pytest.param(
                ["run", "fashion-mnist", "--data-dir", "/nowhere"],
                "dataset-fashion-mnist",
                id="dataset-fashion-mnist",
            ),
            pytest.param(
                ["report", "/nowhere"],
                "/nowhere/record.npz' to exist",
                id="nowhere-record.npz-to-exist",
            ),
            pytest.param(
                ["resume", "/nowhere"],
                "/nowhere/checkpoint.npz' to exist",
                id="nowhere-checkpoint.npz-to-exist",
            ),
        ],
    )
    def test_one_clear_line(
        self, arguments, message, capsys, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        assert main(arguments) == 2
        printed = capsys.readouterr().err
        assert message in printed
        assert printed.startswith("fl-epe: error: ")
        assert "Traceback" not in printed
        assert not list(tmp_path.rglob("record.npz"))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "name", ["torch", pytest.param("sklearn", marks=pytest.mark.slow)]
    )
    def test_what_training_needs_is_named_where_it_is_missing(
        self, name, tmp_path
    ):
        """One line, and how to install it."""
        code = (
            f"import sys; from missing import hide; hide({name!r});"
            "from fl_epe.cli.main import main; sys.exit(main(sys.argv[1:]))"
        )
        command = [sys.executable, "-c", code, *SMALL, "--rounds", "2"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=missing.environment(),
        )
        assert done.returncode == 2, done.stderr
        assert done.stderr.strip() == (
            f"fl-epe: error: This needs {name}, which is not installed: pip install 'fl-epe[sim]'."
        )
        assert not list(tmp_path.iterdir())  # no directory of a run either

    def test_a_finished_run_is_not_resumed(self, finished, capsys):
        assert main(["resume", str(finished[0])]) == 2
        assert (
            "to hold an unfinished run. See: fl-epe report"
            in capsys.readouterr().err
        )

    @pytest.mark.parametrize("content", ["garbage", "truncated", "record"])
    def test_a_broken_checkpoint_is_named(
        self, content, finished, tmp_path, capsys
    ):
        record = (finished[0] / "record.npz").read_bytes()
        broken = {
            "garbage": b"garbage",
            "truncated": record[:5000],
            "record": record,
        }[content]
        (tmp_path / "checkpoint.npz").write_bytes(broken)
        assert main(["resume", str(tmp_path)]) == 2
        assert (
            "checkpoint.npz' to be a checkpoint of fl-epe"
            in capsys.readouterr().err
        )

    def test_a_record_is_no_file_of_scores(self, finished, capsys):
        assert main(["estimate", str(finished[0] / "record.npz")]) == 2
        assert (
            "this is a run's record; see 'fl-epe report RUN_DIR'"
            in capsys.readouterr().err
        )

    def test_output_must_be_a_directory(self, tmp_path, capsys):
        (tmp_path / "file").write_text("")
        assert main([*SMALL, "--output", str(tmp_path / "file")]) == 2
        assert "file' to be a directory" in capsys.readouterr().err

    def test_a_finished_run_is_not_overwritten(self, finished, capsys):
        assert main([*SMALL, "--output", str(finished[0])]) == 2
        assert "holds a finished run" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [[], ["run"], ["resume"], ["report"], ["schedules"]],
    ids=lambda command: command[0] if command else "none",
)
def test_help_is_complete(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    options = re.findall(r"^  (--[a-z-]+)(?: \S+)?(.*)$", printed, re.M)
    lines = [*printed.splitlines(), ""]
    for option, text in options:
        after = lines[
            next(
                i
                for i, line in enumerate(lines)
                if line.startswith(f"  {option}")
            )
            + 1
        ]
        assert text.strip() or after.startswith(" " * 10), option


def test_readme_and_package_agree_on_the_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    import fl_epe

    assert capsys.readouterr().out.strip() == f"fl-epe {fl_epe.__version__}"
    changelog = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    assert f"## {fl_epe.__version__.removesuffix('.0')} " in changelog


def test_data_convert_makes_what_a_task_reads(tmp_path, capsys):
    source, target = tmp_path / "posts.parquet", tmp_path / "out"
    rows = [
        {"user_id": f"u{user}", "tokens": f"how to sort a list of words {word}"}
        for user in range(3)
        for word in range(20)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), source)
    (tmp_path / "stackoverflow.word_count").write_text("how 3\nsort 2\n")
    assert (
        main(["data", "convert", "stackoverflow", str(source), str(target)])
        == 0
    )
    assert "3 clients, 54 examples, 6 held out" in capsys.readouterr().out
    task = load_task("stackoverflow", data_dir=str(target))
    assert task.num_clients == 3
    assert (
        main(["data", "convert", "stackoverflow", str(source), str(target)])
        == 2
    )
    assert str(target) in capsys.readouterr().err
    missing = str(tmp_path / "missing.h5")
    assert (
        main(["data", "convert", "emnist", missing, str(tmp_path / "other")])
        == 2
    )
    assert "missing.h5" in capsys.readouterr().err
