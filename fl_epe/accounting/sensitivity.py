"""The sensitivity of a strategy C: how far one client can move the sums C·X before noise is added.

A client who takes part in the rounds S adds at most one clip norm to each, so that C·X changes by
at most ``√(Σ_{s,t∈S} |(CᵀC)_st|)`` clip norms. `sensitivity` is the largest such value over all S
that a schedule allows. With noise multiplier z a run is then ``sensitivity/z``-GDP, even if updates
depend on earlier releases (Denisov et al. 2022).

Examples:
    >>> independent = np.eye(6)
    >>> sensitivity(independent, ParticipationLaw(rounds=6, most=2))  # two independent rounds
    1.4142135623730951
"""

import math

import numpy as np

from fl_epe.accounting.composed_gaussians import gaussian_epsilon
from fl_epe.accounting.upper_bounds import (
    UpperBound,
    amplified_bounds,
    upper_bounds,
)
from fl_epe.checks import Floats
from fl_epe.schedules import ParticipationLaw


def strategy_bounds(
    law: ParticipationLaw,
    strategy: Floats | None,
    noise_multiplier: float,
    delta: float,
) -> tuple[UpperBound, ...]:
    """Every analytical ε that follows from a participation law and a strategy C of b bands.

    The first bound holds for an adversary who knows the client's rounds. If the rounds are secret,
    `amplified_bounds` may follow. A participation affects b consecutive rows only, so
    participations that are at least b rounds apart are like single rounds with independent noise.

    A noisy count that shares the budget (`AdaptiveClip`) has independent noise, and over R
    participations its sensitivity is √R times that of one round. The first bound uses the larger
    one of this and the sensitivity of C, also for a run without a count. Proofs:
    docs/notes/correlated-noise.md.

    Args:
        law: participation law of a client.
        strategy: C, lower triangular, shape ``(T, T)``; ``None`` for independent noise, whose
            bounds are `upper_bounds`.
        noise_multiplier: z ≥ 0.
        delta: in (0, 1).
    """
    if strategy is None:
        return upper_bounds(law, noise_multiplier, delta)
    sum_sensitivity = sensitivity(strategy, law)
    count_sensitivity = math.sqrt(law.limit)
    l2_sensitivity = max(sum_sensitivity, count_sensitivity)
    bound = UpperBound(
        epsilon=gaussian_epsilon(noise_multiplier / l2_sensitivity, delta),
        rounds_known=True,
        adjacency="zero-out",
        assumption="with correlated noise, a client's participations have a total sensitivity of "
        f"{l2_sensitivity:.3g} clip norms",
    )
    # Secret rounds change neither an ε of 0 nor an infinite one.
    if not 0 < bound.epsilon < math.inf:
        return (bound,)
    bands = bands_of(strategy)
    # In one round a count has the sensitivity of a column of norm 1.
    z = noise_multiplier / max(_largest_column(strategy), 1.0)
    overlap = _overlap(strategy, law, bands)
    return bound, *amplified_bounds(law, z, delta, bands, overlap)


def bands_of(strategy: Floats) -> int:
    """Number of bands of C, the diagonal included."""
    rows, columns = np.nonzero(strategy)
    return int((rows - columns).max()) + 1


def _overlap(strategy: Floats, law: ParticipationLaw, bands: int) -> float:
    """The largest ``|(CᵀC)_st|`` of rounds s and t in consecutive blocks."""
    largest = 0.0
    for _, end in law.blocks[:-1]:
        # Columns that are at least ``bands`` apart are orthogonal.
        before = strategy[:, max(end - bands + 1, 0) : end]
        after = strategy[:, end : end + bands - 1]
        products = np.abs(before.T @ after)
        largest = max(largest, float(products.max(initial=0.0)))
    return largest


def _largest_column(strategy: Floats) -> float:
    """The largest norm of a column."""
    return float(np.linalg.norm(strategy, axis=0).max())


def sensitivity(strategy: Floats, law: ParticipationLaw) -> float:
    """The largest ``√(Σ_{s,t∈S} |(CᵀC)_st|)`` over the rounds S of a client.

    The value is exact in these cases:

    - The client takes part once.
    - All distances of its rounds are exactly the separation (``law.regular``).
    - The columns of C of its rounds are orthogonal, as the separation is at least the number of
      bands.
    - C is a Toeplitz matrix whose entries do not increase. The first possible rounds are then the
      worst case.

    Otherwise it is an upper bound, ``√(max_S Σ_{s∈S} max_S' Σ_{t∈S'} |(CᵀC)_st|)``
    (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", Algorithms 3 and 4). If
    the law has blocks, S and S' have one round of each block. Else their rounds are at least the
    separation apart.

    Args:
        strategy: C, lower triangular, shape ``(T, T)``.
        law: participation law of a client.
    """
    rounds = len(strategy)
    separation = law.separation
    limit = min(law.limit, math.ceil(rounds / separation))
    if limit <= 1:
        return _largest_column(strategy)
    if not law.blocks and (law.regular or _is_decreasing_toeplitz(strategy)):
        # Later columns of a Toeplitz matrix have fewer entries, so the first rounds are the worst.
        first_rounds = range(min(separation, rounds)) if law.regular else [0]
        return max(
            _largest_of_consecutive(strategy[:, first::separation], limit)
            for first in first_rounds
        )
    products = np.abs(strategy.T @ strategy)
    if law.blocks:
        row_sums = sum(products[:, a:b].max(axis=1) for a, b in law.blocks)
        return math.sqrt(sum(float(row_sums[a:b].max()) for a, b in law.blocks))
    row_sums = _largest_sums(products, separation, limit)
    (largest_sum,) = _largest_sums(row_sums[None], separation, limit)
    return math.sqrt(float(largest_sum))


def _largest_of_consecutive(columns: Floats, limit: int) -> float:
    """The largest sensitivity over ``limit`` consecutive columns."""
    products = np.pad(np.abs(columns.T @ columns), ((1, 0), (1, 0)))
    # Entry (i, j) is the sum of the products of the first i columns and the first j.
    sums = products.cumsum(axis=0).cumsum(axis=1)
    size = min(limit, columns.shape[1])
    squares = (
        sums[size:, size:]
        - sums[size:, :-size]
        - sums[:-size, size:]
        + sums[:-size, :-size]
    )
    return math.sqrt(float(np.diag(squares).max()))


def _largest_sums(values: Floats, separation: int, limit: int) -> Floats:
    """For each row, the largest sum of at most ``limit`` entries.

    Their indices must differ by at least ``separation``. All values must be nonnegative.
    """
    count, rounds = values.shape
    # After i passes, column t has the largest sum of at most i entries from index t on. Columns
    # beyond the last round stay 0.
    best = np.zeros((count, rounds + separation))
    for _ in range(limit):
        # The entry at index t is the first one of the sum.
        best[:, :rounds] = values + best[:, separation:]
        # The first entry may also be a later one: the maximum over columns from t on.
        best = np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1].copy()
    return best[:, 0]


def _is_decreasing_toeplitz(strategy: Floats) -> bool:
    """Whether C is a Toeplitz matrix with nonnegative entries that do not increase."""
    column = strategy[:, 0]
    is_decreasing = column[-1] >= 0 and bool(np.all(np.diff(column) <= 0))
    return is_decreasing and np.array_equal(
        strategy[1:, 1:], strategy[:-1, :-1]
    )
