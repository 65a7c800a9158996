"""What the columns of somebody's table are for a model."""

import datetime
import decimal

import datasets
import numpy as np
import pandas
import pytest
from own_data import rows

from fl_epe.tasks import classes_to_predict, read_tables, sort_columns
from fl_epe.tasks.tensors import read_column

ROWS = 60
DAYS = [
    datetime.date(2021, 3, 1) + datetime.timedelta(days=i) for i in range(ROWS)
]


def _sorted(values, name="column"):
    found = sort_columns(pandas.DataFrame({name: values}), excluded=[])
    if name in found.left_out:
        return found.left_out[name]
    kinds = {
        "number": found.numbers,
        "category": found.categories,
        "date": found.dates,
    }
    (kind,) = [kind for kind, names in kinds.items() if name in names]
    return found.dates.get(name, kind)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        pytest.param([i / 7 for i in range(ROWS)], "number", id="real"),
        pytest.param([i % 50 for i in range(ROWS)], "number", id="whole"),
        pytest.param(
            [None, *(i % 5 for i in range(ROWS - 1))],
            "number",
            id="whole-missing",
        ),
        pytest.param(
            [decimal.Decimal(i) / 4 for i in range(ROWS)],
            "number",
            id="decimal",
        ),
        pytest.param(["a", "b", None] * 20, "category", id="text"),
        pytest.param([True, False] * 30, "category", id="flag"),
        pytest.param([True, None, False] * 20, "category", id="flag-missing"),
        pytest.param(DAYS, "ISO8601", id="days"),
        pytest.param(pandas.to_datetime(DAYS), "ISO8601", id="times"),
        pytest.param([str(day) for day in DAYS], "ISO8601", id="iso-text"),
        pytest.param(
            [f"{day:%d.%m.%Y}" for day in DAYS], "%d.%m.%Y", id="day-first"
        ),
        pytest.param(
            [f"{day:%m/%d/%Y}" for day in DAYS], "%m/%d/%Y", id="month-first"
        ),
        pytest.param(
            [*range(ROWS)],
            "whole numbers as of an identifier, 60 different values in 60 rows",
            id="serial",
        ),
        pytest.param(
            [f"seen {i}" for i in range(ROWS)],
            "text as of an identifier or a note, 60 different values in 60 rows",
            id="notes",
        ),
        pytest.param(
            ["DE"] * ROWS, "the same value in every row", id="constant"
        ),
        pytest.param([None] * ROWS, "it has no values", id="empty"),
        pytest.param(
            [[1, 2]] * ROWS, "neither numbers, text nor dates", id="lists"
        ),
    ],
)
def test_what_a_column_is(values, kind):
    assert _sorted(values) == kind


@pytest.mark.parametrize(
    "name",
    ["id", "ID", "patient_id", "customer-ID", "userId", "row uuid"],
    ids=lambda name: name.replace(" ", "-"),
)
def test_an_identifier_is_known_by_its_name(name):
    assert _sorted([1, 2] * 30, name) == "its name is that of an identifier"


@pytest.mark.parametrize("name", ["paid", "valid", "humid", "grid", "idle"])
def test_other_names_are_no_identifiers(name):
    assert _sorted([1, 2] * 30, name) == "number"


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        pytest.param([0, 1] * 30, 2, id="flags"),
        pytest.param([-1, 1] * 30, 2, id="signs"),
        pytest.param([None, 0, 1] * 20, 2, id="missing"),
        pytest.param([0.0, 1.0] * 30, None, id="real"),
        pytest.param([*range(ROWS)], None, id="many-numbers"),
        pytest.param(
            [f"place {i % 25}" for i in range(ROWS)], 25, id="many-words"
        ),
    ],
)
def test_what_is_to_be_predicted(values, classes):
    assert classes_to_predict(pandas.Series(values, name="goal")) == classes


@pytest.mark.parametrize(
    ("values", "says"),
    [
        pytest.param(
            [1] * ROWS,
            "targets='goal' to have different values, found 1",
            id="constant",
        ),
        pytest.param(
            [f"note {i}" for i in range(ROWS)],
            "classes that repeat",
            id="notes",
        ),
        pytest.param(
            DAYS, "targets='goal' to hold numbers or text", id="dates"
        ),
    ],
)
def test_what_cannot_be_predicted(values, says):
    with pytest.raises(ValueError, match=says):
        classes_to_predict(pandas.Series(values, name="goal"))


def test_a_table_of_each_split():
    data = datasets.Dataset.from_dict({"word": ["a", None], "list": [[1], [2]]})
    tables = read_tables(datasets.DatasetDict({"train": data, "test": data}))
    assert [*tables] == ["train", "test"]
    assert tables["test"]["word"].isna().tolist() == [False, True]
    assert [*read_tables(data)] == ["train"]


def test_where_nothing_stands_in_a_csv_a_value_is_missing(tmp_path):
    (tmp_path / "t.csv").write_text("word,number\na,1\n,2\nb,\n")
    table = read_tables(str(tmp_path / "t.csv"))["train"]
    assert table.isna().to_numpy().tolist() == [
        [False, False],
        [True, False],
        [False, True],
    ]


@pytest.mark.parametrize(
    "column", ["x", "y", "first part"], ids=["x", "y", "first-part"]
)
def test_a_selection_of_rows_is_taken_at_once(column, monkeypatch):
    """Half a million rows, one after the other, took 6 s a column."""
    data = rows(60)
    chosen = np.random.default_rng(1).permutation(60)[:40]
    each = np.stack([np.asarray(data[int(i)][column]) for i in chosen])
    with monkeypatch.context() as patch:
        patch.delattr(datasets.table.IndexedTableMixin, "fast_gather")
        found = read_column(data.select(chosen), column, "inputs")
    assert np.array_equal(found.numpy(), each)


def test_few_rows_of_many_are_as_all():
    data = rows(500)
    found = read_column(data.select([401, 7]), "x", "inputs")
    assert np.allclose(found.numpy(), [data[401]["x"], data[7]["x"]])
