"""Loggers: each built-in one is read back with its own reader, and none can end a run."""

import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import killed_logging
import numpy as np
import pytest
from flower_audits import PLAIN, fixed, run
from flwr.serverapp import strategy as flower
from killed_logging import tell
from small_run import SEED, SMALL
from wandb_file import read_wandb

import fl_epe
from fl_epe import AuditRecord, audit_dp_sgd
from fl_epe.auditing import answer_metrics, answers
from fl_epe.cli.main import main
from fl_epe.dp_sgd import PlainDPSGD

PATIENCE = 600  # seconds to wait for another process
CLOSING = {"status": "ok", "epsilon-final": 1.5}


class Notes:
    """Keeps what it is told."""

    def __init__(self):
        self.rounds, self.summary = {}, dict[str, Any]()

    def log(self, round_number, values):
        assert round_number not in self.rounds
        self.rounds[round_number] = dict(values)

    def close(self, summary):
        assert not self.summary
        self.summary |= summary


class Unspeakable(Exception):  # noqa: N818 - its text is an error too
    def __str__(self):
        raise ValueError


class Fails(Notes):
    """Raises an error in one round, and at the end."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def log(self, round_number, values):
        super().log(round_number, values)
        if round_number == 2:
            raise self.error

    def close(self, summary):
        raise self.error


def told_twice(logger, folder, is_kept=lambda: True):
    """A run of five rounds that was killed after the third, and went on after the first."""
    command = [
        sys.executable,
        killed_logging.__file__,
        logger,
        str(folder),
        "--seed",
        SEED,
    ]
    path = str(Path(__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": path}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE
    ) as killed:
        assert killed.stdout.readline() == b"told\n"
        wait_for(is_kept)
        killed.kill()
    tell(logger, folder, range(1, 6), resumed=True).close(CLOSING, folder)


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def tensorboard_points(folder):
    """The points of each name, as TensorBoard itself reads them, and the text of the answer."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    found = accumulator.EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    names = found.Tags()["scalars"]
    points = {
        name: [(e.step, e.value) for e in found.Scalars(name)] for name in names
    }
    (text,) = found.Tensors("answer")
    return points, text.tensor_proto.string_val[0].decode()


@pytest.mark.slow
def test_tensorboard_shows_each_round_once(tmp_path):
    pytest.importorskip("tensorboard")
    told_twice("tensorboard", tmp_path)
    points, text = tensorboard_points(tmp_path)
    assert points == {"epsilon-all": [(t, 1.5 * t) for t in range(6)]}
    assert "| epsilon-final | 1.5 |" in text
    assert str(tmp_path / "report.html") in text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of MLflow itself
def test_mlflow_goes_on_in_the_same_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv(
        "MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}"
    )
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    told_twice("mlflow", tmp_path)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (made,) = client.search_runs(
        [client.get_experiment_by_name("mine").experiment_id]
    )
    points = client.get_metric_history(made.info.run_id, "epsilon-all")
    assert [(p.step, p.value) for p in points] == [
        (t, 1.5 * t) for t in range(6)
    ]
    assert (made.info.status, made.data.tags["status"]) == ("FINISHED", "ok")
    assert made.data.tags["report"] == str(tmp_path / "report.html")
    assert set(made.data.metrics) == {"epsilon-all"}
    tell(
        "mlflow", tmp_path, range(2), resumed=False
    )  # a new run in the same folder
    assert len(client.search_runs([made.info.experiment_id])) == 2


@pytest.mark.slow
def test_weights_and_biases_goes_on_in_the_same_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))

    def found():
        return [
            read_wandb(path)
            for path in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
        ]

    # its own process writes, also some time after a run has ended
    told_twice("wandb", tmp_path, lambda: 3 in found()[0][1])
    wait_for(lambda: "status" in found()[1][2])
    (known, before, _), (same, after, summary) = found()
    assert (
        known
        == same
        == json.loads((tmp_path / "wandb.json").read_text("utf-8"))["id"]
    )
    assert sorted([*before, *after]) == list(range(6))
    assert {t: row["epsilon_all"] for t, row in (before | after).items()} == {
        t: 1.5 * t for t in range(6)
    }
    assert (summary["status"], summary["epsilon_final"]) == ("ok", 1.5)
    assert summary["report"] == str(tmp_path / "report.html")
    kept = [path for path in tmp_path.glob("wandb/**/*") if path.is_file()]
    assert not [path for path in kept if SEED.encode() in path.read_bytes()]


