"""`data convert` of what is broken: one line that names the file, and nothing left behind."""

import io
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import data_files
import h5py
import numpy as np
import pytest
from filelock import FileLock
from PIL import Image
from text_sources import write_vocabulary

from fl_epe.cli.main import main
from fl_epe.data import convert

POSTS = [
    ("train", f"user-{i % 3}", {"tokens": "to be or not"}) for i in range(9)
]


@pytest.fixture(autouse=True)
def _vocabulary(tmp_path):
    write_vocabulary(tmp_path)


def _refused(tmp_path, capsys, kind, source, *more):
    before = {path.name for path in tmp_path.iterdir()}
    assert (
        main(
            ["data", "convert", kind, str(source), str(tmp_path / "out"), *more]
        )
        == 2
    )
    printed = capsys.readouterr().err
    assert len(printed.splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == before
    return printed


def _hdf5(path, **features):
    with h5py.File(path, "w") as file:
        for name, value in features.items():
            if isinstance(value, tuple):
                file.create_dataset(
                    f"examples/f1/{name}", *value, chunks=(1, *value[0][1:])
                )
            elif value is None:
                file.create_group(f"examples/f1/{name}")
            else:
                file[f"examples/f1/{name}"] = value
    return path


LABEL = np.zeros(2, np.int64)
HDF5 = {
    "group": ({"pixels": None, "label": LABEL}, "to be a sound .h5"),
    "scalar": ({"pixels": 0.5, "label": LABEL}, "to be a sound .h5"),
    "length": (
        {"pixels": np.zeros((3, 28, 28)), "label": LABEL},
        "columns of one type and length",
    ),
    "endless": (
        {"pixels": ((2**50, 28, 28), "f4"), "label": ((2**50,), "i8")},
        "to be a sound .h5: it takes .* MiB unpacked",
    ),
    "complex": (
        {"pixels": np.zeros((2, 28, 28), complex), "label": LABEL},
        "Expected ",
    ),
    "missing": ({"label": LABEL}, "to have a column 'image' or 'pixels'"),
}


@pytest.mark.parametrize(("features", "message"), HDF5.values(), ids=HDF5)
def test_hdf5(features, message, tmp_path, capsys):
    import re

    printed = _refused(
        tmp_path, capsys, "emnist", _hdf5(tmp_path / "a.h5", **features)
    )
    assert re.search(message, printed), printed
    assert "a.h5" in printed


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(
    "name", ["a.h5", "a.sqlite", "a.sqlite.lzma", "a.parquet"]
)
def test_a_file_that_was_cut_off(name, cut, tmp_path, capsys):
    path = tmp_path / name
    kind = "stackoverflow"
    if name == "a.h5":
        kind = "emnist"
        _hdf5(path, pixels=np.zeros((2, 28, 28), "f4"), label=LABEL)
    elif name == "a.parquet":
        data_files.write_parquet(path, POSTS, "user_id")
    else:
        data_files.write_sqlite(path, POSTS)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * cut) - 3])
    assert "a." in _refused(tmp_path, capsys, kind, path)


SQL = {
    "message-null": (
        "UPDATE examples SET serialized_example_proto = x''",
        "column 'tokens'",
    ),
    "message-text": (
        "UPDATE examples SET serialized_example_proto = 'x'",
        "tf.train.Example",
    ),
    "client-bytes": (
        "UPDATE examples SET client_id = x'ff' WHERE rowid = 2",
        "one type",
    ),
    "no-text": (
        "UPDATE examples SET client_id = CAST(x'ff' AS TEXT)",
        "decode",
    ),
    "no-table": ("DROP TABLE examples", "no such table"),
    "no-rows": ("DELETE FROM examples", "to have .*, found none|to have rows"),
}


@pytest.mark.parametrize(("order", "message"), SQL.values(), ids=SQL)
def test_sqlite(order, message, tmp_path, capsys):
    import re

    path = tmp_path / "a.sqlite"
    data_files.write_sqlite(path, POSTS)
    with sqlite3.connect(path) as database:
        database.execute(order)
    database.close()
    printed = _refused(tmp_path, capsys, "stackoverflow", path)
    assert re.search(message, printed), printed


@pytest.mark.slow
def test_a_picture_that_is_a_bomb_is_not_unpacked(tmp_path, capsys):
    import pyarrow as pa
    from pyarrow import parquet

    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, "PNG")
    images = [{"bytes": file.getvalue(), "path": None}]
    table = pa.table({"writer_id": ["a"], "image": images, "character": [1]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert "a.parquet" in _refused(
        tmp_path, capsys, "emnist", tmp_path / "a.parquet"
    )


def test_what_a_killed_conversion_left_is_removed(tmp_path):
    data_files.write_parquet(tmp_path / "a.parquet", POSTS, "user_id")
    (tmp_path / "out.fl-epe-part" / "inner").mkdir(parents=True)
    (tmp_path / "out.fl-epe-part.lock").touch()
    assert (
        len(
            convert(
                "stackoverflow", str(tmp_path / "a.parquet"), tmp_path / "out"
            )
        )
        == 3
    )
    assert {path.name for path in tmp_path.iterdir()} == {
        "a.parquet",
        "out",
        "stackoverflow.word_count",
    }


def test_processes_that_want_the_same_wait_for_each_other(tmp_path):
    data_files.write_parquet(tmp_path / "a.parquet", POSTS, "user_id")
    held = threading.Event()

    def somebody_else():
        with FileLock(tmp_path / "out.fl-epe-part.lock"):
            held.set()
            time.sleep(0.2)
            (tmp_path / "out").mkdir()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(somebody_else)
        held.wait()
        with pytest.raises(FileExistsError, match="target="):
            convert(
                "stackoverflow", str(tmp_path / "a.parquet"), tmp_path / "out"
            )
