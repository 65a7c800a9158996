"""How far one client can move what a matrix mechanism hides: the sensitivity of a strategy C.

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
from collections.abc import Iterable

import numpy as np

from fl_epe.accounting.composed_gaussians import gaussian_epsilon
from fl_epe.accounting.upper_bounds import UpperBound, amplified_bounds, upper_bounds
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
    found = UpperBound(
        gaussian_epsilon(noise_multiplier / size, delta),
        True,
        "zero-out",
        f"the rounds of a client add up to {size:.3g} times one round's, by the noise's "
        "correlation",
    )
    if not 0 < found.epsilon < math.inf:
        return (found,)
    bands = bands_of(strategy)
    z = noise_multiplier / max(float(np.linalg.norm(strategy, axis=0).max()), 1.0)
    return found, *amplified_bounds(
        law, z, delta, bands, _overlap(strategy, law, bands)
    )


def bands_of(strategy: Floats) -> int:
    """Rounds over which a strategy correlates noise, itself included."""
    return int(np.subtract(*np.nonzero(strategy)).max()) + 1


def _overlap(strategy: Floats, law: ParticipationLaw, bands: int) -> float:
    """The largest ``|(CᵀC)_st|`` of rounds in blocks that follow each other."""
    products = [
        np.abs(
            strategy[:, max(b - bands + 1, 0) : b].T @ strategy[:, b : b + bands - 1]
        )
        for _, b in law.blocks[:-1]
    ]
    return max((float(each.max(initial=0.0)) for each in products), default=0.0)


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
    apart = law.separation
    most = min(law.limit, -(-rounds // apart))
    if most <= 1:
        return float(np.linalg.norm(strategy, axis=0).max())
    if not law.blocks and (law.regular or _is_decreasing_toeplitz(strategy)):
        starts = range(min(apart, rounds)) if law.regular else (0,)
        return max(_of_rounds(strategy, range(s, rounds, apart), most) for s in starts)
    products = np.abs(strategy.T @ strategy)
    if law.blocks:
        by_row = sum(products[:, a:b].max(axis=1) for a, b in law.blocks)
        return math.sqrt(sum(float(by_row[a:b].max()) for a, b in law.blocks))
    best = _best_sum(products, apart, most)
    return math.sqrt(float(_best_sum(best[None], apart, most)[0]))


def _of_rounds(strategy: Floats, rounds: Iterable[int], most: int) -> float:
    """The largest value of ``most`` rounds that follow each other in a list."""
    columns = strategy[:, list(rounds)]
    products = np.pad(np.abs(columns.T @ columns), ((1, 0), (1, 0)))
    sums = products.cumsum(axis=0).cumsum(axis=1)
    size = min(most, columns.shape[1])
    after = sums[size:, size:]
    before = sums[:-size, :-size]
    square = after - sums[size:, :-size] - sums[:-size, size:] + before
    return math.sqrt(float(np.diag(square).max()))


def _best_sum(values: Floats, separation: int, most: int) -> Floats:
    """Of each row the largest sum of ``most`` entries that are ``separation`` apart, all ≥ 0."""
    count, rounds = values.shape
    best = np.zeros((count, rounds + separation))  # of what begins at each place
    for _ in range(most):
        best[:, :rounds] = values + best[:, separation:]
        best = np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1].copy()
    return best[:, 0]


def _is_decreasing_toeplitz(strategy: Floats) -> bool:
    column = strategy[:, 0]
    falls = column[-1] >= 0 and bool(np.all(np.diff(column) <= 0))
    return falls and np.array_equal(strategy[1:, 1:], strategy[:-1, :-1])
