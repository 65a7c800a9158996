"""The sensitivity of a strategy C: how far one client can move the sum that the noise hides.

A client who takes part in the rounds S adds at most one clip norm to each, so that C·X moves by at
most ``√(Σ_{s,t∈S} |(CᵀC)_st|)`` clip norms. `sensitivity` is the largest such value over all S that
a schedule allows. With noise multiplier z a run is then ``sensitivity/z``-GDP, also where updates
follow from what was released before (Denisov et al. 2022).

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

    The first is for an adversary who knows the client's rounds; where it does not, sampling may add
    `amplified_bounds`. Columns of C that are b rounds apart share no row, so that b rows that begin
    with a client's round act as one round of independent noise. Where a noisy count shares the
    budget (`AdaptiveClip`), its noise is independent, so that the first bound is for the larger of
    both sensitivities. Proofs: docs/notes/correlated-noise.md.

    Args:
        law: how a client takes part.
        strategy: C, lower triangular, shape ``(T, T)``; ``None`` for independent noise, whose
            bounds are `upper_bounds`.
        noise_multiplier: z ≥ 0.
        delta: in (0, 1).
    """
    if strategy is None:
        return upper_bounds(law, noise_multiplier, delta)
    size = max(sensitivity(strategy, law), math.sqrt(law.limit))
    bound = UpperBound(
        gaussian_epsilon(noise_multiplier / size, delta),
        True,
        "zero-out",
        f"the rounds of a client add up to {size:.3g} times one round's, by the noise's "
        "correlation",
    )
    if not 0 < bound.epsilon < math.inf:
        return (bound,)
    bands = bands_of(strategy)
    z = noise_multiplier / max(_largest_column(strategy), 1.0)
    overlap = _overlap(strategy, law, bands)
    return bound, *amplified_bounds(law, z, delta, bands, overlap)


def bands_of(strategy: Floats) -> int:
    """Rounds over which a strategy correlates noise, itself included."""
    return int(np.subtract(*np.nonzero(strategy)).max()) + 1


def _overlap(strategy: Floats, law: ParticipationLaw, bands: int) -> float:
    """The largest ``|(CᵀC)_st|`` of rounds in blocks that follow each other."""
    largest = 0.0
    for _, end in law.blocks[:-1]:
        before = strategy[:, max(end - bands + 1, 0) : end]
        after = strategy[:, end : end + bands - 1]
        products = np.abs(before.T @ after)
        largest = max(largest, float(products.max(initial=0.0)))
    return largest


def _largest_column(strategy: Floats) -> float:
    return float(np.linalg.norm(strategy, axis=0).max())


def sensitivity(strategy: Floats, law: ParticipationLaw) -> float:
    """The largest ``√(Σ_{s,t∈S} |(CᵀC)_st|)`` over the rounds S of a client.

    Exact for one participation; for regular distances; where columns of rounds that a client may
    have are orthogonal (as many bands as rounds between them); and for a Toeplitz matrix whose
    entries do not increase, where the first possible rounds are the worst. Otherwise an upper
    bound: the best S of each row of ``|CᵀC|``, and then the best S of these (Choquette-Choo et al.
    2023, "(Amplified) Banded Matrix Factorization", Algorithms 3 and 4).

    Args:
        strategy: C, lower triangular, shape ``(T, T)``.
        law: which rounds a client may have.
    """
    rounds = len(strategy)
    distance = law.separation
    limit = min(law.limit, -(-rounds // distance))
    if limit <= 1:
        return _largest_column(strategy)
    if not law.blocks and (law.regular or _is_decreasing_toeplitz(strategy)):
        starts = range(min(distance, rounds)) if law.regular else range(1)
        regular = [np.arange(start, rounds, distance) for start in starts]
        return max(
            _of_rounds(strategy[:, possible], limit) for possible in regular
        )
    products = np.abs(strategy.T @ strategy)
    if law.blocks:
        by_row = sum(products[:, a:b].max(axis=1) for a, b in law.blocks)
        return math.sqrt(sum(float(by_row[a:b].max()) for a, b in law.blocks))
    best = _best_sum(products, distance, limit)
    return math.sqrt(float(_best_sum(best[None], distance, limit)[0]))


def _of_rounds(columns: Floats, limit: int) -> float:
    """The largest value of ``limit`` rounds that follow each other, by the rounds' columns."""
    products = np.pad(np.abs(columns.T @ columns), ((1, 0), (1, 0)))
    sums = products.cumsum(axis=0).cumsum(axis=1)
    size = min(limit, columns.shape[1])
    after = sums[size:, size:]
    before = sums[:-size, :-size]
    square = after - sums[size:, :-size] - sums[:-size, size:] + before
    return math.sqrt(float(np.diag(square).max()))


def _best_sum(values: Floats, separation: int, limit: int) -> Floats:
    """Of each row the largest sum of ``limit`` entries that are ``separation`` apart, all ≥ 0."""
    count, rounds = values.shape
    best = np.zeros(
        (count, rounds + separation)
    )  # of the entries from each place on
    for _ in range(limit):
        best[:, :rounds] = values + best[:, separation:]
        best = np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1].copy()
    return best[:, 0]


def _is_decreasing_toeplitz(strategy: Floats) -> bool:
    column = strategy[:, 0]
    falls = column[-1] >= 0 and bool(np.all(np.diff(column) <= 0))
    return falls and np.array_equal(strategy[1:, 1:], strategy[:-1, :-1])
