"""From published files to a data set on disk: every format, any order, whole or not at all."""

import json
import pathlib
from typing import Any

import datasets
import h5py
import numpy as np
import pyarrow as pa
import pytest
from data_files import (
    Rows,
    example,
    handwriting,
    png,
    write_hdf5,
    write_parquet,
    write_sqlite,
)
from pyarrow import parquet
from text_sources import (
    VOCABULARY,
    converted_posts,
    tagged_sentences,
    write_text_source,
    write_vocabulary,
)

from fl_epe import data
from fl_epe.cli.main import main
from fl_epe.data import conversion, sources
from fl_epe.data.encoders import Words
from fl_epe.data.readers import arrow_rows

pytestmark = pytest.mark.usefixtures("small_batches")


def _by_client(rows: Rows) -> dict[str, list]:
    found: dict[str, list] = {}
    for _, client, features in rows:
        found.setdefault(client, []).append(features)
    return found


def _expected_ids(rows: Rows) -> dict[str, np.ndarray]:
    words = Words([word.encode() for word in VOCABULARY])
    return {
        client: words.encode(
            arrow_rows(
                {
                    "client": [client] * len(part),
                    "tokens": [f["tokens"] for f in part],
                },
                "",
            )
        )
        for client, part in _by_client(rows).items()
    }


FORMATS = [".sqlite", ".sqlite.lzma", ".h5", ".parquet", "datasets"]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_each_user_their_sentences(
    tmp_path: pathlib.Path, form: str
):
    rows, held_out = tagged_sentences(), tagged_sentences("test", 10)[:37]
    source = write_text_source(tmp_path / "source", form, rows, held_out)
    store = data.convert("stackoverflow", source, tmp_path / "store")
    expected = _expected_ids(rows)
    assert store.names.tolist() == sorted(expected)
    assert store.sizes(np.arange(len(store))).tolist() == [
        len(expected[name]) for name in sorted(expected)
    ]
    for client, name in enumerate(sorted(expected)):
        np.testing.assert_array_equal(store.client(client), expected[name])
    everything = np.concatenate(list(_expected_ids(held_out).values()))
    found = store.held_out(10**6)
    assert sorted(map(tuple, found)) == sorted(map(tuple, everything))
    assert store.about["vocabulary"] == VOCABULARY
    assert store.about["examples"] == len(rows)
    assert store.about["held_out"] == 37
    assert not list(tmp_path.glob("*part*"))


def _pictures(count: int = 200) -> Rows:
    ink, labels = handwriting(count)
    writers = np.random.default_rng(0).integers(0, 9, count)
    return [
        ("train", f"f{writer:04}_14", {"ink": image, "label": int(label)})
        for writer, image, label in zip(writers, ink, labels, strict=True)
    ]


def _hub_dataset(rows: Rows) -> datasets.Dataset:
    """As the hub has FEMNIST: dark ink on bright paper."""
    names = [*"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"]
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "writer_id": datasets.Value("string"),
            "hsf_id": datasets.Value("int64"),
            "character": datasets.ClassLabel(names=names),
        }
    )
    columns = {
        "image": [
            {"bytes": png(255 - f["ink"]), "path": None} for _, _, f in rows
        ],
        "writer_id": [writer for _, writer, _ in rows],
        "hsf_id": [0] * len(rows),
        "character": [f["label"] for _, _, f in rows],
    }
    return datasets.Dataset.from_dict(columns, features=features)


