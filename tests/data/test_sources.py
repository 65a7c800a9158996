"""Sources that cannot be read."""

import lzma
import pathlib
import shutil

import numpy as np
import pyarrow as pa
import pytest
from data_files import write_hdf5, write_parquet, write_sqlite
from pyarrow import parquet
from text_sources import tagged_sentences, write_text_source, write_vocabulary

from fl_epe import data
from fl_epe.cli import main

pytestmark = pytest.mark.usefixtures("small_batches")


def _text_file(name: str, content: str | bytes):
    def write(folder: pathlib.Path) -> None:
        path = folder / name
        path.write_bytes(
            content if isinstance(content, bytes) else content.encode()
        )

    return write


def _sqlite(*rows) -> object:
    return lambda folder: write_sqlite(folder / "s.sqlite", list(rows))


def _parquet(**columns) -> object:
    return lambda folder: parquet.write_table(
        pa.table(columns), folder / "a.parquet"
    )


GOOD = ("train", "u", {"tokens": "a b"})


@pytest.mark.parametrize(
    ("write", "message"),
    [
        pytest.param(
            lambda folder: None,
            r"source='.*' to hold files of one format \(.parquet.*found none",
            id="source=to-hold-files-of-one-format-.parquet",
        ),
        pytest.param(_text_file("a.txt", "x"), "found none", id="found-none"),
        pytest.param(
            _parquet(user_id=["u"]),
            "a.parquet to have a column 'tokens', found",
            id="no-tokens",
        ),
        pytest.param(
            _parquet(tokens=["u"]),
            "'user_id' or 'client_id', found 'tokens'",
            id="no-client",
        ),
        pytest.param(
            _parquet(user_id=["u"], tokens=[3]),
            "In .*a.parquet, rows from 0: Unsupported cast from int64",
            id="tokens-are-numbers",
        ),
        pytest.param(
            _parquet(user_id=[1e19, 1e19 + 4096], tokens=["a", "b"]),
            "a.parquet, rows from 0: a client's id is text or a whole number, got double",
            id="client-is-a-real-number",
        ),
        pytest.param(
            _text_file(
                "a.json",
                '{"users": ["u"], "user_data": {"u": {"x": [], "y": [1]}}}',
            ),
            "a.json to hold LEAF's JSON: client 'u' has no 'x' and 'y' of one length",
            id="leaf-lengths",
        ),
        pytest.param(
            _text_file("a.json", "[]"),
            "a.json to hold LEAF's JSON",
            id="leaf-list",
        ),
        pytest.param(
            _parquet(user_id=pa.array([None], pa.string()), tokens=[""]),
            "no missing client in",
            id="no-missing-client-in",
        ),
        pytest.param(
            _parquet(
                user_id=pa.array([], pa.string()),
                tokens=pa.array([], pa.string()),
            ),
            "source='.*' to have rows, found none",
            id="no-rows",
        ),
        pytest.param(
            _text_file("a.parquet", "PAR1"),
            "a.parquet to be a sound .parquet",
            id="a.parquet-to-be-a-Parquet-file",
        ),
        pytest.param(
            _text_file("a.h5", "HDF"),
            "a.h5 to be a sound .h5",
            id="a.h5-to-be-sound",
        ),
        pytest.param(
            _text_file("a.sqlite", "text" * 200),
            "a.sqlite to be a sound .sqlite: file is not",
            id="a.sqlite-to-be-SQLite-with-the-tables-examples",
        ),
        pytest.param(
            _text_file("a.sqlite.lzma", "text"),
            "a.sqlite.lzma to be a sound .sqlite.lzma",
            id="a.sqlite.lzma-to-be-a-whole-LZMA-file",
        ),
        pytest.param(
            _text_file(
                "a.sqlite.lzma",
                lzma.compress(bytes(9999), format=lzma.FORMAT_ALONE)[:-9],
            ),
            "to be a sound .sqlite.lzma",
            id="whole-LZMA-file",
        ),
        pytest.param(
            _sqlite(),
            "s.sqlite to list clients in 'client_metadata'",
            id="s.sqlite-to-list-clients-in-client_metadata",
        ),
        pytest.param(
            _sqlite(GOOD, ("train", "u", b"\x0b")),
            "row 2, to be a tf.train.Example: Error parsing",
            id="row-2,cannot-be-parsed",
        ),
        pytest.param(
            _sqlite(("train", "u", {"title": "x"})),
            "row 1, to have a column 'tokens', found 'title'",
            id="row-1,to-have-a-column-tokens,found-title",
        ),
        pytest.param(
            _sqlite(
                ("test", "u", {"tokens": "a"}),
                ("heldout", "u", {"tokens": "a"}),
            ),
            "to have a training split, has",
            id="to-have-a-training-split,has",
        ),
        pytest.param(
            lambda folder: write_hdf5(
                folder / "a.h5", [("", "u", {"title": "x"})]
            ),
            "client 'u', to have a column 'tokens'",
            id="client-u,to-have-a-column-tokens",
        ),
    ],
)
def test_a_source_that_is_broken_is_named_and_nothing_is_left(
    tmp_path: pathlib.Path, write, message: str
):
    (tmp_path / "source").mkdir()
    write_vocabulary(tmp_path / "source")
    write(tmp_path / "source")
    with pytest.raises(ValueError, match=message):
        data.convert(
            "stackoverflow", str(tmp_path / "source"), tmp_path / "store"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_two_formats_in_a_folder_are_one_too_many(tmp_path: pathlib.Path):
    source = tmp_path / "source"
    write_text_source(
        source, ".parquet", tagged_sentences(), tagged_sentences("test")
    )
    shutil.copy(source / "data" / "train-0.parquet", source / "train.h5")
    with pytest.raises(ValueError, match=r"one format .*found \.h5, \.parquet"):
        data.convert("stackoverflow", str(source), tmp_path / "store")


def test_stackoverflow_needs_its_words(tmp_path: pathlib.Path):
    write_parquet(tmp_path / "a.parquet", [GOOD], "user_id")
    with pytest.raises(
        ValueError,
        match=r"source='.*' to have .*stackoverflow.word_count beside",
    ):
        data.convert(
            "stackoverflow", str(tmp_path / "a.parquet"), tmp_path / "store"
        )


def test_hdf5_without_examples_is_named(tmp_path: pathlib.Path):
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["clients/u/tokens"] = [b"a"]
    write_vocabulary(tmp_path)
    with pytest.raises(ValueError, match=r"a.h5 to be a sound .h5.*examples"):
        data.convert(
            "stackoverflow", str(tmp_path / "a.h5"), tmp_path / "store"
        )


def test_features_of_different_lengths_are_named(tmp_path: pathlib.Path):
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["examples/w/pixels"] = np.ones((2, 28, 28))
        file["examples/w/label"] = [1]
    with pytest.raises(ValueError, match=r"length in .*a.h5, client 'w',: "):
        data.convert("emnist", str(tmp_path / "a.h5"), tmp_path / "store")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            {"kind": "mnist"},
            "kind='mnist' to be one of",
            id="kind=mnist-to-be-one-of",
        )
    ],
)
def test_arguments_are_checked_first(arguments: dict, message: str):
    given = {"kind": "stackoverflow", "source": "x", "target": "y"} | arguments
    with pytest.raises(ValueError, match=message):
        data.convert(
            given.pop("kind"), given.pop("source"), given.pop("target"), **given
        )


