"""``fl-epe run module:name`` in the folder where the module is."""

import importlib
import shlex
import sys
from pathlib import Path

import pytest
import torch

from fl_epe import AuditRecord
from fl_epe.cli.main import main
from fl_epe.simulation import StopRequest
from fl_epe.simulation.grids import EndedError

MODULE = '''
import torch
from own_data import SMALL, normalised, rows
from fl_epe.tasks import Task, from_datasets

def task(hidden: int = 8, clients: int = 10) -> Task:
    """Few rows.

    Args:
        hidden: width of the layer.
        clients: who share the rows.
    """
    def net():
        return torch.nn.Sequential(
            torch.nn.Linear(4, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 3)
        )
    return from_datasets(
        net, rows, inputs="x", targets="y", partition=f"iid:{clients}", defaults=SMALL
    )

def normal() -> Task:
    return from_datasets(
        normalised, rows, inputs="x", targets="y", partition="by:user", defaults=SMALL
    )

def rounds(rounds: int = 3) -> Task: return task()
def number() -> Task: return 3
def broken() -> Task: raise KeyError("no")

def stops() -> Task:
    """Its metric fails when it is told to."""
    from pathlib import Path
    def metric(outputs, targets):
        if Path("fail").exists() and len(targets) > 2:
            raise KeyError("told to")
        return 0.5
    return from_datasets(
        task().arguments.model, rows, inputs="x", targets="y", partition="iid:10",
        metric=metric, defaults=SMALL,
    )
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder with a module; the search path and the modules are afterwards as before."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here/owntask.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("owntask", None)


def _run(*words: str) -> int:
    return main(["run", "--seed", "1", "--workers", "1", *words])


def _error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert _run("--output", "none", *words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert not Path("none").exists()
    return lines[0]


def _ended(_):
    raise EndedError


def test_a_task_of_this_folder_is_trained_beside_other_files(
    capsys: pytest.CaptureFixture[str],
):
    Path("out/checkpoint.npz.part").mkdir(parents=True)
    Path("out/film.part").touch()
    Path("mine").write_text("mine")
    Path("out/run.log").symlink_to(Path("mine").absolute())
    assert _run("owntask:task", "--hidden", "16", "--output", "out") == 0
    assert Path("out/checkpoint.npz.part").is_dir()
    assert Path("out/film.part").is_file()
    assert Path("mine").read_text() == "mine"
    assert "run.log cannot be written" in capsys.readouterr().err
    record = AuditRecord.load(Path("out/record.npz"))
    assert record.dim == 4 * 16 + 16 + 16 * 3 + 3
    assert record.presence.shape[0] == 3
    assert "owntask:task" in str(record.provenance)
    assert record.provenance.faults == ()


def test_the_report_calls_a_client_what_the_data_call_it(
    capsys: pytest.CaptureFixture[str],
):
    _run("owntask:normal", "--output", "out")
    assert "one user" in " ".join(capsys.readouterr().out.split())
    assert (
        AuditRecord.load(Path("out/record.npz")).mechanism.participation.unit
        == "user"
    )


@pytest.mark.slow
def test_the_command_that_goes_on_can_be_pasted(
    capsys: pytest.CaptureFixture[str],
):
    assert (
        _run("owntask:task", "--hidden", "16", "--output", "an 'odd' folder")
        == 0
    )
    capsys.readouterr()
    assert main(["resume", "an 'odd' folder"]) == 2
    advised = capsys.readouterr().err.strip().rpartition("See: ")[2]
    assert main(shlex.split(advised)[1:]) == 0


def test_its_options_are_in_the_help(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["run", "owntask:task", "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "options of the task" in text
    assert "--hidden N width of the layer (default: 8)" in text
    assert "--clients N who share the rows (default: 10)" in text


def test_notes_are_printed_before_training(capsys: pytest.CaptureFixture[str]):
    assert _run("owntask:normal", "--output", "out") == 0
    said = capsys.readouterr().err
    assert said.startswith(
        "Note: BatchNorm: its weights, if any, are trained and audited"
    )


ERRORS = {
    "module": (
        ("nowhere:task",),
        "No module 'nowhere' for task name='nowhere:task': run from",
    ),
    "name": (("owntask:tsk",), "broken, stops (did you mean task?)"),
    "short": (("owntask",), "to be one of digits"),
    "file": (("owntask.py:task",), "with dots and without .py"),
    "option": (("owntask:task", "--hidden", "0.5"), "--hidden"),
    "clients": (
        ("owntask:task", "--clients", "70"),
        "there are 54 rows for 70 clients",
    ),
    "taken": (
        ("owntask:rounds",),
        "fl-epe run has an option --rounds of its own",
    ),
    "number": (("owntask:number",), "owntask:number to make a Task, got int"),
    "broken": (
        ("owntask:broken",),
        "failed with KeyError: 'no' (owntask.py, line",
    ),
    "os": (
        ("os:system",),
        "name='os:system' to be a subclass of fl_epe.tasks.Task",
    ),
}


@pytest.mark.parametrize("case", [name for name in ERRORS if name != "option"])
def test_an_error_is_one_line(case: str, capsys: pytest.CaptureFixture[str]):
    words, message = ERRORS[case]
    assert message in _error(capsys, *words)


def test_an_option_of_another_type_is_refused(
    capsys: pytest.CaptureFixture[str],
):
    with pytest.raises(SystemExit) as ended:
        _run("owntask:task", "--hidden", "0.5")
    assert ended.value.code == 2
    assert (
        "argument --hidden: invalid int value: '0.5'" in capsys.readouterr().err
    )


def test_a_module_here_stands_in_for_no_package_of_a_built_in_task():
    assert _run("digits", "--rounds", "0") == 2
    assert str(Path.cwd()) not in sys.path


def test_a_failing_metric_is_the_tasks_fault(
    capsys: pytest.CaptureFixture[str],
):
    Path("fail").touch()
    assert _run("owntask:stops", "--output", "out") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert (
        "The task 'owntask:stops' failed with KeyError: 'told to' (owntask.py, line"
        in said
    )


def _stopped_run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """A run that ends after its first round, as if it were interrupted."""
    words = words or ("owntask:task", "--hidden", "16")
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "raise_if_asked", _ended)
        assert _run(*words, "--output", "out") == 130


def test_a_stopped_run_is_resumed_from_this_folder(
    monkeypatch: pytest.MonkeyPatch,
):
    _stopped_run(monkeypatch)
    sys.modules.pop("owntask")
    assert (
        main(["resume", "out", "--task", "owntask:task", "--workers", "1"]) == 0
    )
    assert (
        AuditRecord.load(Path("out/record.npz")).dim == 4 * 16 + 16 + 16 * 3 + 3
    )


def test_no_checkpoint_chooses_the_module_that_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A folder that somebody sent: the checkpoint names a module that lies beside it."""
    _stopped_run(monkeypatch)
    how_to_go_on = "Continue with: fl-epe resume out --task owntask:task"
    assert how_to_go_on in capsys.readouterr().out
    sys.modules.pop("owntask")
    Path("owntask.py").write_text(
        "from pathlib import Path; Path('came').touch()"
    )
    for words, said in {
        (): "Expected --task='owntask:task' to be named again: the checkpoint in out names this",
        (
            "--task",
            "digits",
        ): "Expected task='digits' to be 'owntask:task', the task of the",
    }.items():
        assert main(["resume", "out", *words]) == 2
        assert said in capsys.readouterr().err
    assert not Path("came").exists()
    assert "owntask" not in sys.modules


@pytest.mark.slow
@pytest.mark.parametrize("here", [True, False], ids=["own-task", "built-in"])
def test_resume_looks_here_only_for_a_task_of_ones_own(
    here: bool, monkeypatch: pytest.MonkeyPatch
):
    few = ["--num-canaries", "2", "--unobserved", "2", "--clipping", "fixed"]
    _stopped_run(monkeypatch, "owntask:task" if here else "digits", *few)
    with monkeypatch.context() as patch:
        patch.setattr(
            sys, "path", [path for path in sys.path if path != str(Path.cwd())]
        )
        patch.setattr(StopRequest, "raise_if_asked", _ended)
        again = ["--task", "owntask:task"] if here else []
        assert main(["resume", "out", "--workers", "1", *again]) == 130
        assert (str(Path.cwd()) in sys.path) == here


def test_from_another_folder_it_is_said_where_to_go(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    _stopped_run(monkeypatch)
    sys.modules.pop("owntask")
    monkeypatch.setattr(
        sys, "path", [path for path in sys.path if path != str(Path.cwd())]
    )
    importlib.invalidate_caches()
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert (
        main(["resume", "here/out", "--workers", "1", "--task", "owntask:task"])
        == 2
    )
    (said,) = capsys.readouterr().err.splitlines()
    assert "No module 'owntask'" in said
    assert "run from the folder that owntask.py is in" in said


@pytest.mark.slow
def test_compare_trains_a_task_of_this_folder():
    words = [
        "compare",
        "--task",
        "owntask:task",
        "--task-option",
        "hidden=4",
        "--workers",
        "1",
    ]
    words += [
        "--schedules",
        "epochs",
        "--noise-multipliers",
        "0.2",
        "--participations",
        "1",
    ]
    words += [
        "--rounds",
        "3",
        "--set",
        "num-canaries=8",
        "--delta",
        "0.1",
        "--output",
        "grid",
    ]
    assert main(words) == 0
    assert "owntask:task" in Path("grid/compare.json").read_text()
    assert len(list(Path("grid").rglob("*.npz"))) == 1


@pytest.mark.slow
def test_the_final_model_is_kept_for_ones_own_module(
    monkeypatch: pytest.MonkeyPatch,
):
    assert _run("owntask:normal", "--save-model", "--output", "out") == 0
    task = importlib.import_module("owntask").normal()
    net = task.arguments.model()
    assert not net.load_state_dict(torch.load("out/model.pt")).missing_keys
    theta = torch.cat(
        [part.detach().flatten() for part in net.parameters()]
    ).numpy()
    last = AuditRecord.load(Path("out/record.npz")).metrics["eval_loss"][-1]
    assert task.evaluate(theta)["loss"] == last
    monkeypatch.setattr(torch, "save", _no_room)
    assert _run("owntask:normal", "--save-model", "--output", "full") == 0
    assert Path("full/report.json").exists()


def _no_room(*arguments: object) -> None:
    raise OSError(28, "No space left on device")
