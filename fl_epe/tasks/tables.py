"""Rows of a data set: their sources, their partition, and their columns as tensors for a model.

Integers become int64, real numbers float32, and images float32 of shape (channels, height,
width) in [0, 1]. All rows must have the same shape, so sequences must be padded first.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from fl_epe.checks import ArgumentError, did_you_mean, raise_invalid
from fl_epe.client_ids import blank_as_null, client_ids, id_order
from fl_epe.models import Inputs
from fl_epe.tasks.table_files import is_table_file, read_file

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from datasets import Dataset, DatasetDict
    from flwr_datasets.partitioner import Partitioner

Source: TypeAlias = (
    "str | os.PathLike[str] | Dataset | DatasetDict | Callable[[], Any]"
)
"""A data set, with or without splits, a function that returns one, or a path or hub id."""

Columns = str | Sequence[str] | Mapping[str, str]
"""One column; several that become one tensor's features; or columns by model argument."""

# Names of splits that are held out by default, in this order of preference.
_HELD_OUT_SPLITS = ("test", "validation", "valid", "dev")
_HELD_OUT_SHARE = 0.1
_TEXTS = ("string", "large_string")

# Largest value of an image by its type; images of other types have 16 bits.
_LARGEST_PIXELS = {"uint8": 255, "bool": 1, "float32": 1}
_LARGEST_PIXEL_16_BITS = 65535

# If a column has more than so many times the selected rows, they are gathered one by one.
_MANY_TIMES = 100


def open_source(
    source: Source, held_out: str | float | Dataset | None, seed: int, by: str
) -> tuple[Dataset, Dataset]:
    """The rows of clients, and the held-out rows.

    Args:
        source: the data set, as ``dataset`` of `from_datasets`.
        held_out: the held-out rows, as in `from_datasets`.
        seed: seed of a random choice of held-out rows.
        by: the column of clients' ids, or an empty text.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ConnectionError: if a hub cannot be reached.
        ValueError: for a split that does not exist, or data without rows.
    """
    rows = _opened(source, by)
    if isinstance(rows, Mapping):
        rows, held_out = _by_split(rows, held_out)
    if isinstance(held_out, str):
        expected = "to be a share or a data set: the data have no splits"
        raise_invalid("held_out", held_out, expected)
    if held_out is None:
        held_out = _HELD_OUT_SHARE
    if isinstance(held_out, float | int):
        if len(rows) < 2:
            raise ValueError(
                f"Expected data with at least 2 rows, got {len(rows)}."
            )
        order = np.random.default_rng(seed).permutation(len(rows))
        count = max(1, round(held_out * len(rows)))
        return rows.select(np.sort(order[count:])), rows.select(
            np.sort(order[:count])
        )
    if not len(rows) or not len(held_out):
        raise ValueError(
            f"Expected data with rows, got {len(rows)} and {len(held_out)} held out."
        )
    return rows, held_out


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
    splits = _opened(source, by)
    if not isinstance(splits, Mapping):
        splits = {"train": splits}
    return {name: _frame(split, by) for name, split in splits.items()}


def _frame(rows: Dataset, by: str) -> pandas.DataFrame:
    table: pandas.DataFrame = rows.to_pandas()
    if by in table.columns:
        try:
            table[by] = client_ids(_column(rows, by)).to_pandas()
        except ValueError as error:
            raise_invalid("by", by, f"to say whose a row is: {error}")
    return table


def _by_split(
    splits: Mapping[str, Dataset], held_out: str | float | Dataset | None
) -> tuple[Dataset, float | Dataset | None]:
    """The training split, and the held-out part; ``None`` if no split is held out."""
    if "train" not in splits and len(splits) != 1:
        raise ValueError(f"Expected a split 'train' among {', '.join(splits)}.")
    train = "train" if "train" in splits else next(iter(splits))
    choices = [name for name in splits if name != train]
    if held_out is None:
        held_out = next(
            (name for name in _HELD_OUT_SPLITS if name in choices), None
        )
    if not isinstance(held_out, str):
        return splits[train], held_out
    if held_out not in choices:
        names = ", ".join(choices) or "none"
        raise_invalid(
            "held_out", held_out, f"to be one of the other splits: {names}"
        )
    return splits[train], splits[held_out]


def _opened(source: Source, by: str) -> Any:
    if isinstance(source, str | os.PathLike):
        return _read_path(os.fspath(source), by)
    if callable(source) and not hasattr(source, "column_names"):
        source = source()
    if not hasattr(source, "column_names"):
        raise ValueError(
            f"Expected dataset to be a datasets.Dataset or DatasetDict, got {type(source).__name__}"
        )
    return source