def _write_pictures(
    folder: pathlib.Path, form: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> str:
    folder.mkdir()
    tff = [
        (
            f"all_{split}",
            writer,
            {"pixels": 1 - f["ink"] / np.float32(255), "label": f["label"]},
        )
        for split, writer, f in rows
    ]
    if form == "hub":
        hub = {"train": _hub_dataset(rows)}
        monkeypatch.setattr(
            datasets, "load_dataset", {"flwrlabs/femnist": hub}.__getitem__
        )
        return "flwrlabs/femnist"
    if form == "parquet":
        (folder / "data").mkdir()
        _hub_dataset(rows).to_parquet(
            str(folder / "data/train-00000-of-00001.parquet")
        )
        # The library's own loader takes a folder as it takes a hub id.
        loaded = sources._parts_of_dataset(
            datasets.load_dataset(
                str(folder), cache_dir=str(folder.parent / "hf")
            ),
            "hub",
        )
        assert [(part.split, part.rows) for part in loaded] == [
            ("train", len(rows))
        ]
        return str(folder)
    if form == "saved":
        _hub_dataset(rows).save_to_disk(str(folder))
        return str(folder)
    if form == "sqlite":
        digits = [("digits_only_train", writer, f) for _, writer, f in tff]
        write_sqlite(folder / "emnist_all.sqlite", [*digits, *tff])
    elif form == "leaf":
        _write_leaf(folder / "all_data_0.json", tff)
    else:
        write_hdf5(folder / "fed_emnist_train.h5", tff)
    return str(folder)


def _write_leaf(path: pathlib.Path, rows: Rows) -> None:
    """As LEAF writes FEMNIST: pixels in one list, 1 for paper."""
    users = {
        client: {
            "x": [one["pixels"].ravel().tolist() for one in part],
            "y": [one["label"] for one in part],
        }
        for client, part in _by_client(rows).items()
    }
    sizes = [len(one["y"]) for one in users.values()]
    found = {"users": list(users), "num_samples": sizes, "user_data": users}
    path.write_text(json.dumps(found))


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", ["hub", "parquet", "saved", "sqlite", "hdf5", "leaf"]
)
def test_every_format_gives_each_writer_their_pictures(
    tmp_path: pathlib.Path, form: str, monkeypatch: pytest.MonkeyPatch
):
    rows = _pictures()
    source = _write_pictures(tmp_path / "source", form, rows, monkeypatch)
    store = data.convert("emnist", source, tmp_path / "store")
    expected = _by_client(rows)
    assert store.names.tolist() == sorted(expected)
    held_out = {tuple(found) for found in store.held_out(10**6)}
    assert len(held_out) == sum(len(part) // 10 for part in expected.values())
    for client, name in enumerate(sorted(expected)):
        all_of = [(*f["ink"].ravel(), f["label"]) for f in expected[name]]
        kept = [tuple(found) for found in store.client(client)]
        assert kept == [found for found in all_of if found not in held_out]
        assert len(kept) == len(all_of) - len(all_of) // 10
    assert store.about["source"] == (
        "flwrlabs/femnist" if form == "hub" else "source"
    )


@pytest.mark.parametrize("form", ["hdf5", "leaf"])
def test_clients_without_examples_are_left_out_and_counted(
    form: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """Also the first one, whose borders would decide what is ink."""
    source = pathlib.Path(
        _write_pictures(tmp_path / "source", form, _pictures(40), monkeypatch)
    )
    names = ["a", "f0003_nobody", "z"]
    if form == "hdf5":
        with h5py.File(source / "fed_emnist_train.h5", "a") as file:
            for name in names:
                file[f"examples/{name}/pixels"] = np.empty(
                    (0, 28, 28), np.float32
                )
                file[f"examples/{name}/label"] = np.empty(0, np.int32)
    else:
        content = json.loads((source / "all_data_0.json").read_text())
        content["users"] += names
        nobody: dict[str, Any] = {name: {"x": [], "y": []} for name in names}
        content["user_data"] = nobody | content["user_data"]
        (source / "all_data_0.json").write_text(json.dumps(content))
    assert (
        main(
            ["data", "convert", "emnist", str(source), str(tmp_path / "store")]
        )
        == 0
    )
    assert "Clients left out, without examples: 3\n" in capsys.readouterr().out
    store = data.ClientStore(tmp_path / "store")
    assert store.names.tolist() == sorted(_by_client(_pictures(40)))
    assert store.about["clients_without_examples"] == 3
    assert store.client(0)[:, :28].max() == 0  # paper


def test_every_id_of_an_integer_column_is_a_client(tmp_path: pathlib.Path):
    write_vocabulary(tmp_path)
    ids = [10**18 + i for i in range(20)]
    rows = pa.table({"user_id": ids * 2, "tokens": ["a b"] * 40})
    parquet.write_table(rows, tmp_path / "a.parquet")
    store = data.convert(
        "stackoverflow", str(tmp_path / "a.parquet"), tmp_path / "store"
    )
    assert store.names.tolist() == list(map(str, ids))


def test_a_tenth_of_each_user_is_held_out_where_the_source_holds_nothing_out(
    tmp_path: pathlib.Path,
):
    rows = tagged_sentences()
    write_vocabulary(tmp_path)
    write_parquet(tmp_path / "train.parquet", rows, "user_id")
    store = data.convert(
        "stackoverflow", str(tmp_path / "train.parquet"), tmp_path / "store"
    )
    sizes = [len(part) for _, part in sorted(_by_client(rows).items())]
    assert store.sizes(np.arange(len(store))).tolist() == [
        size - size // 10 for size in sizes
    ]
    assert store.about["held_out"] == sum(size // 10 for size in sizes)


def test_a_data_set_of_a_hub(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    rows = {"user_id": ["b", "a", "b"], "tokens": ["to be", "or", "not to"]}
    loaded = datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows)})
    monkeypatch.setattr(datasets, "load_dataset", {"owner/posts": loaded}.get)
    words = write_vocabulary(tmp_path)
    store = data.convert(
        "stackoverflow", "owner/posts", tmp_path / "store", vocabulary=words
    )
    assert store.names.tolist() == ["a", "b"]
    assert store.about["source"] == "owner/posts"


def test_held_out_examples_are_at_most_so_many(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(conversion, "MAX_HELD_OUT", 5)
    source = write_text_source(
        tmp_path / "source",
        ".parquet",
        tagged_sentences(),
        tagged_sentences("test"),
    )
    store = data.convert("stackoverflow", source, tmp_path / "store")
    assert store.held_out(100).shape == (5, 21)
    assert store.held_out(3).shape == (3, 21)
    assert store.held_out(0).shape == (0, 21)


def test_held_out_posts_are_better_than_held_out_users(tmp_path: pathlib.Path):
    rows = [
        (s, "u", {"tokens": word})
        for s, word in zip(
            ("train", "heldout", "test"), VOCABULARY, strict=False
        )
    ]
    (tmp_path / "source").mkdir()
    write_vocabulary(tmp_path / "source")
    write_sqlite(tmp_path / "source" / "stackoverflow.sqlite", rows)
    store = data.convert(
        "stackoverflow", str(tmp_path / "source"), tmp_path / "store"
    )
    assert store.client(0)[:, 1].tolist() == [1]
    assert store.held_out(9)[:, 1].tolist() == [3]


def test_progress_counts_rows(tmp_path: pathlib.Path):
    rows, held_out = tagged_sentences(), tagged_sentences("test")[:20]
    source = write_text_source(tmp_path / "source", ".sqlite", rows, held_out)
    seen: list[tuple] = []
    data.convert(
        "stackoverflow",
        source,
        tmp_path / "store",
        on_progress=lambda *a: seen.append(a),
    )
    assert ("reading held-out rows", 20, 20) in seen
    assert ("reading rows", 16, len(rows)) in seen
    assert ("reading rows", len(rows), len(rows)) in seen
    assert seen[-1] == ("writing examples", len(rows), None)


# Sources of tasks


def test_a_source_is_converted_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    source = tmp_path / "train.parquet"
    write_vocabulary(tmp_path)
    write_parquet(source, tagged_sentences(), "user_id")
    first = data.open_data("stackoverflow", str(source))
    assert len(list((tmp_path / "cache").iterdir())) == 1
    data.open_data.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(conversion, "convert", None)
        again = data.open_data("stackoverflow", str(source))
    np.testing.assert_array_equal(again.client(0), first.client(0))
    data.open_data.cache_clear()
    write_parquet(source, tagged_sentences()[:50], "user_id")
    changed = data.open_data("stackoverflow", str(source))
    assert changed.about["examples"] < first.about["examples"]


def test_a_data_set_of_another_kind_is_refused(tmp_path: pathlib.Path):
    with pytest.raises(
        ValueError, match="to hold emnist, but it holds stackoverflow"
    ):
        data.open_data("emnist", str(converted_posts(tmp_path)))


def test_messages_of_another_library_version_are_the_same_bytes():
    assert (
        example(tokens="a") == b"\n\x11\n\x0f\n\x06tokens\x12\x05\n\x03\n\x01a"
    )
