"""From published files to a data set on disk: every format, any order, whole or not at all."""

import json
import lzma
import pathlib
import shutil

import datasets
import numpy as np
import pytest
from data_files import (
    Rows,
    example,
    handwriting,
    png,
    posts,
    write_csv,
    write_hdf5,
    write_json_lines,
    write_parquet,
    write_sqlite,
)

from fl_epe import data
from fl_epe.data import conversion, formats, sources
from fl_epe.data.characters import Characters
from fl_epe.data.encoding import raw_batch
from fl_epe.data.examples import ALPHABET
from fl_epe.data.store import ClientStore
from fl_epe.data.words import Words

VOCABULARY = ["the", "a", "of", "to", "is", "and", "in", "for", "if", "or"]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    """So that few rows are many batches, and nothing is kept in the user's cache."""
    monkeypatch.setattr(formats, "ROWS", 16)
    monkeypatch.setattr("fl_epe.data.store.BATCH_BYTES", 5000)
    monkeypatch.setenv("FL_EPE_CACHE", str(tmp_path / "cache"))
    data.open_data.cache_clear()


def _sentences(split: str = "train", limit: int = 40) -> Rows:
    """Posts of all users in turn, not sorted by user."""
    users = posts()
    rows = [(split, user, {"tokens": text}) for user in users for text in users[user][:limit]]
    return [rows[i] for i in np.random.default_rng(3).permutation(len(rows))]


def _by_client(rows: Rows) -> dict[str, list]:
    found: dict[str, list] = {}
    for _, client, features in rows:
        found.setdefault(client, []).append(features)
    return found


def _vocabulary(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "stackoverflow.word_count"
    path.write_text("".join(f"{word} 1\n" for word in VOCABULARY), encoding="utf-8")
    return path


def _expected_ids(rows: Rows) -> dict[str, np.ndarray]:
    words = Words([word.encode() for word in VOCABULARY])
    return {
        client: words.encode(
            raw_batch({"client": [client] * len(part), "tokens": [f["tokens"] for f in part]}, "")
        )
        for client, part in _by_client(rows).items()
    }


def _write_text(folder: pathlib.Path, form: str, rows: Rows, held_out: Rows) -> str:
    folder.mkdir()
    _vocabulary(folder)
    if form in (".sqlite", ".sqlite.lzma"):
        write_sqlite(folder / f"stackoverflow{form}", [*rows, *held_out])
    elif form == ".h5":
        write_hdf5(folder / "stackoverflow_train.h5", rows)
        write_hdf5(folder / "stackoverflow_test.h5", held_out)
    elif form == "datasets":
        parts = {
            split: datasets.Dataset.from_dict(
                {"user_id": [r[1] for r in part], "tokens": [r[2]["tokens"] for r in part]}
            )
            for split, part in (("train", rows), ("test", held_out))
        }
        datasets.DatasetDict(parts).save_to_disk(str(folder))
    else:
        write = {".parquet": write_parquet, ".jsonl": write_json_lines, ".csv": write_csv}[form]
        (folder / "data").mkdir()
        half = len(rows) // 2
        write(folder / f"data/train-0{form}", rows[:half], "user_id")
        write(folder / f"data/train-1{form}", rows[half:], "user_id")
        write(folder / f"data/test-0{form}", held_out, "user_id")
    return str(folder)


FORMATS = [".sqlite", ".sqlite.lzma", ".h5", ".parquet", ".jsonl", ".csv", "datasets"]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_each_user_their_sentences(tmp_path: pathlib.Path, form: str):
    rows, held_out = _sentences(), _sentences("test", 10)[:37]
    source = _write_text(tmp_path / "source", form, rows, held_out)
    store = data.convert("stackoverflow", source, tmp_path / "store")
    expected = _expected_ids(rows)
    assert [store.name(i) for i in range(len(store))] == sorted(expected)
    assert store.sizes.tolist() == [len(expected[name]) for name in sorted(expected)]
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
        "image": [{"bytes": png(255 - f["ink"]), "path": None} for _, _, f in rows],
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
        (f"all_{split}", writer, {"pixels": 1 - f["ink"] / np.float32(255), "label": f["label"]})
        for split, writer, f in rows
    ]
    if form == "hub":
        hub = {"train": _hub_dataset(rows)}
        monkeypatch.setattr(datasets, "load_dataset", {"flwrlabs/femnist": hub}.__getitem__)
        return "flwrlabs/femnist"
    if form == "parquet":
        (folder / "data").mkdir()
        _hub_dataset(rows).to_parquet(str(folder / "data/train-00000-of-00001.parquet"))
        # The library's own loader takes a folder as it takes a hub id.
        loaded = sources._from_datasets(
            datasets.load_dataset(str(folder), cache_dir=str(folder.parent / "hf")), "hub"
        )
        assert [(part.split, part.rows) for part in loaded] == [("train", len(rows))]
        return str(folder)
    if form == "saved":
        _hub_dataset(rows).save_to_disk(str(folder))
        return str(folder)
    if form == "sqlite":
        digits = [("digits_only_train", writer, f) for _, writer, f in tff]
        write_sqlite(folder / "emnist_all.sqlite", [*digits, *tff])
    else:
        write_hdf5(folder / "fed_emnist_train.h5", tff)
    return str(folder)


