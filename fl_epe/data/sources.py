"""Finds the splits of a published data set.

A source is the id of a data set on the Hugging Face hub, a file or a folder. `find_parts` returns
the parts of a source; `Part.read` reads the rows of one part, with the functions of
`fl_epe.data.readers`.
"""

import contextlib
import dataclasses
import functools
import json
import lzma
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fl_epe.archive import one_line, require_file
from fl_epe.data.examples import is_hub_id
from fl_epe.data.readers import (
    ENDINGS,
    LIBRARY_ERRORS,
    Batch,
    Columns,
    check_unpacked,
    file_ending,
    read_dataset,
    read_hdf5,
    read_leaf_json,
    read_parquet,
    read_sqlite,
    sqlite_splits,
)
from fl_epe.files import inside

_BYTES_PER_BLOCK = 1 << 20  # that are decompressed at a time
_READERS: dict[str, Callable[[Path, Columns], Iterator[Batch]]] = {
    ".parquet": read_parquet,
    ".h5": read_hdf5,
    ".json": read_leaf_json,
}
# Words in the names of splits that are held out.
_HELD_OUT = re.compile(
    r"(?<![a-z])(test|held|heldout|valid|validation|val|dev|eval)(?![a-z])"
)


@dataclasses.dataclass(frozen=True)
class Part:
    """Some rows of a source that belong to one split.

    Attributes:
        split: the name of the split in the source.
        read: a function from the columns to the rows, which may be called again.
        rows: the number of rows, or ``None`` if it is unknown before they are read.
    """

    split: str
    read: Callable[[Columns], Iterator[Batch]]
    rows: int | None = None


def find_parts(source: str, scratch: Path) -> tuple[list[Part], list[Part]]:
    """The parts to train on, and the parts to hold out, if the source has such a split.

    Args:
        source: a hub id (``owner/name``), a file, a folder with files of one format, or a
            folder that `datasets.Dataset.save_to_disk` wrote. The formats are .parquet, .h5,
            .json (of LEAF), .sqlite and .sqlite.lzma. The names of files, or of the splits in
            them, define the held-out parts: "test", or else "heldout", "validation" and such.
        scratch: a folder for decompressed files.

    Raises:
        FileNotFoundError: if the source is neither a path nor a hub id.
        ConnectionError: if the hub cannot be reached (and has nothing in its cache).
        ValueError: for a source of no known format.
    """
    path = Path(source).expanduser()
    if is_hub_id(source):
        parts = _parts_of_hub(source)
    elif path.is_dir():
        parts = _parts_of_folder(path, scratch)
    elif path.exists():
        parts = _parts_of_file(path, scratch, path.name)
    else:
        raise FileNotFoundError(
            f"Expected source={source!r} to be a path or a hub id."
        )
    train = []
    tests = []
    validations = []
    for part in parts:
        words = _HELD_OUT.findall(part.split.lower())
        if not words:
            train.append(part)
        elif "test" in words:
            tests.append(part)
        else:
            validations.append(part)
    if train:
        # TFF's StackOverflow has both: "test" has later posts of the same users, and "heldout" has
        # other users.
        return train, tests or validations
    if len(parts) != 1:
        names = [part.split for part in parts]
        raise ValueError(
            f"Expected source={source!r} to have a training split, has {names}."
        )
    return parts, []


def _parts_of_hub(name: str) -> list[Part]:
    """The splits of a data set on the Hugging Face hub, which is downloaded into its cache."""
    import datasets

    try:
        dataset = datasets.load_dataset(name)
    except ConnectionError as error:
        raise ConnectionError(
            f"Expected source={name!r} to be a local path or a data set on the Hugging Face hub: "
            f"{error}. Without network, name a folder with its Parquet files."
        ) from error
    return _parts_of_dataset(dataset, name)


def _parts_of_dataset(dataset: Any, name: str) -> list[Part]:
    """The splits of a `datasets.Dataset` or `datasets.DatasetDict`."""
    splits = dataset if isinstance(dataset, dict) else {"train": dataset}
    parts = []
    for split, data in splits.items():
        read = functools.partial(read_dataset, data, f"{name}, split {split}")
        parts.append(Part(str(split), read, len(data)))
    return parts


