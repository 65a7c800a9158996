"""`fl-epe new`: what it writes runs as it is."""

import ast
import csv
import io
import json
import re
import subprocess
import sys
import threading

import numpy as np
import pandas
import pytest
import scipy
from sklearn.datasets import load_breast_cancer

from fl_epe.auditing import AuditRecord
from fl_epe.cli import console
from fl_epe.cli.main import main
from fl_epe.tasks import load_task

FEW = [
    "--rounds",
    "2",
    "--num-canaries",
    "2",
    "--unobserved",
    "10",
    "--seed",
    "1",
]


@pytest.fixture
def own_modules(monkeypatch, tmp_path):
    """A folder to be in, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", None) and str(
            tmp_path
        ) in str(sys.modules[name].__file__):
            del sys.modules[name]


def table(path, targets):
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["a b", "count", "colour", "whose", "goal"])
        for i in range(60):
            rows.writerow([i / 7, i % 5, "red", f"u{i % 12}", targets(i)])


@pytest.mark.slow
def test_the_example_runs(own_modules, capsys):
    assert main(["new"]) == 0
    assert "fl-epe run my_task:task" in capsys.readouterr().out
    assert main(["run", "my_task:task", "--output", "out", *FEW]) == 0
    assert capsys.readouterr().err == ""
    assert (own_modules / "out" / "report.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "outputs"),
    [
        pytest.param(lambda i: ["no", "yes", "maybe"][i % 3], 3, id="text"),
        pytest.param(lambda i: i % 4, 4, id="classes"),
        pytest.param(lambda i: i / 3, 1, id="real-numbers"),
    ],
)
def test_a_table_becomes_a_task(targets, outputs, own_modules, capsys):
    table(own_modules / "t.csv", targets)
    new = [
        "new",
        "mine.py",
        "--data",
        "t.csv",
        "--targets",
        "goal",
        "--by",
        "whose",
    ]
    assert main(new) == 0
    text = (own_modules / "mine.py").read_text()
    assert 'NUMBERS = ["a b", "count"]' in text
    assert "CATEGORIES = []" in text  # one colour says nothing
    assert f"torch.nn.Linear(64, {outputs})" in text
    assert main(["run", "mine:task", "--output", "out", *FEW]) == 0, (
        capsys.readouterr().err
    )


@pytest.mark.slow
def test_a_regression_is_scaled_and_one_that_learns_nothing_is_no_success(
    own_modules, capsys
):
    table(own_modules / "t.csv", lambda i: 1e5 + 3e4 * (i % 5))
    assert (
        main(
            [
                "new",
                "mine.py",
                "--data",
                "t.csv",
                "--targets",
                "goal",
                "--by",
                "whose",
            ]
        )
        == 0
    )
    own = (own_modules / "mine.py").read_text()
    (own_modules / "plain.py").write_text(own.replace("    loss=loss,\n", ""))
    few = [
        *FEW,
        "--rounds",
        "12",
        "--evaluate-every",
        "1",
        "--noise-multiplier",
        "0.01",
    ]
    capsys.readouterr()
    assert main(["run", "mine:task", "--output", "out", *few]) == 0
    said = capsys.readouterr().out
    assert "held out " in said
    (found,) = re.findall("The model's loss on held-out data: (.+)", said)
    assert float(found) < 0.5  # of the targets' variance
    assert main(["run", "plain:task", "--output", "bad", *few]) == 3
    assert "Diverged, as " in capsys.readouterr().out
    assert (
        json.loads((own_modules / "bad/report.json").read_text())["status"]
        == "diverged"
    )


def logistic_table(path, share):
    """6,000 rows of 100 clients with eight columns, whose logistic truth is met by that share."""
    random = np.random.default_rng(1)
    inputs, weights = (
        random.standard_normal((6000, 8)),
        random.standard_normal(8),
    )
    scores = 1.1 * inputs @ weights / np.linalg.norm(weights)
    start = scipy.optimize.brentq(
        lambda b: scipy.special.expit(scores + b).mean() - share, -9, 9
    )
    goals = random.random(6000) < scipy.special.expit(scores + start)
    names = ",".join(["a", "b", "c", "d", "e", "f", "g", "h", "whose", "goal"])
    rows = np.column_stack([inputs, np.arange(6000) % 100, goals])
    np.savetxt(path, rows, "%.4f," * 8 + "%d,%d", header=names, comments="")


@pytest.mark.slow
@pytest.mark.parametrize(
    "share",
    [
        pytest.param(0.045, id="4.5-percent"),
        pytest.param(0.13, id="13-percent"),
    ],
)
def test_a_model_of_a_rare_class_that_learned_is_a_success(
    share, own_modules, capsys
):
    logistic_table(own_modules / "t.csv", share)
    assert (
        main(
            [
                "new",
                "mine.py",
                "--data",
                "t.csv",
                "--targets",
                "goal",
                "--by",
                "whose",
            ]
        )
        == 0
    )
    words = [
        "--seed",
        "1",
        "--rounds",
        "40",
        "--evaluate-every",
        "10",
        "--output",
        "out",
    ]
    assert main(["run", "mine:task", *words]) == 0, capsys.readouterr()
    said = capsys.readouterr().out
    (auc,) = re.findall(r"The model's ROC AUC on held-out data: ([\d.]+)", said)
    assert 0.65 < float(auc) < 0.9  # the truth's is about 0.77
    report = json.loads((own_modules / "out/report.json").read_text())
    assert report["status"] == "ok"
    assert report["run"]["held_out"]["ROC_AUC"] == auc
    assert "ROC AUC" in (own_modules / "out/report.html").read_text()
    record = AuditRecord.load(own_modules / "out/record.npz")
    assert record.design.chance_accuracy == pytest.approx(1 - share, abs=0.02)
    assert record.design.chance_loss is not None
    assert record.metrics["eval_loss"][-1] < record.design.chance_loss


def test_the_table_is_found_from_any_folder(own_modules, monkeypatch, capsys):
    (own_modules / "data").mkdir()
    (own_modules / "tasks").mkdir()
    table(own_modules / "data/t.csv", lambda i: i % 2)
    assert (
        main(
            ["new", "tasks/far.py", "--data", "data/t.csv", "--targets", "goal"]
        )
        == 0
    )
    text = (own_modules / "tasks/far.py").read_text()
    assert f'read_tables("{own_modules / "data/t.csv"}")' in text
    assert "Next: cd tasks && fl-epe run far:task" in capsys.readouterr().out
    (own_modules / "elsewhere").mkdir()
    monkeypatch.chdir(own_modules / "elsewhere")
    monkeypatch.syspath_prepend(own_modules / "tasks")
    assert (
        load_task("far:task").num_clients == 54
    )  # a tenth of 60 rows is held out


def _hospital(path):
    """A table as people have it: missing values, categories, dates, identifiers, notes."""
    table = load_breast_cancer(as_frame=True).frame.iloc[:200, [0, 1, 2, 30]]
    table.columns = ["radius", "texture", "perimeter", "outcome"]
    random = np.random.default_rng(7)
    size = len(table)
    for name in ("radius", "texture", "outcome"):
        table[name] = table[name].where(random.random(size) > 0.1)
    table["perimeter"] = table["perimeter"].where(
        random.random(size) > 0.02, np.inf
    )
    table["sex"] = random.choice(["f", "m", ""], size)
    table["code"] = random.choice([f"C{i}" for i in range(40)], size)
    table["admitted"] = [f"{1 + i % 28:02}.03.2021" for i in range(size)]
    table["patient_id"] = 1000 + random.permutation(size)
    table["case"] = 5000 + random.permutation(size)
    table["hospital"] = random.choice([f"H{i}" for i in range(12)], size)
    table["note"] = [f"seen by {i}" for i in range(size)]
    table.to_csv(path, index=False)
    return int(table["outcome"].count())


@pytest.mark.slow
def test_a_table_as_people_have_it_runs_without_an_edit(
    own_modules, monkeypatch, capsys
):
    size = _hospital(own_modules / "t.csv")
    new = [
        "new",
        "ward.py",
        "--data",
        "t.csv",
        "--targets",
        "outcome",
        "--by",
        "hospital",
    ]
    assert main(new) == 0
    said = capsys.readouterr().out.splitlines()
    text = (own_modules / "ward.py").read_text()
    assert 'DATES = {"admitted": "%d.%m.%Y"}' in text
    assert "Categories: sex, code" in said
    assert any(
        line.startswith("Rows left out, without outcome or hospital: ")
        for line in said
    )
    for name, reason in {
        "patient_id": "its name is that of an identifier",
        "case": f"whole numbers as of an identifier, {size} different values in {size} rows",
        "note": f"text as of an identifier or a note, {size} different values in {size} rows",
    }.items():
        assert f"Left out: {name} ({reason})" in said
        assert f"# Left out: '{name}': {reason}." in text
    assert "computed from your data without noise" in text
    monkeypatch.syspath_prepend(own_modules)
    inputs = load_task("ward:task").held_out().inputs
    # Three numbers and what is missing of each, a date, two sexes or none, 20 of 40 codes.
    assert inputs.shape[1] == 3 + 3 + 1 + 3 + 20
    assert main(["run", "ward:task", "--output", "out", *FEW]) == 0, (
        capsys.readouterr().err
    )


@pytest.mark.slow
def test_owners_of_very_uneven_sizes_run_without_an_edit(own_modules, capsys):
    random = np.random.default_rng(8)
    sizes = [1, 1, 2, 200, *random.integers(3, 20, 36)]
    owners = np.repeat([f"o{i}" for i in range(40)], sizes)
    values = random.standard_normal((len(owners), 3))
    table = pandas.DataFrame(values, columns=["a", "b", "c"])
    table["label"] = np.where(values[:, 0] > 0, "yes", "no")
    table["owner"] = owners
    table.to_csv("t.csv", index=False)
    new = [
        "new",
        "uneven.py",
        "--data",
        "t.csv",
        "--targets",
        "label",
        "--by",
        "owner",
    ]
    assert main(new) == 0
    assert main(["run", "uneven:task", "--output", "out", *FEW]) == 0, (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("clients", "cohort", "often"),
    [
        pytest.param(2, 1, "30", id="two"),
        pytest.param(40, 20, "30", id="few"),
        pytest.param(500, 24, "2.9", id="some"),
        pytest.param(3000, 100, "2", id="many"),
    ],
)
def test_a_client_takes_part_at_least_twice(
    clients, cohort, often, own_modules
):
    table = pandas.DataFrame(
        {"x": np.arange(2 * clients) / 7, "goal": [0, 1] * clients}
    )
    table["owner"] = np.repeat(np.arange(clients), 2)
    table.to_csv("t.csv", index=False)
    new = [
        "new",
        "mine.py",
        "--data",
        "t.csv",
        "--targets",
        "goal",
        "--by",
        "owner",
    ]
    assert main(new) == 0
    text = (own_modules / "mine.py").read_text()
    assert f'defaults={{"clients_per_round": {cohort}}}' in text
    assert f"# {often} times on average" in text


def test_what_takes_long_is_said(monkeypatch):
    class Stream(io.StringIO):
        is_terminal = True

        def isatty(self):
            return self.is_terminal

        def write(self, text):
            super().write(text)
            if text == "\n":
                ended.set()

    ended = threading.Event()
    stream = Stream()
    monkeypatch.setattr(console, "MAX_SILENT_SECONDS", 0)
    monkeypatch.setattr(sys, "stderr", stream)
    with console.waiting("Reading t.csv"):
        assert ended.wait(60)
    assert stream.getvalue() == "Reading t.csv …\n"
    stream.is_terminal = False
    ended.clear()
    with console.waiting("Reading u.csv"):
        assert not ended.wait(0.2)


def test_images_are_sent_to_the_guide(own_modules, capsys):
    datasets = pytest.importorskip("datasets")
    rows = {"picture": [[0, 1]] * 20, "goal": ["x", "y"] * 10}
    datasets.Dataset.from_dict(rows).save_to_disk(str(own_modules / "saved"))
    capsys.readouterr()
    assert main(["new", "mine.py", "--data", "saved", "--targets", "goal"]) == 2
    said = capsys.readouterr().err
    assert "from_datasets: see docs/guides/own-task.md" in said
    assert not (own_modules / "mine.py").exists()


def test_what_it_writes_is_formatted(own_modules):
    table(own_modules / "t.csv", lambda i: i / 3)
    assert main(["new"]) == 0
    assert main(["new", "mine.py", "--data", "t.csv", "--targets", "goal"]) == 0
    found = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length", "100", "."],
        cwd=own_modules, capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(
            ["my-task.py"],
            "FILE='my-task.py' to be a name that Python",
            id="name",
        ),
        pytest.param(
            ["task.txt"],
            "FILE='task.txt' to be a name that Python",
            id="ending",
        ),
        pytest.param(
            ["no/x.py"],
            "FILE='no/x.py' to be in a folder that exists",
            id="folder",
        ),
        pytest.param(
            ["--by", "x"], "--data beside --targets and --by", id="no-data"
        ),
        pytest.param(
            ["--data", "no.csv", "--targets", "x"],
            "dataset='no.csv'",
            id="missing",
        ),
        pytest.param(
            ["--data", "t.csv"], "--targets to name a column", id="no-targets"
        ),
        pytest.param(
            ["--data", "t.csv", "--targets", "gaol"],
            "--targets='gaol' to be a column",
            id="targets",
        ),
        pytest.param(
            ["--data", "t.csv", "--targets", "goal", "--by", "who"],
            "--by='who' to be a column of t.csv: a b, count, colour, whose, goal",
            id="by",
        ),
        pytest.param(
            ["--data", "t.csv", "--targets", "Goal"],
            "goal (did you mean goal?)",
            id="capital",
        ),
        pytest.param(
            ["--data", "ts.csv", "--targets", "goal"],
            "(did you mean t.csv?)",
            id="file-beside",
        ),
        pytest.param(
            ["--data", "t.csv", "--targets", "whose", "--by", "whose"],
            "--by='whose' to be another column than --targets",
            id="by-its-target",
        ),
    ],
)
def test_errors_name_what_was_typed(words, says, own_modules, capsys):
    table(own_modules / "t.csv", lambda i: i % 2)
    assert main(["new", *words]) == 2
    assert says in capsys.readouterr().err
    assert not list(own_modules.glob("*.py"))
    assert not (own_modules / "no").exists()


def test_a_space_needs_quotes(own_modules, capsys):
    table(own_modules / "t.csv", lambda i: i % 2)
    with pytest.raises(SystemExit):
        main(["new", "mine.py", "--data", "t.csv", "--targets", "a", "b"])
    assert (
        "arguments: b (a value with a space needs quotes)"
        in capsys.readouterr().err
    )


def test_a_file_that_exists_is_left_alone(own_modules, capsys):
    (own_modules / "my_task.py").write_text("mine")
    assert main(["new"]) == 2
    assert "FILE='my_task.py' not to exist" in capsys.readouterr().err
    assert (own_modules / "my_task.py").read_text() == "mine"


def test_many_names_with_spaces_are_wrapped_between_them(own_modules):
    names = [f"a rather long name of number {i}" for i in range(20)]
    with (own_modules / "t.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["", *names, "goal"])  # as pandas writes its row numbers
        rows.writerows(
            [[i, *(j + i % 5 for j in range(20)), i % 2] for i in range(30)]
        )
    assert main(["new", "mine.py", "--data", "t.csv", "--targets", "goal"]) == 0
    tree = ast.parse((own_modules / "mine.py").read_text())
    lists = [node for node in ast.walk(tree) if isinstance(node, ast.List)]
    assert ast.literal_eval(lists[0]) == names
    assert (
        "# Left out: '': row numbers." in (own_modules / "mine.py").read_text()
    )


ODD_NAMES = {
    "line-separator": "a\u2028b",
    "quotes": "\"it's\" '''",
    "docstring-ends": 'x"""\nraise SystemExit(7)\n"""',
    "backslash": "c:\\new\\x41\\",
    "control": "\x01\x1b[2J\x7f\x85\r\n\t",
    "turned": "\u202eabc\u2066\ufeff",
    "braces": "{targets} {{ 7 * 7 }} {% raw %} %s",
    "far-away": "\U0001f600\U000e0041",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_column_s_name_is_what_the_written_task_calls_it(
    name, own_modules, monkeypatch, capsys
):
    column = ODD_NAMES[name]
    numbers = np.arange(60)
    columns = {
        f"number {column}": numbers / 7,
        f"code {column}": [f"c{i % 3}" for i in numbers],
        f"{column}_id": numbers,
        column: numbers % 2,
        f"owner {column}": numbers % 12,
    }
    pandas.DataFrame(columns).to_parquet("t.parquet")
    new = [
        "new",
        "odd.py",
        "--data",
        "t.parquet",
        "--targets",
        column,
        "--by",
        f"owner {column}",
    ]
    assert main(new) == 0, capsys.readouterr()
    monkeypatch.syspath_prepend(own_modules)
    task = load_task("odd:task")
    assert task.num_clients == 12
    assert task.client(0).inputs.shape[1] == 1 + 3
    module = sys.modules["odd"]
    assert list(columns)[:2] == [*module.NUMBERS, *module.CATEGORIES]


def test_columns_may_be_called_as_the_task_calls_its_inputs(
    own_modules, monkeypatch
):
    columns = {
        "inputs": [0, 1] * 30,
        "all inputs": [*range(12)] * 5,
        "x": np.arange(60) / 7,
    }
    pandas.DataFrame(columns).to_parquet("t.parquet")
    new = [
        "new",
        "odd.py",
        "--data",
        "t.parquet",
        "--targets",
        "inputs",
        "--by",
        "all inputs",
    ]
    assert main(new) == 0
    monkeypatch.syspath_prepend(own_modules)
    assert load_task("odd:task").num_clients == 12