@pytest.mark.parametrize("form", ["hub", "parquet", "saved", "sqlite", "hdf5"])
def test_every_format_gives_each_writer_their_pictures(
    tmp_path: pathlib.Path, form: str, monkeypatch: pytest.MonkeyPatch
):
    rows = _pictures()
    source = _write_pictures(tmp_path / "source", form, rows, monkeypatch)
    store = data.convert("emnist", source, tmp_path / "store")
    expected = _by_client(rows)
    assert [store.name(i) for i in range(len(store))] == sorted(expected)
    held_out = {tuple(found) for found in store.held_out(10**6)}
    assert len(held_out) == sum(len(part) // 10 for part in expected.values())
    for client, name in enumerate(sorted(expected)):
        all_of = [(*f["ink"].ravel(), f["label"]) for f in expected[name]]
        kept = [tuple(found) for found in store.client(client)]
        assert kept == [found for found in all_of if found not in held_out]
        assert len(kept) == len(all_of) - len(all_of) // 10
    assert store.about["inverted"]
    assert store.about["source"] == ("flwrlabs/femnist" if form == "hub" else "source")


def test_bounded_memory_changes_no_byte(tmp_path: pathlib.Path):
    source = tmp_path / "train.jsonl"
    write_json_lines(source, _sentences(), "user_id")
    for name, memory in (("large", 1 << 20), ("small", 1000)):
        data.convert("stackoverflow", str(source), tmp_path / name, memory=memory)
    for file in ("train.arrow", "held_out.arrow", "clients.arrow", "about.json"):
        assert (tmp_path / "large" / file).read_bytes() == (tmp_path / "small" / file).read_bytes()


def test_a_tenth_of_each_user_is_held_out_where_the_source_holds_nothing_out(
    tmp_path: pathlib.Path,
):
    rows = _sentences()
    write_json_lines(tmp_path / "train.jsonl", rows, "user_id")
    store = data.convert("stackoverflow", str(tmp_path / "train.jsonl"), tmp_path / "store")
    sizes = [len(part) for _, part in sorted(_by_client(rows).items())]
    assert store.sizes.tolist() == [size - size // 10 for size in sizes]
    assert store.about["held_out"] == sum(size // 10 for size in sizes)
    # Without a vocabulary, words are counted.
    texts = " ".join(f["tokens"] for _, _, f in rows).split(" ")
    top = store.about["vocabulary"][0]
    assert texts.count(top) == max(texts.count(word) for word in set(texts) - {""})


def _windows(speaker: str, lines: int) -> Rows:
    text = (" ".join(posts()["argparse"]) * 2)[: lines + 80]
    kept = "".join(c if c in ALPHABET else " " for c in text)
    return [("train", speaker, {"x": kept[i : i + 80], "y": kept[i + 80]}) for i in range(lines)]


@pytest.mark.parametrize("form", ["csv", "hub"])
def test_no_text_of_a_speaker_is_trained_on_and_held_out(
    tmp_path: pathlib.Path, form: str, monkeypatch: pytest.MonkeyPatch
):
    rows = [*_windows("HAMLET", 1000), *_windows("GHOST", 799)]
    source = str(tmp_path / "shakespeare.csv")
    write_csv(tmp_path / "shakespeare.csv", rows, "character_id")
    if form == "hub":
        loaded = datasets.load_dataset("csv", data_files=source, cache_dir=str(tmp_path / "hf"))
        monkeypatch.setattr(datasets, "load_dataset", {"flwrlabs/shakespeare": loaded}.get)
        source = "flwrlabs/shakespeare"
    store = data.convert("shakespeare", source, tmp_path / "store")
    assert [store.name(i) for i in range(2)] == ["GHOST", "HAMLET"]
    assert store.sizes.tolist() == [799, 820]
    features = [f for _, speaker, f in rows if speaker == "HAMLET"]
    columns = {name: [f[name] for f in features] for name in ("x", "y")}
    expected = Characters().encode(raw_batch({"client": ["H"] * 1000, **columns}, ""))
    np.testing.assert_array_equal(store.client(1), expected[:820])
    held_out = {tuple(found) for found in store.held_out(1000)}
    assert held_out == {tuple(found) for found in expected[900:]}


def test_held_out_examples_are_at_most_so_many(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(conversion, "MOST_HELD_OUT", 5)
    source = _write_text(tmp_path / "source", ".jsonl", _sentences(), _sentences("test"))
    store = data.convert("stackoverflow", source, tmp_path / "store")
    assert store.held_out(100).shape == (5, 21)
    assert store.held_out(3).shape == (3, 21)
    assert store.held_out(0).shape == (0, 21)


def test_held_out_posts_are_better_than_held_out_users(tmp_path: pathlib.Path):
    rows = [
        (s, "u", {"tokens": word})
        for s, word in zip(("train", "heldout", "test"), VOCABULARY, strict=False)
    ]
    (tmp_path / "source").mkdir()
    _vocabulary(tmp_path / "source")
    write_sqlite(tmp_path / "source" / "stackoverflow.sqlite", rows)
    store = data.convert("stackoverflow", str(tmp_path / "source"), tmp_path / "store")
    assert store.client(0)[:, 1].tolist() == [1]
    assert store.held_out(9)[:, 1].tolist() == [3]


def test_progress_counts_rows(tmp_path: pathlib.Path):
    rows, held_out = _sentences(), _sentences("test")[:20]
    source = _write_text(tmp_path / "source", ".sqlite", rows, held_out)
    seen: list[tuple] = []
    data.convert("stackoverflow", source, tmp_path / "store", on_progress=lambda *a: seen.append(a))
    assert ("reading held-out rows", 20, 20) in seen
    assert ("reading rows", 16, len(rows)) in seen
    assert ("reading rows", len(rows), len(rows)) in seen
    assert seen[-1] == ("writing examples", len(rows), None)


# The data set on disk


def _store(tmp_path: pathlib.Path) -> pathlib.Path:
    source = _write_text(tmp_path / "source", ".jsonl", _sentences(), _sentences("test"))
    data.convert("stackoverflow", source, tmp_path / "store")
    return tmp_path / "store"


def test_examples_are_mapped_and_not_copied(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fl_epe.data.store.BATCH_BYTES", 1 << 20)
    examples = ClientStore(_store(tmp_path)).client(0)
    assert not examples.flags.writeable
    assert not examples.flags.owndata


def test_the_datasets_library_reads_it_too(tmp_path: pathlib.Path):
    path = _store(tmp_path)
    loaded = datasets.Dataset.from_file(str(path / "train.arrow"))
    assert len(loaded) == ClientStore(path).sizes.sum()


def test_a_seed_decides_the_order_and_what_is_taken(tmp_path: pathlib.Path):
    store = ClientStore(_store(tmp_path))
    everything = store.shuffled(1, 0, seed=4)
    assert sorted(map(tuple, everything)) == sorted(map(tuple, store.client(1)))
    assert not np.array_equal(everything, store.client(1))
    np.testing.assert_array_equal(store.shuffled(1, 7, seed=4), everything[:7])
    assert not np.array_equal(store.shuffled(1, 7, seed=5), everything[:7])
    assert len(store.shuffled(1, 10**6, seed=4)) == store.sizes[1]


@pytest.mark.parametrize("client", [-1, 5])
def test_a_client_that_does_not_exist(tmp_path: pathlib.Path, client: int):
    with pytest.raises(IndexError, match=f"client={client} < 5"):
        ClientStore(_store(tmp_path)).client(client)


@pytest.mark.parametrize("file", ["train.arrow", "clients.arrow", "held_out.arrow", "about.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_a_damaged_data_set_is_refused(tmp_path: pathlib.Path, file: str, damage: str):
    path = _store(tmp_path) / file
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2 if damage == "cut" else 0])
    with pytest.raises(ValueError, match=str(path.parent)):
        ClientStore(path.parent)


def test_another_format_of_data_sets_is_refused(tmp_path: pathlib.Path):
    path = _store(tmp_path)
    about = json.loads((path / "about.json").read_text())
    (path / "about.json").write_text(json.dumps(about | {"format": 2}))
    with pytest.raises(ValueError, match="format=2"):
        ClientStore(path)


# Sources of tasks


def test_a_source_is_converted_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    source = tmp_path / "train.jsonl"
    write_json_lines(source, _sentences(), "user_id")
    first = data.open_data("stackoverflow", str(source))
    assert len(list((tmp_path / "cache").iterdir())) == 1
    data.open_data.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(conversion, "convert", None)
        again = data.open_data("stackoverflow", str(source))
    np.testing.assert_array_equal(again.client(0), first.client(0))
    data.open_data.cache_clear()
    write_json_lines(source, _sentences()[:50], "user_id")
    changed = data.open_data("stackoverflow", str(source))
    assert changed.sizes.sum() < first.sizes.sum()


def test_a_data_set_of_another_kind_is_refused(tmp_path: pathlib.Path):
    with pytest.raises(ValueError, match="to hold emnist, holds stackoverflow"):
        data.open_data("emnist", str(_store(tmp_path)))


# What can be wrong


def _text_file(name: str, content: str | bytes):
    def write(folder: pathlib.Path) -> None:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def _sqlite(*rows) -> object:
    return lambda folder: write_sqlite(folder / "s.sqlite", list(rows))


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
            _text_file("a.jsonl", ""), r"a.jsonl not to be empty", id="a.jsonl-not-to-be-empty"
        ),
        pytest.param(
            _text_file("a.jsonl", "\n\n"),
            r"source='.*' to have words, found none",
            id="source=to-have-words,found-none",
        ),
        pytest.param(
            _text_file("a.jsonl", "{"),
            r"a.jsonl, line 1, to be JSON",
            id="a.jsonl,line-1,to-be-JSON",
        ),
        pytest.param(
            _text_file("a.jsonl", '{"user_id": "u", "tokens": "a"}\n[1]'),
            "line 2, to be a JSON obj",
            id="line-2,to-be-a-JSON-obj",
        ),
        pytest.param(
            _text_file("a.jsonl", '{"user_id": "u"}'),
            "line 1, to have a column 'tokens', found",
            id="line-1,to-have-a-column-tokens,found",
        ),
        pytest.param(
            _text_file("a.jsonl", '{"tokens": "u"}'),
            "'user_id' or 'client_id', found 'tokens'",
            id="user_id-or-client_id,found-tokens",
        ),
        pytest.param(
            _text_file("a.jsonl", '{"user_id": "u", "tokens": 3}'),
            "tokens in .* to be text, found",
            id="tokens-in-to-be-text,found",
        ),
        pytest.param(
            _text_file("a.jsonl", '{"user_id": null, "tokens": ""}'),
            "no missing client in",
            id="no-missing-client-in",
        ),
        pytest.param(
            _text_file("a.csv", "user_id,text\n1,b\n"),
            "'tokens', found 'text', 'user_id'",
            id="tokens,found-text,user_id",
        ),
        pytest.param(
            _text_file("a.csv", "user_id,tokens\n1\n"),
            "line 2 has 1 cells, the header 2",
            id="line-2-has-1-cells,the-header-2",
        ),
        pytest.param(
            _text_file("a.csv", 'user_id,tokens\n1,"a'),
            "after line 1, to be CSV",
            id="after-line-1,to-be-CSV",
        ),
        pytest.param(_text_file("a.csv", b"user_id,tokens\n1,\xff"), "to be CSV", id="to-be-CSV"),
        pytest.param(
            _text_file("a.parquet", "PAR1"),
            "a.parquet to be a Parquet file",
            id="a.parquet-to-be-a-Parquet-file",
        ),
        pytest.param(
            _text_file("a.h5", "HDF"), "a.h5 to be an HDF5 file", id="a.h5-to-be-an-HDF5-file"
        ),
        pytest.param(
            _text_file("a.sqlite", "text" * 200),
            "a.sqlite to be SQLite with the tables 'examples'",
            id="a.sqlite-to-be-SQLite-with-the-tables-examples",
        ),
        pytest.param(
            _text_file("a.sqlite.lzma", "text"),
            "a.sqlite.lzma to be a whole LZMA file",
            id="a.sqlite.lzma-to-be-a-whole-LZMA-file",
        ),
        pytest.param(
            _text_file("a.sqlite.lzma", lzma.compress(bytes(9999), format=lzma.FORMAT_ALONE)[:-9]),
            "whole LZMA file",
            id="whole-LZMA-file",
        ),
        pytest.param(
            _sqlite(),
            "s.sqlite to list clients in 'client_metadata'",
            id="s.sqlite-to-list-clients-in-client_metadata",
        ),
        pytest.param(
            _sqlite(GOOD, ("train", "u", b"\x0b")),
            "row 2, to be a tf.train.Example: 1 bytes that protobuf cannot parse",
            id="row-2,cannot-be-parsed",
        ),
        pytest.param(
            _sqlite(("train", "u", {"title": "x"})),
            "row 1, to have a column 'tokens', found 'title'",
            id="row-1,to-have-a-column-tokens,found-title",
        ),
        pytest.param(
            _sqlite(("test", "u", {"tokens": "a"}), ("heldout", "u", {"tokens": "a"})),
            "to have a training split, has",
            id="to-have-a-training-split,has",
        ),
        pytest.param(
            lambda folder: write_hdf5(folder / "a.h5", [("", "u", {"title": "x"})]),
            "client 'u', to have a column 'tokens'",
            id="client-u,to-have-a-column-tokens",
        ),
    ],
)
def test_a_source_that_is_broken_is_named_and_nothing_is_left(
    tmp_path: pathlib.Path, write, message: str
):
    (tmp_path / "source").mkdir()
    write(tmp_path / "source")
    with pytest.raises(ValueError, match=message):
        data.convert("stackoverflow", str(tmp_path / "source"), tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_two_formats_in_a_folder_are_one_too_many(tmp_path: pathlib.Path):
    source = tmp_path / "source"
    _write_text(source, ".jsonl", _sentences(), _sentences("test"))
    shutil.copy(source / "data" / "train-0.jsonl", source / "train.csv")
    with pytest.raises(ValueError, match=r"one format .*found \.csv, \.jsonl"):
        data.convert("stackoverflow", str(source), tmp_path / "store")


def test_hdf5_without_examples_is_named(tmp_path: pathlib.Path):
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["clients/u/tokens"] = [b"a"]
    with pytest.raises(ValueError, match=r"a.h5 to have a group 'examples', has \['clients'\]"):
        data.convert("stackoverflow", str(tmp_path / "a.h5"), tmp_path / "store")


def test_features_of_different_lengths_are_named(tmp_path: pathlib.Path):
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["examples/w/pixels"] = np.ones((2, 28, 28))
        file["examples/w/label"] = [1]
    with pytest.raises(ValueError, match=r"client 'w', found {'pixels': 2, 'label': 1}"):
        data.convert("emnist", str(tmp_path / "a.h5"), tmp_path / "store")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            {"kind": "mnist"},
            "kind='mnist' to be one of emnist, shakespeare, stackoverflow",
            id="kind=mnist-to-be-one-of",
        ),
        pytest.param(
            {"kind": "emnist", "vocabulary": "words"},
            "vocabulary='words' only for",
            id="vocabulary=words-only-for",
        ),
        pytest.param({"target": "."}, "target='.' not to exist", id="target=.-not-to-exist"),
    ],
)
def test_arguments_are_checked_first(arguments: dict, message: str):
    given = {"kind": "stackoverflow", "source": "x", "target": "y"} | arguments
    with pytest.raises(ValueError, match=message):
        data.convert(given.pop("kind"), given.pop("source"), given.pop("target"), **given)