@pytest.mark.weekly
def test_a_run_that_was_killed_goes_on_in_its_folder_of_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    output = tmp_path / "run"
    words = [*SMALL, "--rounds", "8", "--seed", SEED, "--checkpoint-every", "3"]
    command = [sys.executable, "-m", "fl_epe", *words, "--output", str(output)]
    process = subprocess.Popen(
        [*command, "--log-to", "tensorboard"], stdout=subprocess.DEVNULL
    )
    log = output / "run.log"
    wait_for(lambda: log.exists() and '"round": 5' in log.read_text("utf-8"))
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert main(["resume", str(output), "--log-to", "tensorboard"]) in (0, 3)
    record = AuditRecord.load(output / "record.npz")
    points, text = tensorboard_points(output)
    losses = [
        (t, np.float32(v))
        for t, v in enumerate(record.metrics["train_loss"], 1)
    ]
    assert points["train_loss"] == losses
    assert [t for t, _ in points["eval_loss"]] == list(range(9))
    assert [t for t, _ in points["epsilon-all"]][-1] == 8
    found = answer_metrics(answers(record))
    for name in ("epsilon-all", "epsilon-final-low", "epsilon-analytical"):
        assert points[name][-1] == (8, np.float32(found[name]))
    assert str(output / "report.html") in text


@pytest.mark.slow
def test_around_a_strategy_loggers_are_told_its_metrics(tmp_path):
    notes = Notes()
    audit, result = run(fixed(), log_to=[notes])
    metrics = result.train_metrics_clientapp
    assert list(notes.rounds) == list(metrics) == list(range(1, 7))
    for t, values in notes.rounds.items():
        assert dict(metrics[t]).items() <= values.items()
        assert (values["clip_norm"], values["fault_count"]) == (0.1, 0)
    assert [values["canaries_seen"] for values in notes.rounds.values()][
        -1
    ] == 30
    assert not notes.summary
    audit.report(tmp_path)
    audit.report(tmp_path)
    found = answer_metrics(answers(audit.record()))
    assert found["epsilon-analytical"] == notes.rounds[6]["epsilon-analytical"]
    assert notes.summary.pop("report") == str(tmp_path / "report.html")
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert notes.summary.pop("status") == report["status"]
    assert notes.summary == pytest.approx(
        {n: v for n, v in found.items() if math.isfinite(v)}
    )


def test_what_theory_allows_so_far_ends_in_the_answer():
    """Flower's noise is for 10 replies, and 15 arrive: a client has less than its share."""
    notes = Notes()
    audit, _ = run(
        fixed(z=2.0), log_to=[notes], participations=3, num_canaries=10
    )
    so_far = audit._run.recording.auditor.metrics_so_far(
        2.0, audit._run.wrapped.expected_replies()
    )
    theory = [values["epsilon-analytical"] for values in notes.rounds.values()]
    assert theory == sorted(theory)
    final = answers(audit.record())[1].analytical.epsilon
    assert theory[-1] == final
    assert so_far["epsilon-analytical"] == pytest.approx(final, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [RuntimeError("no space left"), Unspeakable()],
    ids=["plain", "unspeakable"],
)
def test_a_logger_that_fails_is_warned_about_once_and_the_run_goes_on(
    error, caplog
):
    plain, _ = run(flower.FedAvg(**PLAIN))
    fails, notes = Fails(error), Notes()
    audit, result = run(flower.FedAvg(**PLAIN), log_to=[fails, notes])
    assert (list(fails.rounds), list(notes.rounds)) == (
        [1, 2],
        list(range(1, 7)),
    )
    assert caplog.text.count("logging to Fails failed") == 1
    assert audit.faults == plain.faults
    assert len(result.train_metrics_clientapp) == 6
    same = audit.record().observed.final, plain.record().observed.final
    np.testing.assert_allclose(
        *same, rtol=1e-5
    )  # float32, added in the order of the replies
    assert "ε" in audit.report()
    assert notes.summary["epsilon-all"] == notes.rounds[6]["epsilon-all"]


