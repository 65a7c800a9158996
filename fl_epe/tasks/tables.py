"""Opens data sets: objects of `datasets`, files, folders, and data sets of a hub.

`open_source` gives the clients' rows and the held-out rows of a task, and `read_tables` gives the
splits as tables of pandas.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fl_epe.checks import did_you_mean, raise_invalid
from fl_epe.client_ids import client_ids
from fl_epe.tasks.table_files import is_table_file, read_file
from fl_epe.tasks.tensors import arrow_column

if TYPE_CHECKING:
    import pandas
    from datasets import Dataset, DatasetDict

Source: TypeAlias = (
    "str | os.PathLike[str] | Dataset | DatasetDict | Callable[[], Any]"
)
"""A data set, with or without splits, a function that returns one, or a path or hub id."""

# Names of splits that are held out by default, in this order of preference.
_HELD_OUT_SPLITS = ("test", "validation", "valid", "dev")
_HELD_OUT_SHARE = 0.1
_HELD_OUT_SEED = 0


def open_source(
    source: Source, held_out: str | float | Dataset | None, by: str
) -> tuple[Dataset, Dataset]:
    """The rows of clients, and the held-out rows.

    Args:
        source: the data set, as ``dataset`` of `from_datasets`.
        held_out: the held-out rows, as in `from_datasets`.
        by: the column of clients' ids, or an empty text.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ConnectionError: if a hub cannot be reached.
        ValueError: for a split that does not exist, or data without rows.
    """
    splits = _open_splits(source, by)
    if "train" not in splits and len(splits) != 1:
        raise ValueError(f"Expected a split 'train' among {', '.join(splits)}.")
    train = "train" if "train" in splits else next(iter(splits))
    rows = splits[train]
    other_splits = [name for name in splits if name != train]
    if held_out is None:
        defaults = [name for name in _HELD_OUT_SPLITS if name in other_splits]
        held_out = defaults[0] if defaults else _HELD_OUT_SHARE
    if isinstance(held_out, str):
        if held_out not in other_splits:
            names = ", ".join(other_splits) or "none"
            expected = f"to be one of the other splits: {names}"
            raise_invalid("held_out", held_out, expected)
        held_out = splits[held_out]
    if isinstance(held_out, float | int):
        return _random_split(rows, held_out)
    if not len(rows) or not len(held_out):
        raise ValueError(
            f"Expected data with rows, got {len(rows)} and {len(held_out)} held out."
        )
    return rows, held_out


def _random_split(rows: Dataset, share: float) -> tuple[Dataset, Dataset]:
    """Hold out a share of the rows, at least one, at random."""
    if len(rows) < 2:
        raise ValueError(
            f"Expected data with at least 2 rows, got {len(rows)}."
        )
    order = np.random.default_rng(_HELD_OUT_SEED).permutation(len(rows))
    count = max(1, round(share * len(rows)))
    training = rows.select(np.sort(order[count:]))
    return training, rows.select(np.sort(order[:count]))


def read_tables(source: Source, by: str = "") -> dict[str, pandas.DataFrame]:
    """The splits of a data set as tables; without splits, there is one, "train".

    Args:
        source: the data set, as ``dataset`` of `from_datasets`.
        by: the column of clients' ids, if there is one. Its text stays exactly as written, and
            an empty text is a missing value.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ConnectionError: if a hub cannot be reached.
        ValueError: if the data are not a table, or the ids are neither text nor integers.
    """
    tables: dict[str, pandas.DataFrame] = {}
    for name, rows in _open_splits(source, by).items():
        table = rows.to_pandas()
        if by in table.columns:
            try:
                table[by] = client_ids(arrow_column(rows, by)).to_pandas()
            except ValueError as error:
                raise_invalid("by", by, f"to have clients' ids: {error}")
        tables[name] = table
    return tables


def _open_splits(source: Source, by: str) -> Mapping[str, Dataset]:
    """The splits of a data set by name; without splits, there is one, "train"."""
    data: Any = source
    if isinstance(source, str | os.PathLike):
        data = _read_path(os.fspath(source), by)
    else:
        if callable(source) and not hasattr(source, "column_names"):
            data = source()
        if not hasattr(data, "column_names"):
            raise ValueError(
                "Expected dataset to be a datasets.Dataset or DatasetDict, got "
                f"{type(data).__name__}"
            )
    if isinstance(data, Mapping):
        return data
    return {"train": data}


def _read_path(text: str, by: str) -> Any:
    """The data set in a file, a folder or a hub. Files are not copied to a cache."""
    path = Path(text).expanduser()
    if path.is_file():
        return _read_files([path], by)
    if path.is_dir():
        return _read_folder(path, by)
    # The id of a hub's data set may look like a path, but its owner is no folder here.
    looks_local = path.is_absolute() or text.startswith((".", "~"))
    if looks_local or is_table_file(path) or path.parent.is_dir():
        similar = [file.name for file in path.parent.glob(f"*{path.suffix}")]
        raise FileNotFoundError(
            f"No file or folder at dataset={text!r} (the id of a hub's data set is OWNER/NAME)"
            f"{did_you_mean(path.name, similar)}."
        )
    return _read_hub(text, by)


def _read_files(paths: Iterable[Path], by: str) -> Dataset:
    """One data set with the rows of all files."""
    import datasets
    from pyarrow import concat_tables

    tables = [read_file(path, by) for path in paths]
    table = concat_tables(tables, promote_options="permissive")
    return datasets.Dataset(datasets.table.InMemoryTable(table))


def _read_folder(path: Path, by: str) -> Any:
    """The data set in a folder of tables or images, or one that ``save_to_disk`` wrote."""
    import datasets

    from fl_epe.data.sources import in_source, is_saved, read_saved

    if is_saved(path):
        return read_saved(path)
    builder = datasets.load_dataset_builder(str(path))
    splits: dict[str, list[Path]] = {}
    for split, files in (builder.config.data_files or {}).items():
        splits[str(split)] = [Path(file) for file in files]
        for file in splits[str(split)]:
            # The README.md of a folder may name files outside the folder.
            in_source(path, file)
    if builder.name in ("csv", "json"):
        return {
            split: _read_files(files, by) for split, files in splits.items()
        }
    return datasets.load_dataset(str(path))


def _read_hub(name: str, by: str) -> Any:
    import datasets

    builder = datasets.load_dataset_builder(name)
    if by and builder.name == "csv":
        # Clients' ids stay text.
        return datasets.load_dataset(name, converters={by: str})
    return datasets.load_dataset(name)
