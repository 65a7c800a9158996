"""The file of an unfinished run: private, checked, and refused by the name of what is wrong."""

import dataclasses
import stat

import numpy as np
import pytest
from fuzz_seeds import _checkpoint, tiny_task

from fl_epe.archive import read_archive
from fl_epe.cli.main import main
from fl_epe.seeding import Seeds
from fl_epe.simulation import load_job
from fl_epe.simulation.checkpoint import previous_of, read_checkpoint, write_checkpoint


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    return _checkpoint(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def path(content, tmp_path, monkeypatch):
    monkeypatch.setattr("fl_epe.simulation.checkpoint.load_task", tiny_task)
    (tmp_path / "checkpoint.npz").write_bytes(content)
    return tmp_path / "checkpoint.npz"


def _put(path, job, state):
    """Write a checkpoint, with none before it."""
    write_checkpoint(path, job, state)
    previous_of(path).unlink(missing_ok=True)


def _refused(path, capsys):
    assert main(["resume", str(path.parent)]) == 2
    printed = capsys.readouterr().err
    assert str(path) in printed
    assert len(printed.splitlines()) == 1
    assert {file.name for file in path.parent.iterdir()} <= {"checkpoint.npz", "run.log"}
    return printed


def test_a_checkpoint_is_for_its_owner_alone(path):
    path.chmod(0o644)
    write_checkpoint(path, *read_checkpoint(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_checkpoint_that_lost_its_checksums_is_refused(path, capsys):
    np.savez(path, **read_archive(path, "a checkpoint")[1])
    assert "it has no checksums" in _refused(path, capsys)


STREAMS = tuple(field.name for field in dataclasses.fields(Seeds))
JOBS = {
    "task": ({"task": 3}, "task"),
    "config": ({"config": []}, "must be a mapping, not list"),
    "rounds": ({"config": {"clients": 20, "rounds": "six"}}, "rounds='six' to be an integer"),
    "seeds": ({"seeds": dict.fromkeys(STREAMS, "x")}, "canary='x' to be an integer"),
    "seeds-list": ({"seeds": [1]}, "must be a mapping, not list"),
    "seeds-huge": ({"seeds": dict.fromkeys(STREAMS, 2**129)}, "canary=[0-9]* <= "),
    "every": ({"evaluate_every": 0}, "evaluate_every=0 to be an integer >= 1"),
}


@pytest.mark.parametrize(("changes", "message"), JOBS.values(), ids=JOBS)
def test_a_job_that_is_none(changes, message, path):
    _put(path, read_checkpoint(path)[0] | changes, {})
    with pytest.raises(ValueError, match=message) as refusal:
        load_job(path)
    assert str(path) in str(refusal.value)


def test_a_job_without_a_part(path):
    values = read_checkpoint(path)[0]
    del values["config"]
    _put(path, values, {})
    with pytest.raises(ValueError, match="it has no 'config'"):
        load_job(path)


STATES = {
    "rounds-done": ("rounds_done", np.array(7), r"rounds_done=7 is not in \[1, 4\]"),
    "rounds-real": ("rounds_done", np.array(3.0), "rounds_done is float64"),
    "theta-missing": ("theta", None, "it has no 'theta'"),
    "theta-short": ("theta", np.zeros(3, np.float32), r"theta is float32 of shape \(3,\)"),
    "theta-nan": ("theta", np.full(105, np.nan, np.float32), "theta is not finite"),
    "theta-double": ("theta", np.zeros(105), "flat float32 model, got float64"),
    "clip-norm": ("clip_norm", np.array(-1.0), "clip_norm=-1.0 is not > 0"),
    "velocity": ("optimizer.velocity", np.zeros(2), "optimizer.velocity is float64 of shape"),
    "presence": ("presence", np.zeros((4, 6)), "presence is float64"),
    "clients": ("client_ids", np.full(15, 99), r"client_ids are not in \[0, 20\)"),
    "offsets": ("client_offsets", np.array([0, 9, 5, 15]), "client_offsets do not rise"),
    "history": ("history.train_loss", np.zeros(9), "history.train_loss is float64 of shape"),
    "series": ("series.eval_loss", np.zeros(9), "series.eval_loss is float64 of shape"),
    "scores": ("auditor.dots.mean", np.zeros((1, 99)), "auditor.dots.mean is float64 of shape"),
    "names": ("auditor.waiting.names", np.array(["x"] * 3), "auditor.waiting.vectors is float32"),
}


@pytest.mark.parametrize(("name", "value", "message"), STATES.values(), ids=STATES)
def test_a_state_that_does_not_fit_is_refused_by_name(name, value, message, path, capsys):
    state = read_checkpoint(path)[1]
    del state[name]
    if value is not None:
        state[name] = value
    _put(path, read_checkpoint(path)[0], state)
    printed = _refused(path, capsys)
    import re

    assert re.search(message, printed), printed
