"""Tables as people have them: read, or refused with the remedy."""

import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pandas
import pytest
from own_data import net

from fl_epe.cli.main import main
from fl_epe.tasks import classes_to_predict, from_datasets, read_tables, tables
from fl_epe.tasks.dataset_task import DatasetTask

ROWS = [f"{i / 4},{'no' if i % 2 else 'yes'},H{i % 6:02}" for i in range(30)]
PLAIN = "\n".join(["dose,cured,hospital", *ROWS, ""])


def _task(source: object, **more: Any) -> DatasetTask:
    given = {
        "inputs": ["dose"],
        "targets": "cured",
        "partition": "by:hospital",
        "held_out": 0.2,
    }
    return from_datasets(net, source, **{**given, **more})


def _commas(text: str) -> str:
    """As a spreadsheet writes it where numbers have decimal commas."""
    return text.replace(",", ";").replace(".", ",")


FILES: dict[str, tuple[str, bytes]] = {
    "plain": ("t.csv", PLAIN.encode()),
    "large-letters": ("T.CSV", PLAIN.encode()),
    "gzip": ("t.csv.gz", gzip.compress(PLAIN.encode())),
    "gzip-large-letters": ("T.CSV.GZ", gzip.compress(PLAIN.encode())),
    "tabs": ("t.tsv", PLAIN.replace(",", "\t").encode()),
    "tabs-in-csv": ("t.csv", PLAIN.replace(",", "\t").encode()),
    "packed-tabs": (
        "t.tsv.gz",
        gzip.compress(PLAIN.replace(",", "\t").encode()),
    ),
    "semicolons": ("t.csv", PLAIN.replace(",", ";").encode()),
    "decimal-commas": ("t.csv", _commas(PLAIN).encode()),
    "spaces-in-header": (
        "t.csv",
        PLAIN.replace("dose,cured", " dose , cured").encode(),
    ),
    "byte-order-mark": ("t.csv", PLAIN.encode("utf-8-sig")),
    "utf-16": ("t.csv", PLAIN.encode("utf-16")),
    "carriage-returns": ("t.csv", PLAIN.replace("\n", "\r\n").encode()),
}


@pytest.mark.parametrize("name", FILES)
def test_a_text_is_read_however_it_is_written(name: str, tmp_path: Path):
    file, content = FILES[name]
    (tmp_path / file).write_bytes(content)
    task = _task(tmp_path / file)
    (tmp_path / "plain.csv").write_text(PLAIN)
    plain = _task(tmp_path / "plain.csv")
    assert task.num_clients == 6
    for client in range(6):
        mine, other = task.client(client), plain.client(client)
        assert mine.inputs.tolist() == other.inputs.tolist()
        assert mine.targets.tolist() == other.targets.tolist()


def _lines() -> list[dict[str, Any]]:
    row = {"dose": 0.5, "cured": "yes", "hospital": "H1"}
    return [row | ({"cured": "no"} if i % 2 else {}) for i in range(20)]


def _json(rows: list[dict[str, Any]], *options: Any, **more: Any) -> str:
    text: str = pandas.DataFrame(rows).to_json(*options, **more)
    return text