def _read_path(text: str, by: str) -> Any:
    """The data set in a file, a folder or a hub. Files are not copied to a cache."""
    import datasets

    from fl_epe.data.sources import in_source, read_saved

    path = Path(text).expanduser()
    if path.is_file():
        return _of_files([path], by)
    if (path / "state.json").is_file() or (
        path / "dataset_dict.json"
    ).is_file():
        return read_saved(path)
    local = (
        path.is_absolute() or text.startswith((".", "~")) or is_table_file(path)
    )
    if not path.is_dir() and (local or "/" not in text or path.parent.is_dir()):
        similar = [file.name for file in path.parent.glob(f"*{path.suffix}")]
        raise FileNotFoundError(
            f"No file or folder at dataset={text!r} (the id of a hub's data set is OWNER/NAME)"
            f"{did_you_mean(path.name, similar)}."
        )
    place = str(path) if path.is_dir() else text
    builder = datasets.load_dataset_builder(place)
    files_of = builder.config.data_files or {}
    if path.is_dir():
        # The README.md of the folder may name files outside of it.
        for files in files_of.values():
            for file in files:
                in_source(path, Path(file))
        if builder.name in ("csv", "json"):
            return {
                str(split): _of_files([Path(file) for file in files], by)
                for split, files in files_of.items()
            }
    options: dict[str, Any] = {}
    if by and builder.name == "csv":
        options["converters"] = {by: str}
    return datasets.load_dataset(place, **options)


def _of_files(paths: Iterable[Path], by: str) -> Dataset:
    import datasets
    from pyarrow import concat_tables

    tables = [read_file(path, by) for path in paths]
    table = concat_tables(tables, promote_options="permissive")
    return datasets.Dataset(datasets.table.InMemoryTable(table))


def check_columns(dataset: Dataset, argument: str, columns: Columns) -> None:
    """Refuse columns that a data set does not have.

    Raises:
        ValueError: if a column is missing; the message names the argument, the column and the
            columns of the data set.
    """
    if isinstance(columns, str):
        columns = [columns]
    elif isinstance(columns, Mapping):
        columns = list(columns.values())
    for name in columns:
        if name not in dataset.column_names:
            names = ", ".join(dataset.column_names)
            raise_invalid(
                argument, name, f"to be a column of the data: {names}"
            )


def read_inputs(dataset: Dataset, columns: Columns) -> Inputs:
    """The inputs of every row.

    Raises:
        ValueError: if a column has text, rows of different lengths, or missing numbers.
    """
    if isinstance(columns, str):
        return read_column(dataset, columns, "inputs")
    if isinstance(columns, Mapping):
        return {
            name: read_column(dataset, column, "inputs")
            for name, column in columns.items()
        }
    features = []
    for column in columns:
        feature = read_column(dataset, column, "inputs").float()
        features.append(feature[:, None] if feature.dim() == 1 else feature)
    return torch.cat(features, -1)


def read_targets(
    dataset: Dataset, column: str, classes: Sequence[Any] | None
) -> torch.Tensor:
    """The targets of every row; with ``classes``, the index of the class of each row."""
    if classes is None:
        return read_column(dataset, column, "targets")
    values = _values(dataset, column)
    numbers = np.searchsorted(np.asarray(classes, object), values)
    return torch.from_numpy(numbers.astype(np.int64))


def classes_of(parts: Sequence[Dataset], column: str) -> list[Any] | None:
    """The classes of a column of text, sorted; ``None`` if the column has numbers."""
    if getattr(parts[0].features[column], "dtype", "") not in _TEXTS:
        return None
    classes = set[str]()
    for part in parts:
        labels = blank_as_null(_column(part, column))
        if labels.null_count:
            row = int(np.argmax(labels.is_null()))
            if part._indices is not None:
                row = part._indices.column(0)[row].as_py()
            expected = f"to have a label in every row: {labels.null_count:,} have none, such as row"
            raise_invalid("targets", column, f"{expected} {row + 1:,}")
        classes.update(labels.unique().to_pylist())
    return sorted(classes)


