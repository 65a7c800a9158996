"""The correlation of rounds, and the whitened matched filter that allows for it.

The residuals of a run's rounds are correlated: real updates have similar directions, and momentum
and correlated noise carry over from one round to the next. For a random direction c that took no
part, the scores of all rounds are jointly N(0, G), where G holds the cosines of the residuals. With
the factor ``G = L·Lᵀ`` the values ``L⁻¹·s`` are independent and N(0, 1), and a canary's
contribution to the rounds becomes ``L⁻¹·f``. The best filter is their inner product,
``fᵀG⁻¹s/√(fᵀG⁻¹f)``. L grows by one row with each round (Gram-Schmidt), so that estimates
during a run and after it are equal.

Only a sketch of each round is stored: every coordinate gets a random sign, and groups of
coordinates are summed up. Inner products of M sums estimate G as M random directions would, and
exactly in M dimensions or fewer. The loss is known (Reed, Mallett and Brennan 1974) and small,
see `Precision`. Derivation and measurements: docs/notes/whitening.md.

Examples:
    >>> whitener = Whitener(dim=40)
    >>> first, second = np.eye(40)[:2]
    >>> rows = [whitener.add(mean) for mean in (first, 0.6 * first + 0.8 * second)]
    >>> rows[1].round(3)  # 0.8 along itself, 0.6 along the round before
    array([0.8, 0.6])
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl_epe.canaries import signs
from fl_epe.checks import Floats, Floats32, Vector, raise_invalid
from fl_epe.mechanism import Banded, norm

# Numbers in a sketch. It is a prime, so that no part collects one column of a layer's matrix.
SKETCH_PARTS = 16381

# Number of rounds over which a round's correlations are followed by default.
WINDOW = 800

# Parts of a sketch, or dimensions, for each round in the estimate of G.
_PARTS_A_ROUND = 20

# The same where more than `WINDOW` rounds are known to be correlated.
_LEAST_PARTS = 7

# A round's new part is at least this share of its residual. A smaller new part is mostly
# rounding in float32, or within two errors (1/√d each) of projecting the canaries out of the
# residual.
_LEAST_NEW = 0.01
_ERRORS = 2.0

_COLUMNS = 512  # columns of L⁻¹ that are computed at once
_SEED = 0  # seed of the signs
_CHANCE = 4.0  # scales of the largest eigenvalue's law that noise alone does not exceed

# The factor's row of a first round, or of a round without a residual.
_UNIT_ROW = np.ones(1)


def window_of(dim: int, rounds: int) -> int:
    """The number of rounds over which correlations can be estimated in ``dim`` dimensions."""
    parts = _PARTS_A_ROUND if rounds <= WINDOW else _LEAST_PARTS
    return max(1, min(rounds, min(dim, SKETCH_PARTS) // parts))


def reach_of(rounds: int, window: int) -> float:
    """The mean number of rounds, itself included, with which a round's correlation is estimated.

    A round is correlated with those up to ``window`` rounds before it, and with those after it.
    """
    back = min(rounds, window)
    return 1 + (back - 1) * (2 * rounds - back) / max(rounds, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Residual:
    """``mean − share · canaries``: the released vector of a round, without its canaries.

    Attributes:
        mean: the released vector, shape ``(dim,)``.
        canaries: the sum of the canaries' updates; ``None`` if no canary took part.
        share: the weight of that sum in the mean.
    """

    mean: Vector
    canaries: Vector | None = None
    share: float = 1.0

    def part(self, block: slice) -> Vector:
        """A block of the residual's entries."""
        if self.canaries is None:
            return self.mean[block]
        return self.mean[block] - np.float64(self.share) * self.canaries[block]

    def norm(self) -> float:
        """The residual's Euclidean norm."""
        return norm(self.mean, self.canaries, np.float64(self.share))


