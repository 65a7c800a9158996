"""The correlation of rounds, and the whitened matched filter that allows for it.

The residuals of a run's rounds are correlated: real updates have similar directions, and momentum
and correlated noise carry over from one round to the next. The scores s of a canary that took no
part are jointly N(0, G), where G holds the cosines of the residuals of any two rounds. With the
factor ``G = L·Lᵀ`` the whitened scores ``L⁻¹·s`` are independent and N(0, 1). The expected scores
f of a canary in the rounds (its signals) become ``L⁻¹·f``. The best filter is the inner product of
the two, ``fᵀG⁻¹s/√(fᵀG⁻¹f)``. L grows by one row with each round (Gram-Schmidt), so that
estimates during a run and after it are equal.

Only a sketch of each residual is stored: every coordinate gets a random sign, and groups of
coordinates are summed to M numbers, the parts of the sketch. Cosines of sketches estimate those
of the residuals as if from M random directions; in M dimensions or fewer they are exact. The loss
of information is known (Reed, Mallett and Brennan 1974) and small, see `Precision`. Derivation
and measurements: docs/notes/whitening.md.

Examples:
    >>> whitener = Whitener(dim=40)
    >>> first, second = np.eye(40)[:2]
    >>> rows = [whitener.add(Residual(mean)) for mean in (first, 0.6 * first + 0.8 * second)]
    >>> rows[1].round(3)  # a new part of 0.8, and 0.6 along the round before
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

# Parts of a sketch. It is a prime, so that no part is the sum of one column of a layer's matrix.
SKETCH_PARTS = 16381

# Number of rounds over which a round's correlations are followed by default.
WINDOW = 800

# Least number of parts of a sketch, or of dimensions, for each round of the window: up to `WINDOW`
# rounds, and beyond, as more are followed only if their noise is known to be correlated.
_MIN_PARTS_PER_ROUND = 20
_MIN_PARTS_PER_CORRELATED_ROUND = 7

# A round's new part is at least this share of its residual. A smaller new part is mostly
# rounding in float32, or within two errors (1/√d each) of projecting the canaries out of the
# residual.
_MIN_NEW_PART = 0.01
_MIN_NEW_ERRORS = 2.0

_COLUMNS = 512  # columns of L⁻¹ that are computed at once
_SEED = 0  # seed of the signs

# Scales of the largest eigenvalue's law by which independent noise stays within the edges.
_EDGE_MARGIN = 4.0

# The factor's row of a first round, or of a round without a residual.
_UNIT_ROW = np.ones(1)


def window_of(dim: int, rounds: int) -> int:
    """The largest window, up to ``rounds``, that can be estimated in ``dim`` dimensions."""
    parts = _MIN_PARTS_PER_ROUND
    if rounds > WINDOW:
        parts = _MIN_PARTS_PER_CORRELATED_ROUND
    return max(1, min(rounds, min(dim, SKETCH_PARTS) // parts))


def reach_of(rounds: int, window: int) -> float:
    """The mean number of rounds whose correlation with a round is estimated, itself included.

    These are the ``window - 1`` rounds before the round, and as many after it.
    """
    back = min(rounds, window)
    return 1 + (back - 1) * (2 * rounds - back) / max(rounds, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Residual:
    """``mean − weight · canaries``: the released vector of a round, without its canaries.

    Attributes:
        mean: the released vector, shape ``(dim,)``.
        canaries: the sum of the canaries' updates; ``None`` if none is projected out.
        weight: the weight of that sum in the mean.
    """

    mean: Vector
    canaries: Vector | None = None
    weight: float = 1.0

    def part(self, block: slice) -> Vector:
        """A block of the residual's entries."""
        if self.canaries is None:
            return self.mean[block]
        return self.mean[block] - np.float64(self.weight) * self.canaries[block]

    def norm(self) -> float:
        """The residual's Euclidean norm."""
        return norm(self.mean, self.canaries, np.float64(self.weight))


