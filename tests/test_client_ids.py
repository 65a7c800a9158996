"""A client's id is text, exactly as it is written, whatever the file."""

import importlib
import json
import pathlib
from decimal import Decimal

import datasets
import numpy as np
import pyarrow as pa
import pytest
from flwr_datasets.partitioner import NaturalIdPartitioner
from own_data import net
from pyarrow import parquet

from fl_epe.cli.main import main
from fl_epe.client_ids import client_ids, id_order
from fl_epe.tasks import from_datasets, read_tables
from fl_epe.tasks.dataset_task import DatasetTask

# Ten times two ids, which are one number, date or missing value where they are no text.
PAIRS = {
    "20-digits": [str(10**19 + i) for i in range(20)],
    "zeros": [f"{zero}{i}" for i in range(10) for zero in ("", "0")],
    "decimals": [f"{i}.1{zero}" for i in range(10) for zero in ("", "0")],
    "spaces": [f"{space}{i}" for i in range(10) for space in ("", " ")],
    "exponents": [one for i in range(1, 11) for one in (f"{i}000", f"{i}e3")],
    "signs": [f"{sign}{i}" for i in range(10) for sign in ("", "+")],
    "dates": [
        f"2020-01-{i:02}{time}"
        for i in range(1, 11)
        for time in ("", " 00:00:00")
    ],
    "missing": [
        *(
            "NA",
            "NaN",
            "null",
            "None",
            "n/a",
            "#N/A",
            "nan",
            "-",
            "true",
            "True",
        ),
        *"abcdefghij",
    ],
    "letters": [
        f"{letter}{mark}" for letter in "abcdefghij" for mark in ("", "\u0301")
    ],
}


def _table(ids: list[str]) -> dict[str, list]:
    """Ten rows of each client, with another number of rows for the first."""
    users = [*(ids * 10), ids[0]]
    numbers = range(len(users))
    return {
        "x": [i / 7 for i in numbers],
        "y": [i % 2 for i in numbers],
        "user": users,
    }


def _written(folder: pathlib.Path, form: str, ids: list[str]) -> pathlib.Path:
    columns = _table(ids)
    rows = [
        dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]
    form, _, place = form.partition(" in ")
    path = folder / (f"data/train.{form}" if place else f"t.{form}")
    path.parent.mkdir(exist_ok=True)
    if form == "parquet":
        parquet.write_table(pa.table(columns), path)
    elif form == "jsonl":
        path.write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
    else:
        sign = {"csv": ",", "tsv": "\t"}[form]
        lines = [sign.join(map(str, row.values())) for row in rows]
        path.write_text(
            "\n".join([sign.join(columns), *lines, ""]), encoding="utf-8"
        )
    return path.parent if place else path


def _task(source: object, partition: object = "by:user") -> DatasetTask:
    given = {
        "inputs": ["x"],
        "targets": "y",
        "partition": partition,
        "held_out": 0.05,
    }
    return from_datasets(net, source, **given)


FORMS = ["csv", "tsv", "jsonl", "parquet", "csv in folder", "jsonl in folder"]
EVERY = pytest.mark.parametrize(
    "form", FORMS, ids=[form.replace(" ", "-") for form in FORMS]
)


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("kind", PAIRS)
def test_different_ids_are_different_clients(
    kind: str, form: str, tmp_path: pathlib.Path
):
    ids = PAIRS[kind]
    path = str(_written(tmp_path, form, ids))
    assert _task(path).num_clients == 20
    assert set(read_tables(path, by="user")["train"]["user"]) == set(ids)