@pytest.mark.slow
def test_a_logger_without_its_folder_is_warned_about_once(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    output = tmp_path / "run"
    output.mkdir()
    (output / "tensorboard").write_text("in the way")
    words = [*SMALL, "--rounds", "2", "--seed", SEED, "--log-to", "tensorboard"]
    assert main([*words, "--output", str(output)]) in (0, 3)
    assert capsys.readouterr().err.count("logging to tensorboard failed") == 1
    assert (output / "record.npz").exists()


def test_a_package_that_is_missing_is_named_before_the_run(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    output = tmp_path / "run"
    assert main([*SMALL, "--log-to", "mlflow", "--output", str(output)]) == 2
    said = capsys.readouterr().err
    assert "needs the package mlflow" in said
    assert "pip install 'fl-epe[loggers]'" in said
    assert not output.exists()
    with pytest.raises(ModuleNotFoundError, match="needs the package wandb"):
        run(flower.FedAvg(**PLAIN), log_to="wandb")


@pytest.mark.parametrize(
    ("log_to", "wanted"),
    [
        pytest.param(
            "tensorbord", "log_to='tensorbord' to be one of", id="name"
        ),
        pytest.param([print], "to have the methods log and close", id="object"),
    ],
)
def test_what_is_no_logger_is_refused(log_to, wanted):
    with pytest.raises(ValueError, match=wanted):
        run(flower.FedAvg(**PLAIN), log_to=log_to)


def test_the_command_says_how_to_go_on_with_its_loggers(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("fl_epe.cli.run.check_loggers", list)
    monkeypatch.setattr("fl_epe.loggers.check_loggers", lambda names: [])

    def stop(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr("fl_epe.simulation.DPFedAvg.start", stop)
    words = [
        *SMALL,
        "--log-to",
        "mlflow",
        "--log-to",
        "wandb",
        "--output",
        str(tmp_path / "run"),
    ]
    assert main(words) == 130
    assert f"{tmp_path / 'run'} --log-to mlflow --log-to wandb" in "".join(
        capsys.readouterr()
    )


@pytest.mark.slow
def test_dp_sgd_logs_its_steps(tmp_path):
    optimizer = PlainDPSGD(
        np.zeros(2000),
        learning_rate=0.1,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=8,
        seed=0,
    )
    notes, rng = Notes(), np.random.default_rng(2)
    options = {"num_canaries": 40, "delta": 1e-5, "sample_rate": 0.2, "seed": 1}
    with audit_dp_sgd(
        optimizer, **options, log_to=[notes, Fails(OSError())]
    ) as audit:
        for _ in range(6):
            optimizer.step(rng.standard_normal((8, 2000)))
    assert list(notes.rounds) == list(range(1, 7))
    assert (
        notes.rounds[6]["epsilon-all"]
        == audit._auditor.epsilon_so_far().epsilon
    )
    assert not audit.faults
    audit.report(tmp_path)
    assert notes.summary["report"] == str(tmp_path / "report.html")


def test_the_recipe_for_a_logger_is_all_that_a_logger_needs(tmp_path):
    """CONTRIBUTING's row is followed in a copy of the package; no package has the logger's name."""
    source = Path(fl_epe.__file__).parent
    shutil.copytree(
        source,
        tmp_path / "fl_epe",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    path = tmp_path / "fl_epe" / "loggers.py"
    rows = (source.parent / "CONTRIBUTING.md").read_text("utf-8").splitlines()
    row = next(row for row in rows if row.startswith("| a logger |"))
    text = path.read_text("utf-8")
    changes = {
        "LoggerName": ('"wandb"]', '"wandb", "a-text-file"]'),
        "_built_in": (
            '        case "wandb":\n',
            '        case "a-text-file":\n            return _TextFile, None\n'
            '        case "wandb":\n',
        ),
        "RunLogger": (
            "class _MLflow:\n",
            "class _TextFile:\n"
            "    def __init__(self, folder: Path, resumed: bool) -> None:\n"
            "        self._path = folder / 'rounds.txt'\n\n"
            "    def log(self, round_number: int, values: Mapping[str, float]) -> None:\n"
            "        self._path.write_text(f'{round_number} {values}')\n\n"
            "    def close(self, summary: Mapping[str, float | str]) -> None:\n"
            "        pass\n\n\n"
            "class _MLflow:\n",
        ),
    }
    for named, (before, after) in changes.items():
        assert f"`{named}`" in row
        assert text.count(before) == 1
        text = text.replace(before, after)
    path.write_text(text, "utf-8")
    code = (
        "import pathlib, fl_epe, fl_epe.loggers as loggers\n"
        "print(pathlib.Path(fl_epe.__file__).parents[1])\n"
        "folder = pathlib.Path()\n"
        "loggers.Loggers('a-text-file', folder, print).log(3, {'loss': 1.5}, resumed=False)\n"
        "print(pathlib.Path('rounds.txt').read_text())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        timeout=PATIENCE,
    )
    assert done.stdout.splitlines() == [str(tmp_path), "3 {'loss': 1.5}"], (
        done.stderr
    )
