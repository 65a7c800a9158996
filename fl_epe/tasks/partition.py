"""Which client has which rows."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import warnings
from typing import TYPE_CHECKING

import numpy as np

from fl_epe.checks import raise_invalid

if TYPE_CHECKING:
    from datasets import Dataset
    from flwr_datasets.partitioner import Partitioner


def dirichlet_partition(
    labels: np.ndarray, num_clients: int, *, alpha: float, minimum: int, random: np.random.Generator
) -> list[np.ndarray]:
    """Give every example to exactly one client, with different label shares and sizes.

    Each client draws its size (``minimum`` plus a share of the rest ~ Dirichlet(2)) and its label
    shares ~ Dirichlet(alpha), as Hsu et al. (2019) do, then takes examples from what is left.

    Args:
        labels: int of shape (examples,).
        num_clients: how many parts.
        alpha: concentration: if small, a client has few labels, if large, all have equal shares.
        minimum: fewest examples of a client.
        random: all the randomness.

    Returns:
        For each client the sorted indices of its examples.

    Raises:
        ValueError: if there are fewer than ``num_clients * minimum`` examples.
    """
    spare = len(labels) - num_clients * minimum
    if spare < 0:
        raise_invalid(
            "num_clients",
            num_clients,
            f"<= {len(labels) // minimum}, so that each has at least {minimum} of the "
            f"{len(labels)} examples",
        )
    sizes = minimum + random.multinomial(spare, random.dirichlet(np.full(num_clients, 2.0)))
    classes = np.unique(labels)
    stock = [random.permutation(np.flatnonzero(labels == label)) for label in classes]
    taken = np.zeros(len(classes), np.int64)
    parts = []
    for size in sizes:
        shares = random.dirichlet(np.full(len(classes), alpha))
        left = np.array([len(indices) for indices in stock]) - taken
        counts = _take(int(size), shares, left, random)
        rows = zip(stock, taken, counts, strict=True)
        parts.append(np.sort(np.concatenate([s[start : start + n] for s, start, n in rows])))
        taken += counts
    # The last ones took what was left over: spread them over the ids.
    return [parts[i] for i in random.permutation(num_clients)]


def stratified_split(
    labels: np.ndarray, share: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of a training and a held-out part with ``share`` of every label in the second."""
    held_out = [
        random.permutation(np.flatnonzero(labels == label))[
            : round(share * np.sum(labels == label))
        ]
        for label in np.unique(labels)
    ]
    second = np.sort(np.concatenate(held_out))
    return np.setdiff1d(np.arange(len(labels)), second), second


def _take(
    size: int, shares: np.ndarray, left: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """How many examples of each label: multinomial draws, redrawn where the stock runs out."""
    counts = np.zeros(len(left), np.int64)
    while (missing := size - counts.sum()) > 0:
        weights = np.where(counts < left, shares + 1e-12, 0)
        counts += random.multinomial(missing, weights / weights.sum())
        counts = np.minimum(counts, left)
    return counts


_ROW, _CLASS = "fl_epe_row", "fl_epe_class"
_HOW = (
    "to be 'by:COLUMN' (a client for each value of a column), 'iid:CLIENTS', 'dirichlet:ALPHA' "
    "(ALPHA > 0) with num_clients, or a flwr_datasets.partitioner.Partitioner"
)


def check_partition(partition: str | Partitioner, num_clients: int | None) -> None:
    """Refuse a partition that cannot be meant; reads no data and imports nothing.

    Raises:
        ValueError: names the argument and what may be written.
    """
    kind, _, value = partition.partition(":") if isinstance(partition, str) else ("", "", "")
    meant = {
        "by": value != "",
        "iid": value.isdecimal() and int(value) >= 1,
        "dirichlet": _is_positive(value),
    }
    if not meant.get(kind, hasattr(partition, "load_partition")):
        raise_invalid("partition", partition, _HOW)
    if kind == "dirichlet" and (num_clients is None or num_clients < 1):
        raise_invalid("num_clients", num_clients, f">= 1 beside partition={partition!r}")
    if kind != "dirichlet" and num_clients is not None:
        raise_invalid("num_clients", num_clients, "only beside 'dirichlet:ALPHA'")


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


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
        partition: see `from_datasets`.
        targets: the column of which "dirichlet" gives every client other shares.
        seed: of whatever is random in it.
        num_clients: how many there are, for "dirichlet".

    Returns:
        For each client the int64 numbers of its rows, ascending.

    Raises:
        ValueError: if the rows cannot be partitioned like that.

    Examples:
        >>> import datasets
        >>> rows = datasets.Dataset.from_dict({"x": range(6), "user": list("abcabc")})
        >>> [part.tolist() for part in client_rows(rows, "by:user", targets="x", seed=0)]
        [[0, 3], [1, 4], [2, 5]]
    """
    try:
        if not isinstance(partition, str):  # a copy, as its data can be set only once
            return _of_partitioner(copy.deepcopy(partition), dataset)
        kind, _, value = partition.partition(":")
        if kind == "by":
            return _by_column(dataset, value)
        clients = int(value) if kind == "iid" else num_clients or 1
        if len(dataset) < clients:
            raise ValueError(f"there are {len(dataset)} rows for {clients} clients")
        order = np.random.default_rng(seed).permutation(len(dataset))
        if kind == "iid":
            return [np.sort(part) for part in np.array_split(order, clients)]
        return _dirichlet(dataset, targets, order, clients, float(value), seed)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise_invalid("partition", partition, f"to fit the rows: {error}")


def _by_column(dataset: Dataset, column: str) -> list[np.ndarray]:
    if column not in dataset.column_names:
        raise ValueError(f"there is no column {column!r} among {', '.join(dataset.column_names)}")
    values = dataset[column][:]
    if empty := sum(value in (None, "") or value != value for value in values):
        raise ValueError(f"{empty} of {len(dataset)} rows have no value there: fill them in")
    owners = np.unique(np.asarray(values), return_inverse=True)[1]
    return np.split(np.argsort(owners, kind="stable"), np.cumsum(np.bincount(owners))[:-1])


def _dirichlet(
    dataset: Dataset, targets: str, order: np.ndarray, clients: int, alpha: float, seed: int
) -> list[np.ndarray]:
    """Clients of equal size whose label shares are Dirichlet (Hsu et al. 2019).

    Not flwr-datasets' DirichletPartitioner, which splits each label over the clients: with many
    clients and a small alpha it leaves some without rows, and gives up.
    """
    from datasets import Dataset
    from flwr_datasets.partitioner import InnerDirichletPartitioner

    classes = np.unique(np.asarray(dataset[targets]), return_inverse=True)[1]  # 0, 1, 2, …
    shuffled = Dataset.from_dict({_CLASS: classes[order]})
    sizes = len(order) // clients + (np.arange(clients) < len(order) % clients)
    partitioner = InnerDirichletPartitioner(
        partition_sizes=sizes, partition_by=_CLASS, alpha=alpha, seed=seed
    )
    return [np.sort(order[part]) for part in _of_partitioner(partitioner, shuffled)]


def _of_partitioner(partitioner: Partitioner, dataset: Dataset) -> list[np.ndarray]:
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")  # and progress bars
        partitioner.dataset = dataset.add_column(_ROW, np.arange(len(dataset)))
        parts = map(partitioner.load_partition, range(partitioner.num_partitions))
        return [np.sort(np.asarray(part[_ROW][:], np.int64)) for part in parts]
