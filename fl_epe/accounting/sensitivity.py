"""How far one client can move what a matrix mechanism hides: the sensitivity of a strategy C.

A client who takes part in the rounds S adds at most one clip norm to each, so that C·X moves by at
most ``√(Σ_{s,t∈S} |(CᵀC)_st|)`` clip norms: `sensitivity`, over all S that a schedule allows. With
noise multiplier z this is ``sensitivity/z``-GDP, also where rounds are chosen adaptively (Denisov
et al. 2022). All values of a schedule are those of Choquette-Choo et al. (2023, "(Amplified) banded
matrix factorization").

Examples:
    >>> identity = np.eye(6)
    >>> sensitivity(identity, most=2)  # √2: two independent rounds
    1.4142135623730951
    >>> one_after_the_other = np.tril(np.ones((6, 6)), 0) / 6**0.5
    >>> round(sensitivity(one_after_the_other, separation=3, most=2), 3)
    1.581
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import check_count

Floats = NDArray[np.float64]


def sensitivity(
    strategy: Floats, *, separation: int = 1, most: int | None = None, regular: bool = False
) -> float:
    """The largest ``√(Σ_{s,t∈S} |(CᵀC)_st|)`` over the rounds S of a client.

    Exact if ``regular``, or if the columns of rounds that far apart are orthogonal (at most
    ``separation`` bands), or if C is a Toeplitz matrix whose entries do not increase (then the
    first possible rounds are the worst). Otherwise an upper bound, by two dynamic programs.

    Args:
        strategy: C, lower triangular, shape ``(T, T)``.
        separation: least distance of two rounds of a client, at least 1.
        most: the most rounds of a client; by default as many as the separation allows.
        regular: all distances are ``separation``, as with cyclic schedules.
    """
    check_count("separation", separation)
    rounds = len(strategy)
    longest = -(-rounds // separation)
    times = longest if most is None else min(most, longest)
    if times <= 1:
        return float(np.linalg.norm(strategy, axis=0).max())
    if not regular and _is_decreasing_toeplitz(strategy):
        chosen = np.arange(times) * separation
        return float(np.linalg.norm(strategy[:, chosen].sum(axis=1)))
    products = np.abs(strategy.T @ strategy)
    if regular:
        starts = range(min(separation, rounds))
        return math.sqrt(max(_windows(products[s::separation, s::separation], times) for s in starts))
    rows = _best_sum(products, separation, times)
    return math.sqrt(float(_best_sum(rows[None], separation, times)[0]))


def _windows(products: Floats, size: int) -> float:
    """The largest sum of a square of so many neighbouring rows and columns."""
    sums = np.pad(products.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    size = min(size, len(products))
    ends, starts = slice(size, None), slice(None, len(sums) - size)
    square = sums[ends, ends] - sums[ends, starts] - sums[starts, ends] + sums[starts, starts]
    return float(np.diag(square).max())


def _best_sum(values: Floats, separation: int, most: int) -> Floats:
    """Of each row the largest sum of ``most`` entries that are ``separation`` apart, all ≥ 0."""
    count, rounds = values.shape
    best = np.zeros((count, rounds + separation))  # of what begins at each place
    for _ in range(most):
        best[:, :rounds] = values + best[:, separation:]
        best = np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(best[:, 0])


def _is_decreasing_toeplitz(strategy: Floats) -> bool:
    column = strategy[:, 0]
    return bool(
        column[-1] >= 0
        and np.all(np.diff(column) <= 0)
        and np.array_equal(strategy[1:, 1:], strategy[:-1, :-1])
    )
