"""Splits one labelled data set into clients that differ from one another."""

from __future__ import annotations

import numpy as np

from fl_epe.checks import ArgumentError


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
        raise ValueError(
            f"Expected num_clients={num_clients} <= {len(labels) // minimum}, "
            f"so that each has at least {minimum} of the {len(labels)} examples."
        )
    sizes = minimum + random.multinomial(spare, random.dirichlet(np.full(num_clients, 2.0)))
    parts = _parts(labels, sizes, alpha, random)
    # The last ones took what was left over: spread them over the ids.
    return [parts[i] for i in random.permutation(num_clients)]


def _parts(
    labels: np.ndarray, sizes: np.ndarray, alpha: float, random: np.random.Generator
) -> list[np.ndarray]:
    """Sorted indices for each client in turn, who takes from what those before it left."""
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
    return parts


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
        available = counts < left
        weights = np.where(available, shares + 1e-12, 0)
        counts += random.multinomial(missing, weights / weights.sum())
        counts = np.minimum(counts, left)
    return counts


def check_split(num_clients: int, alpha: float, data_seed: int) -> None:
    """Raise ValueError for options that no data set could be split with."""
    if num_clients < 1:
        raise ArgumentError("Expected {num_clients} >= 1.", num_clients=num_clients)
    if not 0 < alpha < float("inf"):
        raise ArgumentError("Expected {alpha} > 0 and finite.", alpha=alpha)
    if data_seed < 0:
        raise ArgumentError("Expected {data_seed} >= 0.", data_seed=data_seed)