REFUSED: dict[str, tuple[str, str | bytes, str]] = {
    "pandas-columns": (
        "t.json",
        _json(_lines()),
        r"t\.json to hold a table: it has no row of JSON a line: write it with "
        r"pandas\.DataFrame\.to_json\(orient='records', lines=True\)\.$",
    ),
    "pandas-rows": (
        "t.json",
        _json(_lines(), orient="index"),
        "orient='records', lines=True",
    ),
    "a-list": (
        "t.json",
        _json(_lines(), orient="records"),
        "orient='records', lines=True",
    ),
    "an-indented-list": (
        "t.json",
        json.dumps(_lines(), indent=2),
        "orient='records', lines=True",
    ),
    "latin-1": (
        "t.csv",
        PLAIN.replace("no", "nö").encode("latin-1"),
        r"t\.csv to hold a table: it is no text in UTF-8 \(invalid .*\): save it as UTF-8\.$",
    ),
    "latin-1-name": (
        "t.csv",
        PLAIN.replace("dose", "däse").encode("latin-1"),
        "save it as UTF-8",
    ),
    "latin-1-lines": (
        "t.jsonl",
        '{"dose": "ä"}\n'.encode("latin-1"),
        "save it as UTF-8",
    ),
    "cut-off": (
        "t.csv",
        PLAIN[:-5],
        "the last line has no line break, as if the file was cut",
    ),
    "packed-and-cut-off": (
        "t.csv.gz",
        gzip.compress(PLAIN.encode())[:-12],
        "t.csv.gz to hold a",
    ),
    "twice": (
        "t.csv",
        PLAIN.replace("dose,cured", "dose,dose"),
        "duplicate column 'dose'",
    ),
    "twice-but-for-space": (
        "t.csv",
        PLAIN.replace("dose,cured", "dose, dose"),
        "duplicate column",
    ),
    "no-table": ("t.parquet", "text", r"t\.parquet to hold a table: "),
    "ragged": (
        "t.csv",
        PLAIN + "1,2,3,4\n",
        r"t\.csv to hold a table: CSV parse error",
    ),
    "other-ending": (
        "t.xlsx",
        "x",
        r"t\.xlsx' to end with one of \.csv, \.tsv, \.jsonl",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_table_is_refused_with_the_remedy(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, content, message = REFUSED[name]
    path = tmp_path / file
    path.write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )
    with pytest.raises(ValueError, match=message):
        _ = _task(path).num_clients
    words = ["--data", str(path), "--targets", "cured", "--by", "hospital"]
    assert main(["new", str(tmp_path / "x.py"), *words]) == 2
    printed = capsys.readouterr().err
    assert len(printed.splitlines()) == 1
    assert "should not" not in printed


@pytest.mark.parametrize("blank", ["", " "], ids=["empty", "space"])
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_row_without_a_label_is_named(form: str, blank: str, tmp_path: Path):
    path = tmp_path / f"t.{form}"
    rows = _lines()
    rows[16]["cured"] = rows[3]["cured"] = blank
    data = datasets.Dataset.from_list(rows)
    {"csv": data.to_csv, "jsonl": data.to_json, "parquet": data.to_parquet}[
        form
    ](path)
    with pytest.raises(
        ValueError,
        match=r"targets='cured' to have a label in every row: 2 have none, such as row 4\.$",
    ):
        _task(path, held_out=datasets.Dataset.from_list(_lines())).held_out()


def test_a_written_task_has_no_class_of_blank_labels():
    with pytest.raises(
        ValueError,
        match=r"targets='cured' to have a label in .*: row 3 is blank",
    ):
        classes_to_predict(
            pandas.Series(["yes", "no", " ", "yes"], name="cured")
        )


def test_files_in_a_folder_follow_the_same_rules(tmp_path: Path):
    (tmp_path / "train-0.csv").write_text(_commas(PLAIN))
    (tmp_path / "train-1.csv").write_text(
        PLAIN.replace(".25", "").replace("H0", "K0")
    )
    (tmp_path / "test.csv").write_text(PLAIN)
    found = read_tables(tmp_path, by="hospital")
    assert {name: len(table) for name, table in found.items()} == {
        "train": 60,
        "test": 30,
    }
    assert found["train"]["dose"].dtype == float
    assert _task(tmp_path, held_out=None).num_clients == 12


def test_a_column_of_ids_may_be_an_input_or_a_target_as_well(tmp_path: Path):
    (tmp_path / "t.csv").write_text(
        "x,hour\n" + "".join(f"{i},{i % 24:02}\n" for i in range(96))
    )
    given: dict[str, Any] = {"partition": "by:hour", "held_out": 0.1}
    task = _task(
        tmp_path / "t.csv", inputs=["x", "hour"], targets="hour", **given
    )
    assert task.num_clients == 24
    assert set(task.client(23).inputs[:, 1].tolist()) == {23.0}


def test_ids_in_a_csv_file_of_a_hub_are_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = "".join(f"{i},0{i % 7}\n" for i in range(28))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.csv").write_text(f"x,user\n{rows}")
    load, build = datasets.load_dataset, datasets.load_dataset_builder
    cache = str(tmp_path / "cache")

    def here(function: Any) -> Any:
        def called(name: str, **options: Any) -> Any:
            assert name == "owner/name"
            return function(str(tmp_path / "data"), cache_dir=cache, **options)

        return called

    monkeypatch.setattr(datasets, "load_dataset", here(load))
    monkeypatch.setattr(datasets, "load_dataset_builder", here(build))
    table = tables.read_tables("owner/name", by="user")["train"]
    assert sorted(set(table["user"])) == [f"0{i}" for i in range(7)]
    assert tables.read_tables("owner/name")["train"]["user"].dtype == int


def _leaf(path: Path, users: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    sizes = [len(one["y"]) for one in users.values()]
    path.write_text(
        json.dumps(
            {"users": list(users), "num_samples": sizes, "user_data": users}
        )
    )


def _writer(number: int, rows: int = 3) -> dict[str, Any]:
    return {
        "x": [[number / 10, i] for i in range(rows)],
        "y": [i % 2 for i in range(rows)],
    }


def test_a_file_of_leaf_is_a_table_of_users(tmp_path: Path):
    users = {
        name: _writer(i)
        for i, name in enumerate(["07", "7", "7.0", "nobody", "x"])
    }
    users["nobody"] = {"x": [], "y": []}
    _leaf(tmp_path / "all_data.json", users)
    found = read_tables(tmp_path / "all_data.json", by="user")["train"]
    assert found["user"].tolist() == [
        name for name in users if name != "nobody" for _ in range(3)
    ]
    given: dict[str, Any] = {
        "inputs": "x",
        "targets": "y",
        "partition": "by:user",
    }
    task = _task(tmp_path / "all_data.json", **given)
    assert task.num_clients == 4
    assert task.client(0).inputs.shape[1] == 2


def test_a_folder_of_leaf_has_its_splits(tmp_path: Path):
    _leaf(
        tmp_path / "train/all_data_0_keep_0_train_9.json",
        {"a": _writer(0), "b": _writer(1)},
    )
    _leaf(tmp_path / "train/all_data_1_keep_0_train_9.json", {"c": _writer(2)})
    _leaf(tmp_path / "test/all_data_0_keep_0_test_9.json", {"a": _writer(0, 1)})
    task = _task(
        tmp_path, inputs="x", targets="y", partition="by:user", held_out=None
    )
    assert (task.num_clients, len(task.client(2)), len(task.held_out())) == (
        3,
        3,
        1,
    )


BAD_LEAF = {
    "lengths": {"users": ["a"], "user_data": {"a": {"x": [1], "y": []}}},
    "raw": {"users": ["a"], "user_data": {"a": {"raw": ""}}},
}


@pytest.mark.parametrize("name", BAD_LEAF)
def test_a_broken_file_of_leaf_names_the_client(name: str, tmp_path: Path):
    (tmp_path / "t.json").write_text(json.dumps(BAD_LEAF[name]))
    found = r"t\.json to hold a table: client 'a' has no 'x' and 'y' of one length\.$"
    with pytest.raises(ValueError, match=found):
        read_tables(tmp_path / "t.json")


def test_a_user_of_leaf_who_is_there_twice_is_refused(tmp_path: Path):
    one = '{"x": [1], "y": [1]}'
    text = f'{{"users": ["a"], "user_data": {{"a": {one}, "a": {one}}}}}'
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ValueError, match="duplicate key"):
        read_tables(tmp_path / "t.json")
