"""Which client has which rows: the partitioners of flwr-datasets, by a short text.

Examples:
    >>> import datasets
    >>> rows = datasets.Dataset.from_dict({"x": range(6), "user": list("abcabc")})
    >>> [part.tolist() for part in client_rows(rows, "by:user", targets="x", seed=0)]
    [[0, 3], [1, 4], [2, 5]]
"""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset
    from flwr_datasets.partitioner import Partitioner

_ROW, _CLASS = "fl_epe_row", "fl_epe_class"
_HOW = (
    "'by:COLUMN' (a client for each value of a column), 'iid:CLIENTS', 'dirichlet:ALPHA' with "
    "num_clients, or a flwr_datasets.partitioner.Partitioner"
)


def check_partition(partition: str | Partitioner, num_clients: int | None) -> None:
    """Refuse a partition that cannot be meant; reads no data and imports nothing.

    Raises:
        ValueError: names the argument and what may be written.
    """
    if not isinstance(partition, str):
        if not hasattr(partition, "load_partition"):
            raise ValueError(f"Expected partition={partition!r} to be {_HOW}.")
        if num_clients is not None:
            raise ValueError(
                f"Expected no num_clients={num_clients} beside a Partitioner, which has its own."
            )
        return
    kind, colon, value = partition.partition(":")
    if kind not in _MAKERS or not colon or not value:
        raise ValueError(f"Expected partition={partition!r} to be {_HOW}.")
    if kind == "iid" and (not value.isdecimal() or int(value) < 1):
        raise ValueError(f"Expected partition={partition!r} to be 'iid:CLIENTS', e.g. 'iid:100'.")
    if kind == "dirichlet":
        _check_dirichlet(partition, value, num_clients)
        return
    if num_clients is not None:
        raise ValueError(f"Expected no num_clients={num_clients} beside partition={partition!r}.")


def _check_dirichlet(partition: str, value: str, num_clients: int | None) -> None:
    try:
        alpha = float(value)
    except ValueError:
        alpha = 0.0
    if not 0 < alpha < float("inf"):
        raise ValueError(f"Expected ALPHA > 0 in partition={partition!r}, e.g. 'dirichlet:0.3'.")
    if num_clients is None or num_clients < 1:
        raise ValueError(f"Expected num_clients={num_clients} >= 1 beside partition={partition!r}.")


def client_rows(
    dataset: Dataset,
    partition: str | Partitioner,
    *,
    targets: str,
    seed: int,
    num_clients: int | None = None,
) -> list[np.ndarray]:
    """The rows of each client, by the partitioners of flwr-datasets.

    Args:
        dataset: all rows.
        partition: see `from_datasets`.
        targets: the column of which "dirichlet" gives every client other shares.
        seed: of whatever is random in it.
        num_clients: how many there are, for "dirichlet".

    Returns:
        For each client the int64 numbers of its rows, ascending.

    Raises:
        ValueError: if the rows cannot be shared out like that.
    """
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")  # and progress bars
            return _rows(*_prepared(dataset, partition, targets, seed, num_clients))
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"The rows cannot be shared out by partition={partition!r}: {error}"
        ) from error


def _prepared(
    dataset: Dataset, partition: str | Partitioner, targets: str, seed: int, num_clients: int | None
) -> tuple[Any, Dataset]:
    """The partitioner, and its data with the number of each row."""
    numbered = dataset.select_columns(_needed(dataset, partition, targets))
    numbered = numbered.add_column(_ROW, np.arange(len(dataset)))
    if not isinstance(partition, str):
        return copy.deepcopy(partition), numbered  # its data can be set only once
    kind, _, value = partition.partition(":")
    if kind == "by" and (missing := sum(owner in (None, "") for owner in dataset[value])):
        raise ValueError(f"{missing} of {len(dataset)} rows have no value in the column {value!r}.")
    if kind == "dirichlet":  # takes classes 0, 1, 2, …
        _, classes = np.unique(np.asarray(dataset[targets]), return_inverse=True)
        numbered = numbered.add_column(_CLASS, classes)
    if kind != "by":  # "iid" cuts the rows in their order
        numbered = numbered.shuffle(seed=seed)
    return _MAKERS[kind](value, len(dataset), seed, num_clients), _quick(numbered)


def _needed(dataset: Dataset, partition: str | Partitioner, targets: str) -> list[str]:
    """Columns that a partitioner may read."""
    if not isinstance(partition, str):
        return list(dataset.column_names)
    if not partition.startswith("by:"):
        return [targets]
    column = partition.removeprefix("by:")
    if column not in dataset.column_names:
        known = ", ".join(dataset.column_names)
        raise ValueError(f"Expected partition={partition!r} to name a column: {known}.")
    if empty := sum(value is None or value != value for value in dataset[column][:]):
        raise ValueError(f"{empty} of {len(dataset)} rows have no value there: fill them in.")
    return [column]


def _quick(dataset: Dataset) -> Dataset:
    """A data set of which "by", "iid" and "dirichlet" select row numbers, a thousand times as fast.

    Selecting rows of a `datasets.Dataset` takes milliseconds, whatever their number.
    """
    from datasets import Dataset

    columns = dataset[:]
    numbers = np.asarray(columns[_ROW], np.int64)

    class Numbered(Dataset):  # type: ignore[misc]
        """Rows of which those that are selected are known by their numbers alone."""

        def __getitem__(self, name: Any) -> Any:
            return columns[name]

        def select(self, indices: Any, *_: Any, **__: Any) -> Any:
            return {_ROW: numbers[np.asarray(indices, np.int64)]}

        def shard(self, num_shards: int, index: int, *_: Any, **__: Any) -> Any:
            size, longer = divmod(len(numbers), num_shards)
            start = size * index + min(index, longer)
            return {_ROW: numbers[start : start + size + (index < longer)]}

    return Numbered(dataset.flatten_indices().data)


def _rows(partitioner: Any, dataset: Dataset) -> list[np.ndarray]:
    partitioner.dataset = dataset
    return [
        np.sort(np.asarray(partitioner.load_partition(i)[_ROW][:], np.int64))
        for i in range(partitioner.num_partitions)
    ]


def _by(column: str, rows: int, seed: int, num_clients: int | None) -> Any:
    from flwr_datasets.partitioner import NaturalIdPartitioner

    return NaturalIdPartitioner(partition_by=column)


def _iid(clients: str, rows: int, seed: int, num_clients: int | None) -> Any:
    from flwr_datasets.partitioner import IidPartitioner

    if rows < int(clients):
        raise ValueError(f"there are {rows} rows for {clients} clients.")
    return IidPartitioner(num_partitions=int(clients))


def _dirichlet(alpha: str, rows: int, seed: int, num_clients: int | None) -> Any:
    """Clients of equal size whose label shares are Dirichlet (Hsu et al. 2019).

    Not flwr-datasets' DirichletPartitioner, which shares each label out over the clients: with many
    clients and a small alpha it leaves some without rows, and gives up.
    """
    from flwr_datasets.partitioner import InnerDirichletPartitioner

    clients = num_clients or 1
    if rows < clients:
        raise ValueError(f"there are {rows} rows for num_clients={clients}.")
    sizes = rows // clients + (np.arange(clients) < rows % clients)
    return InnerDirichletPartitioner(
        partition_sizes=sizes, partition_by=_CLASS, alpha=float(alpha), seed=seed
    )


_MAKERS: dict[str, Callable[[str, int, int, int | None], Any]] = {
    "by": _by,
    "iid": _iid,
    "dirichlet": _dirichlet,
}
