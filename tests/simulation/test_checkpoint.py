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
from fl_epe.simulation.checkpoint import (
    previous_of,
    read_checkpoint,
    write_checkpoint,
)


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
    assert {file.name for file in path.parent.iterdir()} <= {
        "checkpoint.npz",
        "run.log",
    }
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
    "rounds": (
        {"config": {"clients": 20, "rounds": "six"}},
        "rounds='six' to be an integer",
    ),
    "seeds": (
        {"seeds": dict.fromkeys(STREAMS, "x")},
        "canary='x' to be an integer",
    ),
    "seeds-list": ({"seeds": [1]}, "must be a mapping, not list"),
    "seeds-huge": (
        {"seeds": dict.fromkeys(STREAMS, 2**129)},
        "canary=[0-9]* <= ",
    ),
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


def test_a_series_that_is_none_is_refused_by_name(path, capsys):
    values, state = read_checkpoint(path)
    done = int(state["rounds_done"])
    state["history.clip_norm"] = np.array(1.5)
    _put(path, values, state)
    assert f"history.clip_norm has the shape (), not ({done},)" in _refused(
        path, capsys
    )


def test_a_state_without_a_part_is_refused_by_name(path, capsys):
    values, state = read_checkpoint(path)
    del state["theta"]
    _put(path, values, state)
    assert "it has no 'theta'" in _refused(path, capsys)