def read_column(dataset: Dataset, name: str, argument: str) -> torch.Tensor:
    """One column as a tensor whose first axis is the rows."""
    from datasets import Image

    feature = dataset.features[name]
    if isinstance(feature, Image):
        images = _alike(
            [np.asarray(image) for image in dataset[name]], name, argument
        )
        has_no_channels = images.ndim == 3
        if has_no_channels:
            images = images[..., None]
        largest = _LARGEST_PIXELS.get(str(images.dtype), _LARGEST_PIXEL_16_BITS)
        scaled = np.moveaxis(images, -1, 1).astype(np.float32) / np.float32(
            largest
        )
        return torch.from_numpy(np.ascontiguousarray(scaled))
    if getattr(feature, "dtype", "") in _TEXTS:
        values = _numbers_in_text(dataset, name, argument)
    else:
        values = _array(dataset, name) if len(dataset) else np.empty(0)
    values = _alike(values, name, argument)
    if values.dtype.kind in "iub":
        return torch.from_numpy(values.astype(np.int64))
    if values.dtype.kind != "f":
        raise_invalid(argument, name, f"to hold numbers, got {values.dtype}")
    is_finite = np.isfinite(values).reshape(len(values), -1).all(1)
    if not is_finite.all():
        count = int(np.count_nonzero(~is_finite))
        rows = f"{count} of {len(values)} rows have a missing or infinite value"
        expected = f"to be finite: {rows}. Fill them in, or leave them out"
        raise_invalid(argument, name, expected)
    return torch.from_numpy(values.astype(np.float32))


def _numbers_in_text(dataset: Dataset, name: str, argument: str) -> np.ndarray:
    """The numbers in a column of text, such as a column of clients' ids."""
    import pandas

    try:
        return np.asarray(pandas.to_numeric(_values(dataset, name)))
    except ValueError as error:
        remedy = "For text, use a tokenizer and Dataset.map"
        raise_invalid(
            argument, name, f"to hold numbers, got text ({error}). {remedy}"
        )


def _column(dataset: Dataset, name: str) -> pyarrow.ChunkedArray:
    """The values of a column in the order of the rows.

    A selection of rows is taken at once, unless it has few of many rows: `datasets` gathers
    rows one after another, which takes seconds for a million rows.
    """
    column = dataset.data.column(name)
    if dataset._indices is None:
        return column
    if len(dataset) < len(column) / _MANY_TIMES:
        return dataset.with_format("arrow", columns=[name])[:].column(name)
    return column.take(dataset._indices.column(0))


def _values(dataset: Dataset, name: str) -> pandas.Series[Any]:
    """The values of a column; missing values are NaN or None."""
    return _column(dataset, name).to_pandas()


def _array(dataset: Dataset, name: str) -> Any:
    """A column of numbers, or of lists of equal length, as one array; else the rows."""
    from pyarrow import ExtensionType, compute, types

    values = _column(dataset, name).combine_chunks()
    shape = [len(values)]
    while types.is_list(values.type) or types.is_fixed_size_list(values.type):
        lengths = compute.list_value_length(values).unique().to_pylist()
        if len(lengths) != 1 or lengths[0] is None:
            break
        shape += lengths
        values = values.flatten()
    if types.is_nested(values.type) or isinstance(values.type, ExtensionType):
        return dataset.with_format("numpy", columns=[name])[:][name]
    return values.to_numpy(zero_copy_only=False).reshape(shape)


def _alike(values: Any, name: str, argument: str) -> np.ndarray:
    """The values of all rows, which must have the same shape, as one array."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values
    shapes = sorted({np.shape(row) for row in values})
    if len(shapes) > 1:
        raise ArgumentError(
            f"Expected the rows of {{{argument}}} to have one shape, got {shapes[0]} and "
            f"{shapes[-1]}: pad or cut them, e.g. with datasets.Dataset.map.",
            **{argument: name},
        )
    if len(values):
        return np.stack([np.asarray(row) for row in values])
    return np.empty(0)


# The column of row numbers in the data of a partitioner.
_ROW = "fl_epe_row"


def client_rows(
    dataset: Dataset,
    partition: str | Partitioner,
    *,
    targets: str,
    seed: int,
    num_clients: int | None = None,
) -> list[np.ndarray]:
    """The rows of each client, as the partitioners of flwr-datasets choose them.

    Args:
        dataset: all rows.
        partition: the partition, see `from_datasets`.
        targets: the column whose class shares differ between clients with "dirichlet".
        seed: seed of the partition.
        num_clients: number of clients, for "dirichlet".

    Returns:
        For each client the indices of its rows, int64, ascending.

    Raises:
        ValueError: if the partition does not fit the rows.

    Examples:
        >>> import datasets
        >>> rows = datasets.Dataset.from_dict({"x": range(6), "user": list("abcabc")})
        >>> [part.tolist() for part in client_rows(rows, "by:user", targets="x", seed=0)]
        [[0, 3], [1, 4], [2, 5]]
    """
    try:
        if not isinstance(partition, str):
            # A partitioner's data can be set only once, so a copy gets them.
            return _of_partitioner(copy.deepcopy(partition), dataset)
        kind, _, value = partition.partition(":")
        if kind == "by":
            return _by_column(dataset, value)
        clients = int(value) if kind == "iid" else num_clients or 1
        if len(dataset) < clients:
            raise ValueError(
                f"there are {len(dataset)} rows for {clients} clients"
            )
        order = np.random.default_rng(seed).permutation(len(dataset))
        if kind == "iid":
            return [np.sort(part) for part in np.array_split(order, clients)]
        return _dirichlet(dataset, targets, order, clients, float(value), seed)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise_invalid("partition", partition, f"to fit the rows: {error}")


def owner_column(partition: str | Partitioner) -> str:
    """The column of clients' ids, or an empty text if the partition names none."""
    if isinstance(partition, str):
        if partition.startswith("by:"):
            return partition[3:]
        return ""
    # These are the partitioners of flwr-datasets by natural ids, also those that group ids.
    if "NaturalId" in type(partition).__name__:
        return str(getattr(partition, "_partition_by", ""))
    return ""