def _parts_of_folder(path: Path, scratch: Path) -> list[Part]:
    """The parts of a saved data set, or of all files in a folder, which have one format."""
    if is_saved(path):
        return _parts_of_dataset(read_saved(path), str(path))
    files = [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file() and file_ending(file)
    ]
    for file in files:
        in_source(path, file)
    endings = sorted({file_ending(file) for file in files})
    if len(endings) != 1:
        raise ValueError(
            f"Expected source={str(path)!r} to hold files of one format "
            f"({', '.join(ENDINGS)}), found {', '.join(endings) or 'none'}."
        )
    parts = []
    for file in files:
        parts += _parts_of_file(file, scratch, str(file.relative_to(path)))
    return parts


def in_source(folder: Path, file: Path) -> None:
    """Raise a `ValueError` for a link out of the folder.

    In the cache of the hub's client, a folder may have links to the files in ``../../blobs``.
    """
    if not file.resolve().is_relative_to((folder / "../../blobs").resolve()):
        inside(folder, file)


def is_saved(folder: Path) -> bool:
    """Whether a folder has a file that `datasets.Dataset.save_to_disk` wrote."""
    names = ("dataset_dict.json", "state.json")
    return any((folder / name).is_file() for name in names)


def read_saved(folder: Path) -> Any:
    """The data set that `datasets.Dataset.save_to_disk` wrote.

    Raises:
        ValueError: if the folder has something else, or refers to files outside the folder.
    """
    import datasets

    try:
        splits = [folder]
        description = folder / "dataset_dict.json"
        if description.is_file():
            names = json.loads(description.read_bytes())["splits"]
            splits = [inside(folder, folder / name) for name in names]
        for split in splits:
            state = json.loads(
                inside(folder, split / "state.json").read_bytes()
            )
            for part in state["_data_files"]:
                inside(folder, split / part["filename"])
        return datasets.load_from_disk(str(folder))
    except (*LIBRARY_ERRORS, json.JSONDecodeError) as error:
        raise ValueError(
            f"Expected {folder} to be what save_to_disk of datasets wrote: {one_line(error)}."
        ) from error


def _parts_of_file(path: Path, scratch: Path, name: str) -> list[Part]:
    """The parts of a file: one called ``name``, or the splits of an SQLite file."""
    ending = file_ending(path)
    require_file(path)
    if not ending:
        raise ValueError(
            f"Expected {path} to end with one of {', '.join(ENDINGS)}."
        )
    if ending in _READERS:
        read = functools.partial(_READERS[ending], path)
        return [Part(name, _naming_errors(path, read))]
    with _errors_of(path):
        database = path
        if ending == ".sqlite.lzma":
            database = _decompressed(path, scratch)
        parts = []
        for split, rows in sqlite_splits(database).items():
            # TFF's emnist_all.sqlite has the digits a second time, in splits of their own.
            if not split.startswith("digits_only"):
                read = functools.partial(read_sqlite, database, split)
                parts.append(Part(split, _naming_errors(path, read), rows))
        return parts


def _decompressed(path: Path, scratch: Path) -> Path:
    """A decompressed copy of a file, of limited size, in the folder ``scratch``."""
    target = scratch / path.with_suffix("").name
    with lzma.open(path) as packed, target.open("wb") as file:
        for block in iter(lambda: packed.read(_BYTES_PER_BLOCK), b""):
            check_unpacked(file.tell() + len(block), path)
            file.write(block)
    return target


def _naming_errors(
    path: Path, read: Callable[[Columns], Iterator[Batch]]
) -> Callable[[Columns], Iterator[Batch]]:
    """The function ``read``, with errors that name the file, see `_errors_of`."""

    def read_named(wanted: Columns) -> Iterator[Batch]:
        with _errors_of(path):
            yield from read(wanted)

    return read_named


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """In this context, a library's error for a broken file is a `ValueError` that names the file.

    Raises:
        ValueError: with the file and the error.
    """
    try:
        yield
    except LIBRARY_ERRORS as error:
        raise ValueError(
            f"Expected {path} to be a sound {file_ending(path)}: {one_line(error)}."
        ) from error
