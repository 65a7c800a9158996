"""Partitions the rows of a data set among clients: by a column, at random, or by Dirichlet shares.

Examples:
    >>> import datasets
    >>> rows = datasets.Dataset.from_dict({"x": range(6), "user": list("abcabc")})
    >>> [part.tolist() for part in client_rows(rows, "by:user", targets="x")]
    [[0, 3], [1, 4], [2, 5]]
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import warnings
from typing import TYPE_CHECKING

import numpy as np

from fl_epe.checks import raise_invalid
from fl_epe.client_ids import client_ids, id_order
from fl_epe.tasks.tensors import arrow_column

if TYPE_CHECKING:
    from datasets import Dataset
    from flwr_datasets.partitioner import Partitioner

_VALID_PARTITIONS = (
    "to be 'by:COLUMN' (a client for each value of a column), 'iid:CLIENTS', 'dirichlet:ALPHA' "
    "(ALPHA > 0) with num_clients, or a flwr_datasets.partitioner.Partitioner"
)
_SEED = 0  # of random partitions
# The column of row numbers that a partitioner's data get.
_ROW_NUMBER = "fl_epe_row"


def check_partition(
    partition: str | Partitioner, num_clients: int | None
) -> None:
    """Refuse an invalid partition, without reading data or importing packages.

    Raises:
        ValueError: if it is invalid; the message names the argument and its valid forms.
    """
    kind = ""
    is_valid = hasattr(partition, "load_partition")
    if isinstance(partition, str):
        kind, _, value = partition.partition(":")
        match kind:
            case "by":
                is_valid = value != ""
            case "iid":
                is_valid = value.isdecimal() and int(value) >= 1
            case "dirichlet":
                is_valid = _is_positive(value)
    if not is_valid:
        raise_invalid("partition", partition, _VALID_PARTITIONS)
    if kind == "dirichlet" and (num_clients is None or num_clients < 1):
        raise_invalid(
            "num_clients", num_clients, f">= 1 with partition={partition!r}"
        )
    if kind != "dirichlet" and num_clients is not None:
        raise_invalid("num_clients", num_clients, "only with 'dirichlet:ALPHA'")


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def owner_column(partition: str | Partitioner) -> str:
    """The column of clients' ids; "" if the partition does not depend on one."""
    if isinstance(partition, str):
        kind, _, column = partition.partition(":")
        return column if kind == "by" else ""
    # Two partitioners of flwr-datasets use clients' ids: NaturalIdPartitioner and
    # GroupedNaturalIdPartitioner. Others use the same attribute for the column of classes.
    if "NaturalId" in type(partition).__name__:
        return str(getattr(partition, "_partition_by", ""))
    return ""


def client_rows(
    dataset: Dataset,
    partition: str | Partitioner,
    *,
    targets: str,
    num_clients: int | None = None,
) -> list[np.ndarray]:
    """The rows of each client, as the partitioners of flwr-datasets choose them.

    Args:
        dataset: all rows.
        partition: the partition, see `from_datasets`, which `check_partition` accepts.
        targets: the column of the classes whose shares "dirichlet" draws for each client.
        num_clients: number of clients, for "dirichlet".

    Returns:
        For each client the indices of its rows, int64, ascending.

    Raises:
        ValueError: if the partition does not fit the rows.
    """
    try:
        if not isinstance(partition, str):
            return _by_partitioner(dataset, partition)
        kind, _, value = partition.partition(":")
        if kind == "by":
            return _by_column(dataset, value)
        clients = int(value) if kind == "iid" else num_clients or 1
        if len(dataset) < clients:
            raise ValueError(
                f"there are {len(dataset)} rows for {clients} clients"
            )
        order = np.random.default_rng(_SEED).permutation(len(dataset))
        if kind == "iid":
            return [np.sort(part) for part in np.array_split(order, clients)]
        labels = arrow_column(dataset, targets).to_pandas().to_numpy()
        return _dirichlet(labels, order, clients, float(value))
    # Partitioners raise any of these errors if they do not fit the rows.
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise_invalid("partition", partition, f"to fit the rows: {error}")