@pytest.mark.parametrize("kind", ["20-digits", "zeros", "missing"])
def test_a_written_task_has_every_client(
    kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    path = _written(tmp_path, "csv", PAIRS[kind])
    monkeypatch.chdir(tmp_path)
    name = "ids_" + kind.replace("-", "_")
    words = ["--data", str(path), "--targets", "y", "--by", "user"]
    assert main(["new", f"{name}.py", *words]) == 0
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module(name).task.num_clients == 20


def test_a_partitioner_by_natural_ids_has_every_client_of_a_file(
    tmp_path: pathlib.Path,
):
    path = str(_written(tmp_path, "csv", PAIRS["zeros"]))
    assert _task(path, NaturalIdPartitioner("user")).num_clients == 20


REMEDY = "a client's id is text or a whole number, got double, in which different ids"


@pytest.mark.parametrize("form", ["jsonl", "parquet", "dataset"])
def test_real_numbers_are_refused(
    form: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    columns = {**_table(["1"]), "user": [1e19 + i for i in range(11)]}
    source = datasets.Dataset.from_dict(columns)
    path = tmp_path / f"t.{form}"
    if form == "jsonl":
        source.to_json(path)
    elif form == "parquet":
        source.to_parquet(path)
    else:
        source.save_to_disk(str(path))
    with pytest.raises(
        ValueError, match=f"partition='by:user' to fit the rows: {REMEDY}"
    ):
        _ = _task(str(path)).num_clients
    capsys.readouterr()
    words = [
        "new",
        str(tmp_path / "x.py"),
        "--data",
        str(path),
        "--targets",
        "y",
        "--by",
        "user",
    ]
    assert main(words) == 2
    assert (
        f"--by='user' to have clients' ids: {REMEDY}" in capsys.readouterr().err
    )


def test_whole_numbers_beside_a_missing_one_keep_their_digits(
    tmp_path: pathlib.Path,
):
    """Pandas has real numbers for them."""
    numbers = [2**53 + i for i in range(20)]
    columns = {"x": [1.0] * 21, "user": pa.array([*numbers, None], pa.int64())}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    found = read_tables(str(tmp_path / "t.parquet"), by="user")["train"]["user"]
    assert found.tolist()[:20] == list(map(str, numbers))
    assert found.isna().sum() == 1


@pytest.mark.parametrize(
    ("column", "ids"),
    [
        pytest.param(pa.array([7, None]), ["7", None], id="integers"),
        pytest.param(
            pa.array([2**64 - 1], pa.uint64()), [str(2**64 - 1)], id="unsigned"
        ),
        pytest.param(pa.array([True, False]), ["true", "false"], id="truth"),
        pytest.param(
            pa.array(["a", "", " ", "a "]), ["a", None, None, "a "], id="texts"
        ),
        pytest.param(
            pa.array(["a"], pa.large_string()), ["a"], id="large-texts"
        ),
        pytest.param(pa.chunked_array([["a"], ["b"]]), ["a", "b"], id="chunks"),
        pytest.param(
            pa.array(["a", "b"]).dictionary_encode(),
            ["a", "b"],
            id="categories",
        ),
        pytest.param(
            pa.array([7]).dictionary_encode(),
            ["7"],
            id="categories-of-integers",
        ),
        pytest.param(pa.array([b"a"]), ["a"], id="bytes"),
        pytest.param(pa.array([Decimal("1.10")]), ["1.10"], id="decimals"),
        pytest.param(pa.array([None, None]), [None, None], id="none"),
    ],
)
def test_ids_of_every_type_that_is_exact(
    column: pa.Array, ids: list[str | None]
):
    assert client_ids(column).to_pylist() == ids


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(pa.array([1.0]), id="real"),
        pytest.param(
            pa.array([1.0]).dictionary_encode(), id="categories-of-real"
        ),
        pytest.param(pa.array([["a"]]), id="lists"),
    ],
)
def test_ids_of_other_types_are_refused(column: pa.Array):
    with pytest.raises(
        ValueError, match="store ids as text, as they are written"
    ):
        client_ids(column)


@pytest.mark.parametrize(
    ("ids", "ordered"),
    [
        pytest.param(["10", "9", "-1"], ["-1", "9", "10"], id="numbers"),
        pytest.param(["10", "9", "09"], ["09", "10", "9"], id="a-zero"),
        pytest.param(["10", "9", "a"], ["10", "9", "a"], id="a-letter"),
        pytest.param(
            [str(2**64), str(2**63), "5"],
            ["5", str(2**63), str(2**64)],
            id="large",
        ),
        pytest.param(["٣", "2"], ["2", "٣"], id="other-digits"),
        pytest.param([], [], id="none"),
    ],
)
def test_whole_numbers_are_in_their_order(ids: list[str], ordered: list[str]):
    assert [ids[i] for i in np.argsort(id_order(ids))] == ordered
