"""Strategy matrices of correlated noise, which cancels a part of the noise of earlier rounds.

A matrix mechanism releases ``X + C⁻¹Z``: the rounds' sums with correlated noise, where Z is
fresh noise and C, the strategy, is lower triangular (Denisov et al. 2022). A client who takes part
in the rounds S has the sensitivity ``√(Σ_{s,t∈S} |(CᵀC)_st|)``, which is ``‖C·1_S‖`` if no entry of
CᵀC is negative. All strategies here have columns of norm at most 1, so one participation has at
most the privacy cost that it has with independent noise.

Noise is computed round by round from a few vectors of earlier rounds (`Banded`), or from a few
decaying sums of them (`BufferedToeplitz`).

Examples:
    >>> strategy = parse_strategy("banded:bands=2", rounds=3)
    >>> strategy.matrix().round(2)
    array([[0.89, 0.  , 0.  ],
           [0.45, 0.89, 0.  ],
           [0.  , 0.45, 1.  ]])
    >>> state = (np.zeros(1),) * strategy.buffers
    >>> for t in range(3):
    ...     noise = strategy.correlate(t, state, np.array([1.0]))
    ...     state = strategy.next_state(state, noise)
    >>> noise.round(3)  # the last row of C⁻¹·1
    array([0.75])
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy

from fl_epe.archive import read_npy
from fl_epe.checks import Floats, Floats32, raise_invalid
from fl_epe.mechanism.clipping import blocks

Buffers = tuple[Floats32, ...]
"""The vectors from which later noise is computed; they start at 0 and are never overwritten."""


@dataclasses.dataclass(frozen=True, eq=False)
class Banded:
    """A lower triangular matrix with b bands.

    Attributes:
        rows: the bands by row: ``rows[t, j]`` is ``C[t, t − j]``, shape ``(T, b)``.
    """

    rows: Floats

    @property
    def buffers(self) -> int:
        """The number of vectors in the state, which are the noise of the last b − 1 rounds."""
        return self.reach - 1

    @property
    def reach(self) -> int:
        """The number of rounds over which noise is correlated, including the round itself."""
        return int(self.rows.shape[1])

    def matrix(self) -> Floats:
        """C, shape ``(T, T)``."""
        rounds, bands = self.rows.shape
        matrix = np.zeros((rounds, rounds))
        for j in range(min(bands, rounds)):
            np.fill_diagonal(matrix[j:], self.rows[j:, j])
        return matrix

    def correlate(self, t: int, state: Buffers, fresh: Floats) -> Floats:
        """The noise of round t, from fresh noise, both of shape ``(dim,)``."""
        noise = fresh.copy()
        for weight, earlier_noise in zip(self.rows[t, 1:], state, strict=True):
            noise -= weight * earlier_noise
        noise /= self.rows[t, 0]
        return noise

    def next_state(self, state: Buffers, noise: Floats) -> Buffers:
        """The state after a round with this noise; it replaces the oldest noise."""
        return (noise.astype(np.float32), *state)[: self.buffers]


@dataclasses.dataclass(frozen=True, eq=False)
class BufferedToeplitz:
    """A buffered linear Toeplitz strategy (BLT; Dvijotham et al. 2024).

    The entry ``C[t, t − j]`` is ``scale`` for j = 0, and ``scale·Σ_i weights_i·decays_i^(j−1)``
    for j > 0.

    Attributes:
        rounds: the number of rounds T.
        weights: the weight of each buffer, shape ``(m,)``.
        decays: the decay of each buffer, in [0, 1), shape ``(m,)``.
        scale: the factor that gives the first column norm 1.
    """

    rounds: int
    weights: Floats
    decays: Floats
    scale: float = 1.0

    @property
    def buffers(self) -> int:
        """The number of vectors in the state, m, which are decaying sums of the earlier noise."""
        return len(self.weights)

    @property
    def reach(self) -> int:
        """The number of rounds over which noise is correlated: all T."""
        return self.rounds

    def column(self) -> Floats:
        """The first column of C, ``(T,)``; the other columns are parts of it."""
        powers = np.arange(self.rounds - 1)[:, None]
        below_diagonal = self.decays**powers @ self.weights
        return self.scale * np.concatenate([[1.0], below_diagonal])

    def matrix(self) -> Floats:
        """C, shape ``(T, T)``."""
        return np.asarray(
            scipy.linalg.toeplitz(self.column(), np.zeros(self.rounds))
        )

    def correlate(self, t: int, state: Buffers, fresh: Floats) -> Floats:
        """The noise of round t, from fresh noise, both of shape ``(dim,)``."""
        noise = fresh / self.scale
        for weight, decaying_sum in zip(self.weights, state, strict=True):
            noise -= weight * decaying_sum
        return noise

    def next_state(self, state: Buffers, noise: Floats) -> Buffers:
        """The state after a round with this noise: every sum decays, and the noise is added."""
        new_state = tuple(np.empty_like(decaying_sum) for decaying_sum in state)
        for block in blocks(len(noise)):
            for decay, old, new in zip(
                self.decays, state, new_state, strict=True
            ):
                new[block] = decay * old[block] + noise[block]
        return new_state


Strategy = Banded | BufferedToeplitz
"""A strategy matrix: banded, or a buffered linear Toeplitz one."""


def square_root_coefficients(rounds: int) -> Floats:
    """The first column of the square root of the prefix-sum matrix, ``binom(2j, j)/4^j``.

    Its maximum error is asymptotically the least of all Toeplitz strategies (Fichtenberger,
    Henzinger and Upadhyay 2023).
    """
    j = np.arange(1, rounds)
    return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])


def tree(rounds: int) -> Banded:
    """The binary tree mechanism with optimal estimates of prefix sums (Honaker 2015; DP-FTRL).

    H has a row for each node of the tree, with a 1 for each of the node's rounds, and is scaled
    to columns of norm 1. The noise of the optimal estimate is that of the lower triangular C with
    ``CᵀC = HᵀH``.
    """
    depth = max(rounds - 1, 0).bit_length()
    leaves = np.arange(rounds)
    product = np.zeros((rounds, rounds))
    for level in range(depth + 1):
        nodes = leaves >> level
        product += nodes[:, None] == nodes
    # A Cholesky factor L has LLᵀ = HᵀH; in reverse order of rounds, Lᵀ is lower triangular.
    reversed_product = product[::-1, ::-1] / (depth + 1)
    strategy = np.linalg.cholesky(reversed_product).T[::-1, ::-1]
    return _banded(np.ascontiguousarray(strategy))


def toeplitz(rounds: int, bands: int | None = None) -> Banded:
    """The square root of the prefix-sum matrix, truncated to ``bands`` bands if this is given."""
    coefficients = square_root_coefficients(rounds)[:bands]
    row = coefficients / np.linalg.norm(coefficients)
    return Banded(np.tile(row, (rounds, 1)))


def banded(rounds: int, bands: int) -> Banded:
    """The matrix of `toeplitz` with columns of norm 1, so that all rounds have sensitivity 1."""
    matrix = toeplitz(rounds, bands).matrix()
    return _banded(matrix / np.linalg.norm(matrix, axis=0))


def blt(rounds: int, buffers: int = 3) -> BufferedToeplitz:
    """The buffered strategy with the least error of the last prefix sum, for one participation.

    The error is ``‖C's first column‖·‖A·C⁻¹'s last row‖`` with the prefix-sum matrix A (Dvijotham
    et al. 2024). BFGS minimizes it from decays that are spread over the time scales of the run.
    """
    impulse = np.zeros(rounds)
    impulse[0] = 1.0

    def error(parameters: Floats) -> float:
        weights, decays = _blt_parameters(parameters)
        numerator, denominator = _transfer(weights, decays)
        column = scipy.signal.lfilter(numerator, denominator, impulse)
        prefix = scipy.signal.lfilter(
            denominator, np.convolve(numerator, [1.0, -1.0]), impulse
        )
        return float(np.log(column @ column) + np.log(prefix @ prefix))

    time_scales = np.geomspace(1.0, rounds, buffers + 2)[1:-1]
    log_weights = np.full(buffers, math.log(0.5 / buffers))
    logits = np.log(time_scales)  # of the decays
    start = np.append(log_weights, logits)
    best = scipy.optimize.minimize(
        error, start, method="BFGS", options={"gtol": 1e-7}
    )
    weights, decays = _blt_parameters(best.x)
    unscaled = BufferedToeplitz(rounds, weights, decays)
    scale = 1 / np.linalg.norm(unscaled.column())
    return dataclasses.replace(unscaled, scale=float(scale))


def _blt_parameters(parameters: Floats) -> tuple[Floats, Floats]:
    """The weights, > 0, and the decays, in (0, 1), from unconstrained parameters."""
    log_weights, logits = np.split(parameters, 2)
    return np.exp(log_weights), scipy.special.expit(logits)


def _transfer(weights: Floats, decays: Floats) -> tuple[Floats, Floats]:
    """Coefficients of C as a filter: ``1 + Σ weights·x/(1 − decays·x)``, x a delay of one round.

    Returns:
        The numerator and the denominator, in ascending powers of x.
    """
    denominator = np.asarray(np.poly(decays), np.float64)
    numerator = denominator.copy()
    for i, weight in enumerate(weights):
        numerator[1:] += weight * np.poly(np.delete(decays, i))
    return numerator, denominator


def read_strategy(path: Path, rounds: int) -> Banded:
    """A lower triangular matrix from a ``.npy`` file, scaled to columns of norm at most 1.

    Raises:
        ValueError: if it is not a lower triangular ``(T, T)`` matrix with a positive diagonal.
    """
    matrix = read_npy(path, "a strategy matrix")
    is_matrix = matrix.dtype.kind == "f" and matrix.shape == (rounds, rounds)
    if not (
        is_matrix
        and np.isfinite(matrix).all()
        and np.array_equal(matrix, np.tril(matrix))
        and np.all(np.diag(matrix) > 0)
    ):
        raise_invalid(
            "mechanism",
            str(path),
            "to hold a lower triangular matrix of finite floats with a positive diagonal and a row "
            f"for each of {rounds} rounds; it has {matrix.dtype} {matrix.shape}",
        )
    largest_norm = np.linalg.norm(matrix, axis=0).max()
    return _banded(np.asarray(matrix / largest_norm, np.float64))


def _banded(matrix: Floats) -> Banded:
    """The strategy with this matrix, without the last bands if they are 0."""
    diagonals = [np.diag(matrix, -j) for j in range(len(matrix))]
    while len(diagonals) > 1 and not diagonals[-1].any():
        diagonals.pop()
    rows = np.zeros((len(matrix), len(diagonals)))
    for j, diagonal in enumerate(diagonals):
        rows[j:, j] = diagonal
    return Banded(rows)


# The functions that build a strategy, by the beginning of its name; a number follows "=".
_BUILDERS: dict[str, Callable[..., Strategy]] = {
    "tree": tree,
    "banded:bands=": banded,
    "toeplitz": toeplitz,
    "toeplitz:bands=": toeplitz,
    "blt": blt,
    "blt:buffers=": blt,
}


@functools.lru_cache(maxsize=16)
def parse_strategy(mechanism: str, rounds: int) -> Strategy | None:
    """The strategy of a mechanism by name; ``None`` for independent noise.

    Args:
        mechanism: "independent", "tree", "banded:bands=8", "toeplitz" (all bands, or
            "toeplitz:bands=8"), "blt" (or "blt:buffers=4"), or the path of a ``.npy`` file.
        rounds: the number of rounds T.

    Raises:
        ValueError: if it is none of these.
    """
    if mechanism == "independent":
        return None
    if mechanism.endswith(".npy"):
        return read_strategy(Path(mechanism), rounds)
    name, equals, value = mechanism.partition("=")
    build = _BUILDERS.get(name + equals)
    if build is None or bool(equals) != value.isdecimal():
        names = ", ".join(_BUILDERS).replace("=", "=N")
        raise_invalid(
            "mechanism",
            mechanism,
            f"to be one of independent, {names}, or the path of a .npy file",
        )
    if not equals:
        return build(rounds)
    if not 1 <= int(value) <= rounds:
        option = name.partition(":")[2]
        raise_invalid(
            "mechanism",
            mechanism,
            f"to have {option} from 1 to rounds={rounds}",
        )
    return build(rounds, int(value))


def strategy_matrix(mechanism: str, rounds: int) -> Floats | None:
    """The matrix of `parse_strategy`, shape ``(T, T)``; ``None`` for independent noise."""
    strategy = parse_strategy(mechanism, rounds)
    if strategy is None:
        return None
    return strategy.matrix()
