"""Finds the data: a hub id, a file or a folder, and the splits in it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import lzma
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fl_epe.archive import one_line, require_file
from fl_epe.data import formats
from fl_epe.data.examples import is_hub_id, optional
from fl_epe.data.formats import Batch, Columns

TRAIN, HELD_OUT = "train", "held-out"

_READERS: dict[str, Callable[[Path, Columns], Iterator[Batch]]] = {
    ".parquet": formats.read_parquet,
    ".h5": formats.read_hdf5,
}
_ENDINGS = (*_READERS, ".sqlite", ".sqlite.lzma")
_SAVED = ("dataset_dict.json", "state.json")
# What a split is called that is held out. Held-out users (TFF) are second to later posts: a test.
_HELD_OUT = re.compile(r"(?<![a-z])(test|held|heldout|valid|validation|val|dev|eval)(?![a-z])")
_IGNORED = "digits_only"


@dataclasses.dataclass(frozen=True)
class Part:
    """Some rows of a source that belong to one split.

    Attributes:
        split: what the source calls it.
        read: the rows, given the columns; may be called again.
        rows: how many, or None if only reading would tell.
    """

    split: str
    read: Callable[[Columns], Iterator[Batch]]
    rows: int | None = None


def find_parts(source: str, scratch: Path) -> dict[str, list[Part]]:
    """The parts to train on and, if the source has such a split, those to hold out.

    Args:
        source: hub id (``owner/name``), a file, or a folder with files of one format or with what
            `datasets.Dataset.save_to_disk` wrote. Formats by the name's end: .parquet, .h5,
            .sqlite and .sqlite.lzma. Names of files, or the splits in them, tell what is held
            out: "test", else "heldout", "validation" and such.
        scratch: a folder for files that have to be unpacked.

    Raises:
        FileNotFoundError: if there is no such path and it is no hub id.
        ConnectionError: if the hub cannot be reached (and has nothing in its cache).
        ValueError: for a source of no known format.
    """
    path = Path(source).expanduser()
    if is_hub_id(source):
        parts = _hub(source)
    elif path.is_dir():
        parts = _folder(path, scratch)
    elif path.exists():
        parts = _file(path, scratch, path.name)
    else:
        raise FileNotFoundError(f"Expected source={source!r} to be a path or a hub id.")
    kinds = [_HELD_OUT.findall(part.split.lower()) for part in parts]
    train = [part for part, kind in zip(parts, kinds, strict=True) if not kind]
    tests = [part for part, kind in zip(parts, kinds, strict=True) if "test" in kind]
    held_out = tests or [part for part in parts if part not in train]
    if not train:
        if len(parts) != 1:
            names = [part.split for part in parts]
            raise ValueError(f"Expected source={source!r} to have a training split, has {names}.")
        train, held_out = parts, []
    return {TRAIN: train, HELD_OUT: held_out}


def _hub(name: str) -> list[Part]:
    try:
        found = optional("datasets").load_dataset(name)
    except ConnectionError as error:
        raise ConnectionError(
            f"Expected source={name!r} to be a local path or a data set on the Hugging Face hub: "
            f"{error}. Without network, name a folder with its Parquet files."
        ) from error
    return _from_datasets(found, name)


def _from_datasets(found: Any, name: str) -> list[Part]:
    splits = found if isinstance(found, dict) else {TRAIN: found}
    return [
        Part(
            str(split),
            functools.partial(formats.read_dataset, data, f"{name}, split {split}"),
            len(data),
        )
        for split, data in splits.items()
    ]


def _folder(path: Path, scratch: Path) -> list[Part]:
    if any((path / name).is_file() for name in _SAVED):
        return _from_datasets(optional("datasets").load_from_disk(str(path)), str(path))
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and _format(file)]
    endings = sorted({_format(file) for file in files})
    if len(endings) != 1:
        raise ValueError(
            f"Expected source={str(path)!r} to hold files of one format "
            f"({', '.join(_ENDINGS)}), found {', '.join(endings) or 'none'}."
        )
    return [part for file in files for part in _file(file, scratch, str(file.relative_to(path)))]


def _format(path: Path) -> str:
    """The ending of a file that can be read, or an empty string."""
    return next((ending for ending in _ENDINGS if path.name.lower().endswith(ending)), "")


def _file(path: Path, scratch: Path, name: str) -> list[Part]:
    ending = _format(path)
    require_file(path)
    if not ending:
        raise ValueError(f"Expected {path} to end with one of {', '.join(_ENDINGS)}.")
    if ending in _READERS:
        return [Part(name, functools.partial(_rows, path, _READERS[ending], path))]
    with _sound(path):
        unpacked = path
        if ending != ".sqlite":
            unpacked = scratch / path.with_suffix("").name
            with lzma.open(path) as packed, unpacked.open("wb") as file:
                shutil.copyfileobj(packed, file)
        return [
            Part(split, functools.partial(_rows, path, formats.read_sqlite, unpacked, split), rows)
            for split, rows in formats.sqlite_splits(unpacked).items()
            if not split.startswith(_IGNORED)
        ]


def _rows(path: Path, read: Callable[..., Iterator[Batch]], *arguments: Any) -> Iterator[Batch]:
    with _sound(path):
        yield from read(*arguments)


@contextlib.contextmanager
def _sound(path: Path) -> Iterator[None]:
    """What a library says of a broken file becomes a ValueError that names it."""
    try:
        yield
    except formats.BROKEN as error:
        ending = _format(path)
        raise ValueError(f"Expected {path} to be a sound {ending}: {one_line(error)}.") from error