def test_paths_that_do_not_exist_are_named(tmp_path: pathlib.Path):
    with pytest.raises(FileNotFoundError, match=r"source='/nowhere' to be a path or a hub id"):
        data.convert("emnist", "/nowhere", tmp_path / "store")
    write_json_lines(tmp_path / "a.jsonl", [GOOD], "user_id")
    with pytest.raises(FileNotFoundError, match="vocabulary='none'"):
        data.convert("stackoverflow", str(tmp_path / "a.jsonl"), tmp_path / "s", vocabulary="none")


def test_a_hub_out_of_reach_says_what_to_do(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match=r"source='flwrlabs/femnist' .*Without network, name"):
        data.convert("emnist", "flwrlabs/femnist", tmp_path / "store")


def test_what_happens_meanwhile_is_not_overwritten(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    write_json_lines(tmp_path / "a.jsonl", [GOOD], "user_id")

    def someone_else(*_):
        (tmp_path / "store").mkdir(exist_ok=True)
        (tmp_path / "store" / "mine").touch()

    with pytest.raises(FileExistsError, match="target="):
        data.convert(
            "stackoverflow", str(tmp_path / "a.jsonl"), tmp_path / "store", on_progress=someone_else
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "store"]


def test_what_a_task_needs_besides_is_named(monkeypatch: pytest.MonkeyPatch):
    from fl_epe.data.places import optional

    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(RuntimeError, match=r"needs h5py: pip install 'fl-epe\[data\]'"):
        optional("h5py")


def test_hub_ids_and_paths_are_told_apart(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert data.absolute("flwrlabs/femnist") == "flwrlabs/femnist"
    assert data.absolute("folder") == str(tmp_path / "folder")
    (tmp_path / "flwrlabs" / "femnist").mkdir(parents=True)
    assert data.absolute("flwrlabs/femnist") == str(tmp_path / "flwrlabs" / "femnist")


def test_messages_of_another_library_version_are_the_same_bytes():
    assert example(tokens="a") == b"\n\x11\n\x0f\n\x06tokens\x12\x05\n\x03\n\x01a"