def _by_partitioner(
    dataset: Dataset, partitioner: Partitioner
) -> list[np.ndarray]:
    # A partitioner's data can be set only once, so a copy gets them.
    partitioner = copy.deepcopy(partitioner)
    numbered = dataset.add_column(_ROW_NUMBER, np.arange(len(dataset)))
    # Progress bars are written to stderr.
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        partitioner.dataset = numbered
        clients = range(partitioner.num_partitions)
        parts = [partitioner.load_partition(client) for client in clients]
        return [
            np.sort(np.asarray(part[_ROW_NUMBER][:], np.int64))
            for part in parts
        ]


def _by_column(dataset: Dataset, column: str) -> list[np.ndarray]:
    if column not in dataset.column_names:
        raise ValueError(
            f"there is no column {column!r} among {', '.join(dataset.column_names)}"
        )
    ids = client_ids(arrow_column(dataset, column))
    if ids.null_count:
        raise ValueError(
            f"{ids.null_count} of {len(ids)} rows have no value there: fill them in"
        )
    encoded = ids.combine_chunks().dictionary_encode()
    client_of_id = id_order(encoded.dictionary.to_pylist())
    return _by_owner(client_of_id[encoded.indices.to_numpy()])


def _by_owner(owners: np.ndarray) -> list[np.ndarray]:
    """The rows of each client, from the client of each row."""
    rows = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners))
    return np.split(rows, ends[:-1])


def _dirichlet(
    labels: np.ndarray, order: np.ndarray, clients: int, alpha: float
) -> list[np.ndarray]:
    """Clients of equal size whose class shares have a Dirichlet distribution (Hsu et al. 2019).

    Random numbers are drawn as by flwr-datasets' InnerDirichletPartitioner, which fails if all
    remaining shares of a client are 0 in floating point. Its DirichletPartitioner is no
    replacement: it splits each class over the clients, so that with many clients and a small
    alpha some have no rows.

    Args:
        labels: the label of each row.
        order: the rows in random order.
        clients: number of clients.
        alpha: concentration of the class shares.
    """
    # Classes are numbered 0, 1, 2, …
    _, classes = np.unique(labels, return_inverse=True)
    rows_left = [
        list(order[classes[order] == i]) for i in range(classes.max() + 1)
    ]
    random = np.random.default_rng(_SEED)
    shares = random.dirichlet(np.full(len(rows_left), alpha), clients)
    free_places = [len(part) for part in np.array_split(order, clients)]
    owners = np.empty_like(order)
    open_clients = list(range(clients))
    while open_clients:
        client = random.choice(open_clients)
        if not free_places[client]:
            open_clients.remove(client)
            continue
        free_places[client] -= 1
        label = _draw_class(shares[client], rows_left, alpha, random)
        while not rows_left[label]:
            # No client can get this class any more; the other shares are scaled up to 1.
            shares[:, label] = 0
            totals = shares.sum(axis=1, keepdims=True)
            shares /= np.where(totals, totals, 1)
            label = _draw_class(shares[client], rows_left, alpha, random)
        owners[rows_left[label].pop()] = client
    return _by_owner(owners)


def _draw_class(
    shares: np.ndarray,
    rows_left: list[list[int]],
    alpha: float,
    random: np.random.Generator,
) -> int:
    """A class drawn with a client's ``shares``; if all are 0, they are drawn again, in place.

    If all are 0, the shares of the classes that still have rows were too small for floating
    point. Divided by their sum they have a Dirichlet distribution again, whatever the sum was.
    """
    if not shares.any():
        has_rows = [bool(rows) for rows in rows_left]
        shares[has_rows] = random.dirichlet(np.full(sum(has_rows), alpha))
    return int(random.choice(len(shares), p=shares))