class Whitener:
    """The factor L of a run's rounds, one row after the other.

    Args:
        dim: dimension d of the rounds.
        window: number of rounds over which a round's correlations are followed, itself
            included; with 1, rounds are declared independent.
    """

    def __init__(self, dim: int, window: int = WINDOW) -> None:
        self.window = window_of(dim, window)
        self._dim = dim
        self._parts = min(dim, SKETCH_PARTS)
        # A round without a new part gets one, in an entry after its sketch.
        self._width = self._parts + self.window
        self._signs: NDArray[np.uint8] | None = None  # as bits
        # The sketches of the last rounds, orthonormal.
        self._recent = np.empty((0, self._width), np.float32)

    def add(self, residual: Residual | Vector | None) -> Floats:
        """Add a round's residual, shape ``(dim,)``; ``None`` if nothing was released.

        Returns:
            The round's row of L: its new part, its part along the previous round, and so on; at
            most ``window`` numbers.
        """
        if self.window == 1:
            return _UNIT_ROW
        if isinstance(residual, np.ndarray):
            residual = Residual(residual)
        length = 0.0 if residual is None else residual.norm()
        if residual is None or not length > 0:
            self._append(np.zeros(self._width, np.float32))
            return _UNIT_ROW
        direction: Vector = np.zeros(self._width, np.float32)
        direction[: self._parts] = self._sketch(residual) / length
        least_norm = max(_LEAST_NEW, _ERRORS / math.sqrt(self._dim)) * norm(
            direction
        )
        along = self._recent @ direction
        direction -= along @ self._recent
        new = norm(direction)
        if new < least_norm:
            # The round gets additional noise, so that no score has a larger variance than assumed.
            unused = ~self._recent[:, self._parts :].any(axis=0)
            place = self._parts + int(np.argmax(unused))
            direction[place] = math.sqrt(least_norm**2 - new**2)
            new = least_norm
        self._append(np.asarray(direction / new, np.float32))
        if len(along) == 0:
            # The norm is known exactly, without the error of the sketch.
            return _UNIT_ROW
        return np.concatenate([[new], along[::-1]])

    def _append(self, direction: Floats32) -> None:
        rows = np.concatenate([self._recent, direction[None]])
        self._recent = rows[1 - self.window :]

    def _sketch(self, residual: Residual) -> Floats32:
        """The sketch of a residual, shape ``(parts,)``; a short vector is its own sketch."""
        if self._dim == self._parts:
            return np.asarray(residual.part(slice(None)), np.float32)
        if self._signs is None:
            drawn = np.random.default_rng(_SEED).integers(
                0, 2, self._dim, np.int8
            )
            self._signs = np.packbits(drawn == 0)
        sums = np.zeros(self._parts)
        # A block has whole bytes of signs.
        for start in range(0, self._dim, 8 * self._parts):
            block = slice(start, min(start + 8 * self._parts, self._dim))
            signed = residual.part(block) * signs(self._signs, block)
            for first in range(0, len(signed), self._parts):
                row = signed[first : first + self._parts]
                sums[: len(row)] += row
        return np.asarray(sums, np.float32)

    def state(self) -> Floats32:
        """The last rounds, orthonormal, ``(< W, parts + W)``, from which `restore` continues."""
        return self._recent

    def restore(self, recent: Vector, forgotten: int = 0) -> None:
        """Continue from a `state`, without its last ``forgotten`` rounds.

        Raises:
            ValueError: if the state does not fit this whitener.
        """
        if recent.shape[1:] != (self._width,) or not np.all(
            np.isfinite(recent)
        ):
            wanted = f"to be (rounds, {self._width}), finite"
            raise_invalid("sketches.shape", recent.shape, wanted)
        rows = max(len(recent) - forgotten, 0)
        self._recent = recent[:rows].astype(np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class RoundCorrelation:
    """The correlation of the residuals of a run's rounds.

    Attributes:
        factor: ``(T, W)``, the rows of `Whitener.add`: the coefficients of each round's
            residual, of norm 1, for its new part, the previous round, …; ``None`` if rounds are
            declared independent.
        parts: number of parts of the sketches; 0 if the residuals themselves were used.
    """

    factor: Floats | None = None
    parts: int = 0

    @classmethod
    def of(cls, rows: Sequence[Floats], dim: int) -> RoundCorrelation:
        """The correlation with these rows of L."""
        window = max(map(len, rows), default=1)
        if window == 1:
            return cls()
        factor = np.zeros((len(rows), window))
        for t, row in enumerate(rows):
            factor[t, : len(row)] = row
        return cls(factor, SKETCH_PARTS if dim > SKETCH_PARTS else 0)

    @property
    def window(self) -> int:
        """The number of rounds over which correlations are followed."""
        if self.factor is None:
            return 1
        return int(self.factor.shape[1])

    @property
    def innovations(self) -> Floats:
        """The norm of the new part of each round, ``(T,)``; ``(1,)`` for independent rounds."""
        if self.factor is None:
            return np.ones(1)
        return self.factor[:, 0]

    def whiten(self, values: Floats) -> Floats:
        """``L⁻¹·values`` for ``values`` of all rounds, shape ``(T, …)``, or of the first rounds."""
        if self.factor is None:
            return values
        whitened = np.empty(values.shape)
        for t, value in enumerate(values):
            whitened[t] = whitened_row(self.factor[t], value, whitened[:t])
        return whitened

    def independent(self, dim: int) -> bool:
        """Whether the rounds are no more correlated than independent noise in ``dim`` dimensions.

        It is true if all eigenvalues of G are in the range of a Wishart matrix: within the
        edges of Marchenko and Pastur (1967) and a margin of four scales of Johnstone (2001,
        equation 1.3).
        """
        if self.factor is None or self.window == 1:
            return True
        rounds = len(self.factor)
        lower = Banded(self.factor).matrix()
        eigenvalues = np.linalg.eigvalsh(lower @ lower.T)
        root = math.sqrt(min(self.parts or dim, dim))
        reach = math.sqrt(min(reach_of(rounds, self.window), rounds))
        above = root + reach
        below = root - reach
        largest = above**2 + _CHANCE * above * (1 / root + 1 / reach) ** (1 / 3)
        smallest = below**2 - _CHANCE * below * abs(1 / root - 1 / reach) ** (
            1 / 3
        )
        return bool(
            eigenvalues[0] > smallest / root**2
            and eigenvalues[-1] < largest / root**2
        )

    def loss_by_pairs(self, signal: Floats, dim: int) -> float:
        """Relative difference of ``fᵀG⁻¹f``, of a client in all rounds, from ``Σ_t f_t²(G⁻¹)_tt``.

        It is 0 if rounds are independent. For a client in a random part p of the rounds it is p
        times as large.

        Args:
            signal: expected score f_t of each round, ``(T,)``.
            dim: dimension of the rounds.
        """
        if self.independent(dim):
            return 0.0
        separate = float(self.alone(signal).sum())
        together = float(np.sum(self.whiten(signal) ** 2))
        if separate > 0:
            return abs(together - separate) / separate
        return 0.0

    def alone(self, signal: Floats) -> Floats:
        """``fᵀG⁻¹f`` of a client that takes part in one round only, for each round, ``(T,)``."""
        if self.factor is None:
            return signal**2
        rounds = len(signal)
        energies = np.empty_like(signal)
        for first in range(0, rounds, _COLUMNS):
            block = slice(first, min(first + _COLUMNS, rounds))
            columns = self.whiten(np.eye(rounds, block.stop - first, -first))
            energies[block] = np.sum((columns * signal[block]) ** 2, axis=0)
        return energies


@dataclasses.dataclass(frozen=True)
class Precision:
    """The effect on filtered scores of estimating the cosines G of the rounds.

    Attributes:
        width: standard deviation of the scores of canaries that never took part, whose
            directions are in G like all others.
        own: standard deviation of the scores of canaries that took part, about their means.
            These canaries are projected out of G, so their directions are independent of it.
        unit: the mean of √(fᵀG⁻¹f) over that of the estimated G, which underestimates the
            noise.
        parts: number of values whose mean is an estimated cosine; infinite if cosines are
            known.
        sketched: whether the rounds' norms are estimated as well.
    """

    width: float = 1.0
    own: float = 1.0
    unit: float = 1.0
    parts: float = math.inf
    sketched: bool = False

    @classmethod
    def of(cls, reach: float, dim: int, parts: int) -> Precision:
        """The precision of a factor with this `reach_of`, from sketches of ``parts`` parts.

        With 0 parts the factor comes from the residuals themselves.
        """
        if reach <= 1:
            # Only the rounds' norms are measured, in all dimensions.
            return cls(unit=math.sqrt(max(dim - 3, 1) / dim))
        used = min(parts or dim, dim)
        # The mean of an inverse Wishart matrix, in the dimensions without the canaries' sum.
        unit = math.sqrt(max(used - reach - 2, 1) / used)
        own = _widening(used, reach)
        if used == dim:
            return cls(1.0, own, unit, used)
        # The number of random directions with the same information.
        samples = used * dim / (dim - used)
        return cls(_widening(samples, reach), own, unit, used, sketched=True)

    def unit_error(self, pairs: float, by_round: float, energy: float) -> float:
        """Relative standard error of the mean √(fᵀG⁻¹f), by the error of the cosines.

        A cosine of two rounds has the variance 1/parts. The sum of all ``fᵀG⁻¹f`` depends on it
        with the factor g gᵀ of each canary's whitened signals g.

        Args:
            pairs: `energy_of_pairs` of the whitened signals of all canaries.
            by_round: the sum over rounds of (Σ_i g_it²)², which is used if norms are estimated.
            energy: the sum of all squared whitened signals.
        """
        if energy <= 0:
            return 0.0
        square = pairs
        if self.sketched:
            square += by_round
        return math.sqrt(square / (2 * self.parts)) / energy


EXACT = Precision()  # for rounds that are declared independent


def _widening(samples: float, reach: float) -> float:
    """Standard deviation of a score that is filtered by a G from independent samples."""
    free = max(samples - reach, 1.0)
    return math.sqrt(samples / (free + 1) * (samples + 1) / (free + 2))


def energy_of_pairs(signals: Floats, before: Floats) -> float:
    """``2·Σ_s (Σ_i g_is·g_it)²`` over the rounds s before t.

    Args:
        signals: whitened signals of round t, ``(k,)``.
        before: whitened signals of the rounds before it, ``(s, k)``.
    """
    return 2 * float(np.sum((before @ signals) ** 2))


def whitened_row(row: Floats, value: Floats, before: Floats) -> Floats:
    """Row t of ``L⁻¹·values``, from row t of the values and the whitened rows before it."""
    back = min(len(row) - 1, len(before))
    if back == 0:
        return np.asarray(value / row[0])
    correlated = row[back:0:-1] @ before[len(before) - back :]
    return np.asarray((value - correlated) / row[0])