def _by_column(dataset: Dataset, column: str) -> list[np.ndarray]:
    if column not in dataset.column_names:
        raise ValueError(
            f"there is no column {column!r} among {', '.join(dataset.column_names)}"
        )
    ids = client_ids(_column(dataset, column))
    if ids.null_count:
        raise ValueError(
            f"{ids.null_count} of {len(ids)} rows have no value there: fill them in"
        )
    encoded = ids.combine_chunks().dictionary_encode()
    clients = id_order(encoded.dictionary.to_pylist())
    return _by_owner(clients[encoded.indices.to_numpy()])


def _by_owner(owners: np.ndarray) -> list[np.ndarray]:
    """The rows of each client, from the client of each row."""
    rows = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners))
    return np.split(rows, ends[:-1])


def _dirichlet(
    dataset: Dataset,
    targets: str,
    order: np.ndarray,
    clients: int,
    alpha: float,
    seed: int,
) -> list[np.ndarray]:
    """Clients of equal size whose class shares have a Dirichlet distribution (Hsu et al. 2019).

    Random numbers are drawn as by flwr-datasets' InnerDirichletPartitioner, which fails if all
    remaining shares of a client are 0 in floating point. Its DirichletPartitioner is no
    replacement: it splits each class over the clients, so that with many clients and a small
    alpha some have no rows.
    """
    values = _values(dataset, targets).to_numpy()
    # Classes are numbered 0, 1, 2, …
    _, classes = np.unique(values, return_inverse=True)
    rows_left_by_class = [
        list(order[classes[order] == i]) for i in range(classes.max() + 1)
    ]
    random = np.random.default_rng(seed)
    shares = random.dirichlet(np.full(len(rows_left_by_class), alpha), clients)
    free_places = [len(part) for part in np.array_split(order, clients)]
    owners = np.empty_like(order)
    open_clients = list(range(clients))
    while open_clients:
        client = random.choice(open_clients)
        if not free_places[client]:
            open_clients.remove(client)
            continue
        free_places[client] -= 1
        label = _next_class(shares[client], rows_left_by_class, alpha, random)
        while not rows_left_by_class[label]:
            shares[:, label] = 0
            total = shares.sum(axis=1, keepdims=True)
            shares /= np.where(total, total, 1)
            label = _next_class(
                shares[client], rows_left_by_class, alpha, random
            )
        owners[rows_left_by_class[label].pop()] = client
    return _by_owner(owners)


def _next_class(
    shares: np.ndarray,
    waiting: list[list[int]],
    alpha: float,
    random: np.random.Generator,
) -> int:
    """A class drawn with a client's ``shares``, which are drawn again if all of them are 0.

    In that case their sum was too small for floating point. Their proportions among the classes
    with ``waiting`` rows are independent of the sum, and have a Dirichlet distribution again.
    """
    if not shares.any():
        has_rows = [bool(rows) for rows in waiting]
        shares[has_rows] = random.dirichlet(np.full(sum(has_rows), alpha))
    return int(random.choice(len(shares), p=shares))


def _of_partitioner(
    partitioner: Partitioner, dataset: Dataset
) -> list[np.ndarray]:
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        # Progress bars are written to stderr.
        warnings.simplefilter("ignore")
        partitioner.dataset = dataset.add_column(_ROW, np.arange(len(dataset)))
        parts = map(
            partitioner.load_partition, range(partitioner.num_partitions)
        )
        return [np.sort(np.asarray(part[_ROW][:], np.int64)) for part in parts]
