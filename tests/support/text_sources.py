"""Sentences in every format that is read."""

import pathlib

import datasets
import numpy as np
from data_files import Rows, posts, write_hdf5, write_parquet, write_sqlite

from fl_epe import data

VOCABULARY = ["the", "a", "of", "to", "is", "and", "in", "for", "if", "or"]


def tagged_sentences(split: str = "train", limit: int = 40) -> Rows:
    """Posts of all users in turn, not sorted by user."""
    users = posts()
    rows = [
        (split, user, {"tokens": text})
        for user in users
        for text in users[user][:limit]
    ]
    return [rows[i] for i in np.random.default_rng(3).permutation(len(rows))]


def write_vocabulary(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "stackoverflow.word_count"
    path.write_text(
        "".join(f"{word} 1\n" for word in VOCABULARY), encoding="utf-8"
    )
    return path


def write_text_source(
    folder: pathlib.Path, form: str, rows: Rows, held_out: Rows
) -> str:
    folder.mkdir()
    write_vocabulary(folder)
    if form in (".sqlite", ".sqlite.lzma"):
        write_sqlite(folder / f"stackoverflow{form}", [*rows, *held_out])
    elif form == ".h5":
        write_hdf5(folder / "stackoverflow_train.h5", rows)
        write_hdf5(folder / "stackoverflow_test.h5", held_out)
    elif form == "datasets":
        parts = {
            split: datasets.Dataset.from_dict(
                {
                    "user_id": [r[1] for r in part],
                    "tokens": [r[2]["tokens"] for r in part],
                }
            )
            for split, part in (("train", rows), ("test", held_out))
        }
        datasets.DatasetDict(parts).save_to_disk(str(folder))
    else:
        (folder / "data").mkdir()
        half = len(rows) // 2
        write_parquet(folder / f"data/train-0{form}", rows[:half], "user_id")
        write_parquet(folder / f"data/train-1{form}", rows[half:], "user_id")
        write_parquet(folder / f"data/test-0{form}", held_out, "user_id")
    return str(folder)


def converted_posts(tmp_path: pathlib.Path) -> pathlib.Path:
    source = write_text_source(
        tmp_path / "source",
        ".parquet",
        tagged_sentences(),
        tagged_sentences("test"),
    )
    data.convert("stackoverflow", source, tmp_path / "store")
    return tmp_path / "store"