def test_paths_that_do_not_exist_are_named(tmp_path: pathlib.Path):
    with pytest.raises(
        FileNotFoundError, match=r"source='/nowhere' to be a path or a hub id"
    ):
        data.convert("emnist", "/nowhere", tmp_path / "store")
    write_parquet(tmp_path / "a.parquet", [GOOD], "user_id")
    with pytest.raises(FileNotFoundError, match="vocabulary='none'"):
        data.convert(
            "stackoverflow",
            str(tmp_path / "a.parquet"),
            tmp_path / "s",
            vocabulary="none",
        )


def test_a_hub_out_of_reach_says_what_to_do(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ConnectionError,
        match=r"source='flwrlabs/femnist' .*Without network, name",
    ):
        data.convert("emnist", "flwrlabs/femnist", tmp_path / "store")


def test_what_happens_meanwhile_is_not_overwritten(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    write_vocabulary(tmp_path)
    write_parquet(tmp_path / "a.parquet", [GOOD], "user_id")

    def someone_else(*_):
        (tmp_path / "store").mkdir(exist_ok=True)
        (tmp_path / "store" / "mine").touch()

    with pytest.raises(OSError, match="store"):
        data.convert(
            "stackoverflow",
            str(tmp_path / "a.parquet"),
            tmp_path / "store",
            on_progress=someone_else,
        )
    assert [path.name for path in tmp_path.glob("*store*")] == ["store"]
    with pytest.raises(FileExistsError, match=r"target='.*' not to exist"):
        data.convert(
            "stackoverflow", str(tmp_path / "a.parquet"), tmp_path / "store"
        )


def test_what_a_source_needs_besides_is_named(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    (tmp_path / "a.h5").touch()
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    assert (
        main(
            [
                "data",
                "convert",
                "emnist",
                str(tmp_path / "a.h5"),
                str(tmp_path / "store"),
            ]
        )
        == 2
    )
    assert (
        "needs h5py, which is not installed: pip install 'fl-epe[data]'"
        in capsys.readouterr().err
    )


def test_hub_ids_and_paths_are_told_apart(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert data.absolute("flwrlabs/femnist") == "flwrlabs/femnist"
    (tmp_path / "folder").mkdir()
    assert data.absolute("folder") == str(tmp_path / "folder")
    (tmp_path / "flwrlabs" / "femnist").mkdir(parents=True)
    assert data.absolute("flwrlabs/femnist") == str(
        tmp_path / "flwrlabs" / "femnist"
    )