class Whitener:
    """The factor L of a run's rounds, one row after the other.

    Args:
        dim: dimension d of the rounds.
        window: number of rounds over which a round's correlations are followed, itself
            included; with 1, rounds are declared independent. It is reduced in few dimensions,
            see `window_of`.
    """

    def __init__(self, dim: int, window: int = WINDOW) -> None:
        self.window = window_of(dim, window)
        self._dim = dim
        self._parts = min(dim, SKETCH_PARTS)
        # A round with too small a new part gets one in an entry after its sketch.
        self._width = self._parts + self.window
        self._signs: NDArray[np.uint8] | None = None  # as bits
        # The new parts of the last rounds' sketches, orthonormal.
        self._recent = np.empty((0, self._width), np.float32)

    def add(self, residual: Residual | None) -> Floats:
        """Add a round's residual; ``None`` if nothing was released.

        Returns:
            The round's row of L: its new part, its part along the previous round, and so on; at
            most ``window`` numbers.
        """
        if self.window == 1:
            return _UNIT_ROW
        direction: Vector = np.zeros(self._width, np.float32)
        length = 0.0 if residual is None else residual.norm()
        if residual is None or not length > 0:
            self._append(direction)
            return _UNIT_ROW
        direction[: self._parts] = self._sketch(residual) / length
        min_share = max(_MIN_NEW_PART, _MIN_NEW_ERRORS / math.sqrt(self._dim))
        min_norm = min_share * norm(direction)
        along = self._recent @ direction
        direction -= along @ self._recent
        new_norm = norm(direction)
        if new_norm < min_norm:
            # The round gets additional noise, so that no score has a larger variance than assumed.
            unused = ~self._recent[:, self._parts :].any(axis=0)
            entry = self._parts + int(np.argmax(unused))
            direction[entry] = math.sqrt(min_norm**2 - new_norm**2)
            new_norm = min_norm
        self._append(np.asarray(direction / new_norm, np.float32))
        if len(along) == 0:
            # The norm is known exactly, without the error of the sketch.
            return _UNIT_ROW
        return np.concatenate([[new_norm], along[::-1]])

    def _append(self, direction: Floats32) -> None:
        rows = np.concatenate([self._recent, direction[None]])
        # The next round is the last one of a window of which these are the others.
        self._recent = rows[1 - self.window :]

    def _sketch(self, residual: Residual) -> Floats32:
        """The sketch of a residual, shape ``(parts,)``; a short vector is its own sketch."""
        if self._dim == self._parts:
            return np.asarray(residual.part(slice(None)), np.float32)
        if self._signs is None:
            rng = np.random.default_rng(_SEED)
            is_negative = rng.integers(0, 2, self._dim, np.int8) == 0
            self._signs = np.packbits(is_negative)
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
        has_columns = recent.shape[1:] == (self._width,)
        if not has_columns or not np.all(np.isfinite(recent)):
            wanted = f"to be (rounds, {self._width}), finite"
            raise_invalid("sketches.shape", recent.shape, wanted)
        rows = max(len(recent) - forgotten, 0)
        self._recent = recent[:rows].astype(np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class RoundCorrelation:
    """The correlation of the residuals of a run's rounds.

    Attributes:
        factor: ``(T, W)``, the rows of `Whitener.add`, filled up with 0: of each residual,
            scaled to norm 1, the norm of the new part and the coefficients of the new parts of
            the previous round, the round before it, …; ``None`` if rounds are declared
            independent.
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

        It is true if all eigenvalues of G are in the range of a Wishart matrix: within the edges
        of Marchenko and Pastur (1967) and a margin of four scales of Johnstone (2001, equation
        1.3).
        """
        if self.factor is None or self.window == 1:
            return True
        rounds = len(self.factor)
        lower = Banded(self.factor).matrix()
        eigenvalues = np.linalg.eigvalsh(lower @ lower.T)
        # Roots of the Wishart matrix's numbers of samples and of rows.
        root = math.sqrt(min(self.parts or dim, dim))
        root_rows = math.sqrt(min(reach_of(rounds, self.window), rounds))
        root_upper_edge = root + root_rows
        root_lower_edge = root - root_rows
        upper_scale = root_upper_edge * (1 / root + 1 / root_rows) ** (1 / 3)
        lower_scale = root_lower_edge * abs(1 / root - 1 / root_rows) ** (1 / 3)
        largest = root_upper_edge**2 + _EDGE_MARGIN * upper_scale
        smallest = root_lower_edge**2 - _EDGE_MARGIN * lower_scale
        return bool(
            eigenvalues[0] > smallest / root**2
            and eigenvalues[-1] < largest / root**2
        )

    def error_of_independence(self, signal: Floats, dim: int) -> float:
        """Relative error of ``fᵀG⁻¹f`` for a client in all rounds, if pairs of rounds are ignored.

        It is the difference from ``Σ_t f_t²(G⁻¹)_tt``, and 0 if rounds are independent. For a
        client in a random share p of the rounds it is p times as large.

        Args:
            signal: expected score f_t of each round, ``(T,)``.
            dim: dimension of the rounds.
        """
        if self.independent(dim):
            return 0.0
        separate = float(self.single_round_energies(signal).sum())
        together = float(np.sum(self.whiten(signal) ** 2))
        if separate > 0:
            return abs(together - separate) / separate
        return 0.0

    def single_round_energies(self, signal: Floats) -> Floats:
        """``fᵀG⁻¹f`` of a client that takes part in one round only, for each round, ``(T,)``.

        Args:
            signal: expected score f_t of each round, ``(T,)``.
        """
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
    """How scores of the matched filter differ, as the cosines G of the rounds are estimated.

    Attributes:
        null_std: standard deviation of the scores of canaries that never took part. Their
            directions are not projected out of the residuals, so G depends on them.
        observed_std: standard deviation of the scores of canaries that took part, about their
            means. They are projected out of the residuals, so G is independent of them.
        unit: √(fᵀG⁻¹f) with the true G, divided by its mean with an estimated G; below 1, as
            estimates make the noise appear too small.
        parts: number of values whose mean is an estimated cosine; infinite if cosines are
            known.
        sketched: whether the rounds' norms are estimated as well.
    """

    null_std: float = 1.0
    observed_std: float = 1.0
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
        observed_std = _score_std(used, reach)
        if used == dim:
            return cls(1.0, observed_std, unit, used)
        # The number of random directions with the same information.
        samples = used * dim / (dim - used)
        null_std = _score_std(samples, reach)
        return cls(null_std, observed_std, unit, used, sketched=True)

    def unit_error(self, pairs: float, by_round: float, energy: float) -> float:
        """Relative standard error of √(Σ fᵀG⁻¹f) over all canaries, by the error of the cosines.

        An estimated cosine has the variance 1/parts. The derivative of the sum by the cosine of
        rounds s and t is ``Σ_i g_is·g_it``, with the whitened signals g of canary i.

        Args:
            pairs: the sum of `energy_of_pairs` over all rounds.
            by_round: the sum over rounds of (Σ_i g_it²)², which is used if norms are estimated.
            energy: the sum of all squared whitened signals.
        """
        if energy <= 0:
            return 0.0
        squared_derivatives = pairs
        if self.sketched:
            squared_derivatives += by_round
        return math.sqrt(squared_derivatives / (2 * self.parts)) / energy


def _score_std(samples: float, reach: float) -> float:
    """Standard deviation of a score that is filtered by a G from this many independent samples.

    Derivation: docs/notes/whitening.md.
    """
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
    # The coefficients are reversed, so that both are in the order of the rounds.
    correlated = row[back:0:-1] @ before[len(before) - back :]
    return np.asarray((value - correlated) / row[0])
