"""Where the rows of a task come from, and which of them are held out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

Source: TypeAlias = "str | os.PathLike[str] | Dataset | DatasetDict | Callable[[], Any]"
"""A data set, one with splits, a function that returns one, or where one is."""

_HELD_OUT_SPLITS = ("test", "validation", "valid", "dev")
_HELD_OUT_SHARE = 0.1
_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """While it lasts, `datasets` draws no progress bars."""
    import datasets

    were_off = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            datasets.enable_progress_bars()


def absolute(source: Source) -> Source:
    """A local path as an absolute one, as workers start in other folders; others as they are."""
    if isinstance(source, str | os.PathLike):
        path = Path(source).expanduser()
        if path.exists() or isinstance(source, os.PathLike):
            return str(path.absolute())
    return source


def open_source(
    source: Source, held_out: str | float | Dataset | None, seed: int
) -> tuple[Dataset, Dataset]:
    """The rows that clients share, and the held-out ones.

    Args:
        source: see `from_datasets`.
        held_out: see `from_datasets`.
        seed: draws the held-out share.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ConnectionError: if a hub cannot be reached.
        ValueError: for a split that does not exist, or data without rows.
    """
    found = _opened(source)
    if not isinstance(found, Mapping):
        rows, other = found, held_out
    elif held_out is None or isinstance(held_out, str):
        rows, other = _by_split(found, held_out)
    else:
        rows, other = found[_training_split(found)], held_out
    if isinstance(other, str):
        raise ValueError(
            f"Expected held_out={other!r} to be a share or a data set: the data have no splits."
        )
    if other is None or isinstance(other, float | int):
        return _drawn(rows, _HELD_OUT_SHARE if other is None else float(other), seed)
    if not len(rows) or not len(other):
        raise ValueError(f"Expected data with rows, got {len(rows)} and {len(other)} held out.")
    return rows, other


def _opened(source: Source) -> Any:
    if isinstance(source, str | os.PathLike):
        return _read_path(os.fspath(source))
    if callable(source) and not hasattr(source, "column_names"):
        source = source()
    if not hasattr(source, "column_names"):
        raise ValueError(
            f"Expected dataset to be a datasets.Dataset or DatasetDict, got {type(source).__name__}"
        )
    return source


def _read_path(text: str) -> Any:
    """A data set of a file, a folder or a hub."""
    import datasets

    path = Path(text).expanduser()
    if path.is_file():
        return _read_file(path, text)
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        return datasets.load_from_disk(str(path))
    if path.is_dir():
        return datasets.load_dataset(str(path))
    local = path.is_absolute() or text.startswith((".", "~")) or path.suffix in _TABLES
    if local or "/" not in text or path.parent.is_dir():
        raise FileNotFoundError(
            f"No file or folder at dataset={text!r} (the id of a hub's data set is OWNER/NAME)."
        )
    return datasets.load_dataset(text)


def _read_file(path: Path, text: str) -> Dataset:
    """A table in memory. No copy is left in a cache: these may be somebody's data."""
    import datasets
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    readers: dict[str, Callable[[Path], Any]] = {
        ".csv": pyarrow.csv.read_csv,
        ".tsv": lambda file: pyarrow.csv.read_csv(
            file, parse_options=pyarrow.csv.ParseOptions(delimiter="\t")
        ),
        ".json": pyarrow.json.read_json,
        ".jsonl": pyarrow.json.read_json,
        ".parquet": pyarrow.parquet.read_table,
    }
    if path.suffix not in readers:
        raise ValueError(f"Expected dataset={text!r} to end in one of {', '.join(readers)}.")
    try:
        table = readers[path.suffix](path)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise ValueError(f"Expected dataset={text!r} to be a table: {error}") from error
    return datasets.Dataset(datasets.table.InMemoryTable(table))


def _training_split(splits: Mapping[str, Dataset]) -> str:
    if "train" in splits:
        return "train"
    if len(splits) == 1:
        return next(iter(splits))
    raise ValueError(f"Expected a split 'train' among {', '.join(splits)}.")


def _by_split(splits: Mapping[str, Dataset], held_out: str | None) -> tuple[Dataset, Any]:
    """The training split, and the held-out one; ``None`` if there is none and nobody named it."""
    train = _training_split(splits)
    if held_out is None:
        found = next((name for name in _HELD_OUT_SPLITS if name in splits), None)
        return splits[train], None if found is None else splits[found]
    if held_out not in splits or held_out == train:
        others = ", ".join(name for name in splits if name != train) or "none"
        raise ValueError(f"Expected held_out={held_out!r} to be one of the other splits: {others}.")
    return splits[train], splits[held_out]


def _drawn(rows: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """A share of the rows at random is held out, at least one."""
    if len(rows) < 2:
        raise ValueError(f"Expected data with at least 2 rows, got {len(rows)}.")
    order = np.random.default_rng(seed).permutation(len(rows))
    held = max(1, round(share * len(rows)))
    return rows.select(np.sort(order[held:])), rows.select(np.sort(order[:held]))
