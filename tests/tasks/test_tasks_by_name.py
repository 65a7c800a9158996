"""Tasks found by name: the built-in ones, and those of one's own modules."""

import importlib
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_epe.config import RunConfig
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job
from fl_epe.tasks import Task, find_task, is_reference, load_task
from fl_epe.tasks.by_name import BUILT_IN, look_in_current_folder

ROOT = Path(__file__).parents[2]

TASKS = '''
import dataclasses
import sys
from pathlib import Path
import torch
from own_data import net, rows
from fl_epe.tasks import ClientData, LossSum, Task, from_datasets

@dataclasses.dataclass(frozen=True)
class Mine(Task):
    """Options.

    Attributes:
        num_clients: how many.
        shift: added to every input.
    """
    num_clients: int = 6
    shift: float = 0.0
    where: Path = Path("here")
    layers: tuple[int, ...] = (8,)

    def model(self): return torch.nn.Linear(4, 3)
    def client(self, client_id):
        self.check_client(client_id)
        return ClientData(torch.ones(3, 4) * client_id + self.shift, torch.arange(3))
    def held_out(self): return self.client(0)
    def loss(self, outputs, targets):
        return LossSum(torch.nn.functional.cross_entropy(outputs, targets, reduction="sum"), 0, 3)

class Plain(Mine.__mro__[1]):
    """Not a dataclass, with state of its own."""
    num_clients = 4
    def __init__(self): self.made = 7
    model, held_out, loss = Mine.model, Mine.held_out, Mine.loss
    def client(self, client_id):
        self.check_client(client_id)
        return ClientData(torch.full((3, 4), float(self.made)), torch.arange(3))

class Abstract(Task):
    def model(self): return torch.nn.Linear(4, 3)

class Holder:
    inside = Mine(num_clients=2)

def made(width: int, name: str = "a", *, fast: bool = False, layers: tuple[int, ...] = ()) -> Task:
    """A function."""
    model = lambda: torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 3))
    return from_datasets(model, rows, inputs="x", targets="y", partition="iid:5")

def bare(width: int = 3): return made(width)
def wrong() -> Task: return 3
def untyped(width, other=None) -> Task: return made(3)
def text() -> str: return "a"
def broken() -> Task: raise KeyError("no")

instance = Mine(num_clients=3)
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder with modules, of which nothing is left afterwards."""
    (tmp_path / "own_tasks_here.py").write_text(TASKS)
    (tmp_path / "own_raises.py").write_text(
        "x = 1\nraise RuntimeError('not today')\n"
    )
    (tmp_path / "own_exits.py").write_text(
        "import sys\nsys.exit('usage: none')\n"
    )
    (tmp_path / "own_syntax.py").write_text("def f(:\n")
    (tmp_path / "own_needs.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "own_empty.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("own_")]:
        if name != "own_data":
            del sys.modules[name]


def test_a_class_is_made_with_its_fields():
    task: Any = load_task("own_tasks_here:Mine", num_clients=9, shift=2)
    assert (task.num_clients, task.shift) == (9, 2)
    assert task.client(1).inputs[0, 0] == 3
    assert task.reference == "own_tasks_here:Mine"
    assert task.options() == {"num_clients": 9, "shift": 2}


def test_a_function_is_called_with_its_arguments():
    task = load_task("own_tasks_here:made", width=7, fast=True, layers=[1, 2])
    assert task.dim == 4 * 7 + 7 + 7 * 3 + 3
    assert task.reference == "own_tasks_here:made"
    assert task.options() == {"width": 7, "fast": True, "layers": (1, 2)}


@pytest.mark.parametrize("name", ["instance", "Holder.inside"])
def test_a_task_is_taken_as_it_is(name: str):
    task = load_task(f"own_tasks_here:{name}")
    assert task.num_clients == {"instance": 3, "Holder.inside": 2}[name]
    assert task.options() == {}


def test_a_class_without_fields_may_have_state():
    task = load_task("own_tasks_here:Plain")
    assert task.client(0).inputs[0, 0] == 7
    assert task == task
    assert task != load_task("own_tasks_here:Plain")
    assert pickle.loads(pickle.dumps(task)).made == 7  # noqa: S301


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_built_in_tasks_are_found_in_the_same_way(name: str):
    short, long = find_task(name), find_task(BUILT_IN[name])
    assert short.make is long.make
    assert short.settings is long.settings
    assert is_reference(name)
    assert is_reference(BUILT_IN[name])


WRONG = {
    "unknown": (
        "mine",
        ValueError,
        "task name='mine' to be one of digits, .* or 'module:name'",
    ),
    "no-module": (
        "own_nothing:task",
        ModuleNotFoundError,
        "No module 'own_nothing' .*PYTHONPATH",
    ),
    "no-package": (
        "own_no.tasks:t",
        ModuleNotFoundError,
        "folder that own_no.py is in",
    ),
    "raises": (
        "own_raises:t",
        ImportError,
        "RuntimeError: not today .own_raises.py, line 2",
    ),
    "exits": (
        "own_exits:t",
        ImportError,
        "SystemExit: usage: none .own_exits.py, line 2",
    ),
    "syntax": (
        "own_syntax:t",
        ImportError,
        "SyntaxError: .*own_syntax.py, line 1",
    ),
    "needs": (
        "own_needs:t",
        ModuleNotFoundError,
        "No module named 'nothing_of_this_name'",
    ),
    "no-name": (
        "own_tasks_here:made2",
        ValueError,
        "no 'made2', it has .*Mine, Plain, made, ",
    ),
    "no-task": (
        "own_empty:task",
        ValueError,
        "there is no 'task', it has no task",
    ),
    "empty-name": ("own_tasks_here:", ValueError, "there is no ''"),
    "not-a-task": (
        "own_empty:answer",
        ValueError,
        "a subclass of .*or a task, got int",
    ),
    "other-class": (
        "own_tasks_here:Holder",
        ValueError,
        "subclass of .*got type",
    ),
    "abstract": (
        "own_tasks_here:Abstract",
        ValueError,
        "to define client, held_out, loss",
    ),
    "bare": ("own_tasks_here:bare", ValueError, r"got def bare\(...\) without"),
    "text": (
        "own_tasks_here:text",
        ValueError,
        r"annotated to return one, .*, got def text",
    ),
    "untyped": (
        "own_tasks_here:untyped",
        ValueError,
        "the argument 'width' with a type",
    ),
    "file": ("own_tasks_here.py:Mine", ValueError, "with dots and without .py"),
    "path": (
        "./own_tasks_here.py:Mine",
        ValueError,
        "with dots and without .py",
    ),
    "relative": (
        ".own_tasks_here:Mine",
        ValueError,
        "to be 'module:name', e.g.",
    ),
    "dash": ("own-tasks:Mine", ValueError, "to be 'module:name', e.g."),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_reference_is_refused(case: str):
    reference, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        find_task(reference)


@pytest.mark.parametrize(
    "reference",
    [
        "os:system",
        "subprocess:Popen",
        "builtins:exec",
        "shutil:rmtree",
        "os:path.join",
    ],
)
def test_what_is_no_task_is_never_called(
    reference: str, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(ValueError, match=f"name='{reference}' to be a"):
        find_task(reference)
    with pytest.raises(ValueError, match=f"name='{reference}' to be a"):
        load_task(reference, command="true", args="true")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        pytest.param(
            "Mine",
            {"size": 3},
            "Unknown option size=3 .*num_clients, shift",
            id="unknown",
        ),
        pytest.param(
            "instance",
            {"size": 3},
            "option size=3 .*: it has none",
            id="of-an-instance",
        ),
        pytest.param(
            "Mine",
            {"num_clients": "6"},
            "num_clients='6' .*a valid integer",
            id="text",
        ),
        pytest.param(
            "Mine",
            {"num_clients": 6.5},
            "num_clients=6.5 .*a valid integer",
            id="half",
        ),
        pytest.param(
            "Mine", {"num_clients": True}, "True .*a valid integer", id="flag"
        ),
        pytest.param(
            "made",
            {"width": 3, "fast": 1},
            "fast=1 .*a valid boolean",
            id="number",
        ),
        pytest.param(
            "made", {"width": 3, "layers": ["a"]}, "layers=", id="layers"
        ),
        pytest.param(
            "made", {}, "option width=None .*to be given", id="missing"
        ),
    ],
)
def test_a_wrong_option_is_refused(
    name: str, options: dict[str, Any], message: str
):
    with pytest.raises(ValueError, match=message):
        load_task(f"own_tasks_here:{name}", **options)


def test_a_function_that_returns_something_else_is_named():
    with pytest.raises(
        ValueError, match=r"own_tasks_here:wrong to make a Task, got int"
    ):
        load_task("own_tasks_here:wrong")


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "class": ("Mine", {"num_clients": 9, "shift": 0.5, "where": Path("there")}),
    "function": ("made", {"width": 5, "layers": (1, 2)}),
    "instance": ("instance", {}),
    "plain": ("Plain", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_job_goes_through_json(case: str):
    name, options = CASES[case]
    task = load_task(f"own_tasks_here:{name}", **options)
    config = RunConfig(
        clients=task.num_clients, clients_per_round=2, clipping="fixed"
    )
    job = Job(task, config, Seeds.derive(1))
    text = job.to_dict()
    again = Job.from_dict(text)
    assert again.to_dict() == text
    assert job.differences(again.to_dict()) == []
    assert again.task.options() == text["options"] or case == "function"
    assert type(again.task) is type(task)
    np.testing.assert_array_equal(again.task.initial(1), task.initial(1))
    for left, right in zip(
        again.task.client(1).inputs, task.client(1).inputs, strict=True
    ):
        assert left.tolist() == right.tolist()


_OTHER_PROCESS = """
import hashlib, pickle, sys
task = pickle.load(sys.stdin.buffer)
data = task.client(1)
print(hashlib.sha256(task.initial(2).tobytes() + data.inputs.numpy().tobytes()).hexdigest())
"""


@pytest.mark.weekly
@pytest.mark.parametrize("case", CASES)
def test_another_process_unpickles_the_same_task(case: str, folder: Path):
    import hashlib

    name, options = CASES[case]
    task = load_task(f"own_tasks_here:{name}", **options)
    packed = pickle.dumps(task)
    assert len(packed) < 600
    paths = os.pathsep.join(map(str, [ROOT, ROOT / "tests/support", folder]))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_OTHER_PROCESS)],
        input=packed, capture_output=True, check=True, env=os.environ | {"PYTHONPATH": paths},
    )  # fmt: skip
    values = task.initial(2).tobytes() + task.client(1).inputs.numpy().tobytes()
    assert done.stdout.decode().strip() == hashlib.sha256(values).hexdigest()


def test_a_loaded_pickle_is_found_by_the_same_name():
    task: Task = load_task("own_tasks_here:made", width=5)
    again = pickle.loads(pickle.dumps(task))  # noqa: S301
    assert (again.reference, again.options()) == (
        task.reference,
        task.options(),
    )


def test_the_current_folder_is_looked_in_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/elsewhere"])
    for _ in range(2):
        look_in_current_folder()
    assert sys.path == [os.getcwd(), "/elsewhere"]
