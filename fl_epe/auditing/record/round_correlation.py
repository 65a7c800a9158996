"""Rounds that are correlated, and scores that are not: the whitened matched filter.

The residuals of a run's rounds are more or less alike: real updates point the same way, momentum
and correlated noise carry one round into the next. For a random direction c that took no part, the
scores of all rounds are jointly N(0, G), where G holds the cosines of the rounds' residuals. With
the factor ``G = L·Lᵀ`` the values ``L⁻¹·s`` are independent and N(0, 1), and what a canary added to
the rounds becomes ``L⁻¹·f``: the best filter is their inner product, ``fᵀG⁻¹s/√(fᵀG⁻¹f)``. L grows
by a row a round (Gram-Schmidt), so that what is said during a run and after it is the same.

Rounds are not kept. Of each there is a sketch: every coordinate gets a sign by chance, and groups
of coordinates are added up. Products of M sums estimate G as M random directions would, and exactly
in M dimensions or fewer. What that costs is known (Reed, Mallett and Brennan 1974) and small:
`Precision`. Derivation and measurements: docs/notes/whitening.md.

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
from fl_epe.mechanism import norm

# Numbers in a sketch; a prime, so that no part has the same place of every layer's rows.
SKETCH_PARTS = 16381
# Rounds back to which a round's correlations are followed, if nobody knows that they go farther.
WINDOW = 800
_PARTS_A_ROUND = 20  # of a sketch, and dimensions, for the estimate of G
_LEAST_PARTS = 7  # where more than `WINDOW` rounds are known to be correlated
_LEAST_NEW = (
    0.01  # of a residual; of what is less, rounding in float32 is too large a part
)
_MEASURED = (
    2.0  # errors of a residual, 1/√d of it, from the canaries' part that is taken out
)
_BLOCK = 512
_SEED = 0
_CHANCE = 4.0  # scales of the largest eigenvalue's law, that noise alone does not reach
_NOTHING = np.ones(
    1
)  # the factor's row of a round without a residual, and of the first


def window_of(dim: int, rounds: int) -> int:
    """The rounds back to which correlations can be estimated in so many dimensions, at least 1."""
    parts = _PARTS_A_ROUND if rounds <= WINDOW else _LEAST_PARTS
    return max(1, min(rounds, min(dim, SKETCH_PARTS) // parts))


def reach_of(rounds: int, window: int) -> float:
    """With how many rounds, itself included, a round is whitened: on average over all of them.

    Correlations are followed ``window`` rounds back, and so also by later rounds to this one.
    """
    back = min(rounds, window)
    return 1 + (back - 1) * (2 * rounds - back) / max(rounds, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Residual:
    """``mean − share · canaries``: what a round released, without its canaries.

    Attributes:
        mean: shape ``(dim,)``.
        canaries: their sum; by default none were in it.
        share: how often the sum was in it.
    """

    mean: Vector
    canaries: Vector | None = None
    share: float = 1.0

    def part(self, here: slice) -> Vector:
        """Some of its entries."""
        if self.canaries is None:
            return self.mean[here]
        return self.mean[here] - np.float64(self.share) * self.canaries[here]

    def norm(self) -> float:
        """Its Euclidean norm."""
        return norm(self.mean, self.canaries, np.float64(self.share))


class Whitener:
    """The factor L of a run's rounds, one row after the other.

    Args:
        dim: dimension d of the rounds.
        window: how many rounds back a round's correlations are followed, itself included; with 1
            rounds are declared independent.
    """

    def __init__(self, dim: int, window: int = WINDOW) -> None:
        self.window = window_of(dim, window)
        self._dim, self._parts = dim, min(dim, SKETCH_PARTS)
        self._width = self._parts + self.window  # with room for what is added to rounds
        self._signs: NDArray[np.uint8] | None = None  # as bits
        self._known = np.empty(
            (0, self._width), np.float32
        )  # the last rounds, orthonormal

    def add(self, residual: Residual | Vector | None) -> Floats:
        """Note a round's residual, shape ``(dim,)``; ``None`` if nothing was released.

        Returns:
            Its row of L: its part along itself, along the round before it, and so on; at most
            ``window`` numbers.
        """
        if not isinstance(residual, Residual | None):
            residual = Residual(residual)
        if self.window == 1 or residual is None or not (length := residual.norm()) > 0:
            self._keep(np.zeros(self._width, np.float32))
            return _NOTHING
        rest: Vector = np.zeros(self._width, np.float32)
        rest[: self._parts] = self._sketch(residual) / length
        whole = norm(rest)
        along = self._known @ rest
        rest -= along @ self._known
        own = norm(rest)
        if own < (least := max(_LEAST_NEW, _MEASURED / math.sqrt(self._dim)) * whole):
            # As if the round had noise of its own, so that no score varies more than is assumed.
            free = ~self._known[:, self._parts :].any(axis=0)
            rest[self._parts + int(np.argmax(free))] = math.sqrt(least**2 - own**2)
            own = least
        # Of length 1 but for the sketch's error; the first round's length is known.
        row = np.concatenate([[own], along[::-1]]) if len(along) else _NOTHING
        self._keep(np.asarray(rest / own, np.float32))
        return row

    def _keep(self, row: Floats32) -> None:
        if self.window > 1:
            self._known = np.concatenate([self._known, row[None]])[1 - self.window :]

    def _sketch(self, residual: Residual) -> Floats32:
        """Shape ``(parts,)``; of all vectors alike. The vector itself if it has so few numbers."""
        if self._dim == self._parts:
            return np.asarray(residual.part(slice(None)), np.float32)
        if self._signs is None:
            drawn = np.random.default_rng(_SEED).integers(0, 2, self._dim, np.int8)
            self._signs = np.packbits(drawn == 0)
        found = np.zeros(self._parts)
        for start in range(0, self._dim, 8 * self._parts):  # whole bytes of signs
            here = slice(start, min(start + 8 * self._parts, self._dim))
            signed = residual.part(here) * signs(self._signs, here)
            for first in range(0, len(signed), self._parts):
                row = signed[first : first + self._parts]
                found[: len(row)] += row
        return np.asarray(found, np.float32)

    def state(self) -> Floats32:
        """From which `restore` goes on: the last rounds, orthonormal, ``(< W, parts + W)``."""
        return self._known

    def restore(self, known: Vector, forgotten: int = 0) -> None:
        """Go on from what `state` returned, without the last rounds that are ``forgotten``.

        Raises:
            ValueError: if it does not fit.
        """
        if known.shape[1:] != (self._width,) or not np.all(np.isfinite(known)):
            raise_invalid(
                "sketches.shape", known.shape, f"to be (rounds, {self._width}), finite"
            )
        self._known = known.astype(np.float32)[: max(len(known) - forgotten, 0)]


@dataclasses.dataclass(frozen=True, eq=False)
class RoundCorrelation:
    """How the residuals of a run's rounds are correlated.

    Attributes:
        factor: ``(T, W)``, the rows of `Whitener.add`: how much of each round's residual, of length
            1, is along itself, the round before it, …; ``None`` if rounds are declared independent.
        parts: numbers in the sketches that it comes from; 0 if they were the residuals themselves.
    """

    factor: Floats | None = None
    parts: int = 0

    @classmethod
    def of(cls, rows: Sequence[Floats], dim: int) -> RoundCorrelation:
        """From the rows of L."""
        window = max(map(len, rows), default=1)
        if window == 1:
            return cls()
        factor = np.zeros((len(rows), window))
        for row, found in zip(factor, rows, strict=True):
            row[: len(found)] = found
        return cls(factor, SKETCH_PARTS if dim > SKETCH_PARTS else 0)

    @property
    def window(self) -> int:
        """Rounds back to which correlations are followed."""
        return 1 if self.factor is None else int(self.factor.shape[1])

    @property
    def innovations(self) -> Floats:
        """Norm of what is new in each round's residual, ``(T,)``, or ``(1,)`` where all is new."""
        return np.ones(1) if self.factor is None else self.factor[:, 0]

    def whiten(self, values: Floats) -> Floats:
        """``L⁻¹·values``, where ``values`` have the shape ``(T, …)`` or are of the first rounds."""
        if self.factor is None:
            return values
        found = np.empty(values.shape)
        for t, (row, value) in enumerate(zip(self.factor, values, strict=False)):
            found[t] = whitened_row(row, value, found[:t])
        return found

    def independent(self, dim: int) -> bool:
        """Whether the rounds are no more alike than independent noise in ``dim`` dimensions.

        Then no eigenvalue of G is outside the range of those of a Wishart matrix: the edges of
        Marchenko and Pastur (1967), and four of the scales of Johnstone (2001, equation 1.3) more.
        """
        if self.factor is None or self.window == 1:
            return True
        rounds = len(self.factor)
        lower = np.zeros((rounds, rounds))
        for t, row in enumerate(self.factor):
            back = min(t + 1, self.window)
            lower[t, t + 1 - back : t + 1] = row[:back][::-1]
        energies = np.linalg.eigvalsh(lower @ lower.T)
        few = math.sqrt(min(self.parts or dim, dim))
        reach = math.sqrt(min(reach_of(rounds, self.window), rounds))
        above = few + reach
        below = few - reach
        most = above**2 + _CHANCE * above * (1 / few + 1 / reach) ** (1 / 3)
        least = below**2 - _CHANCE * below * abs(1 / few - 1 / reach) ** (1 / 3)
        return bool(least / few**2 < energies[0] and energies[-1] < most / few**2)

    def loss_by_pairs(self, signal: Floats, dim: int) -> float:
        """Share of ``Σ_t f_t²(G⁻¹)_tt`` by which ``fᵀG⁻¹f`` of a client in all rounds differs.

        It is 0 where rounds are independent. Of a client in a random part p of them it is p times
        as much.

        Args:
            signal: expected score f_t of each round, ``(T,)``.
            dim: dimension of the rounds.
        """
        if self.independent(dim):
            return 0.0
        own = float(self.alone(signal).sum())
        together = float(np.sum(self.whiten(signal) ** 2))
        return abs(together - own) / own if own > 0 else 0.0

    def alone(self, signal: Floats) -> Floats:
        """``fᵀG⁻¹f`` of who adds its ``signal`` to one round alone, of each round, ``(T,)``."""
        if self.factor is None:
            return signal**2
        found = np.empty_like(signal)
        rounds = len(signal)
        for first in range(0, rounds, _BLOCK):  # some columns of L⁻¹ after the others
            here = slice(first, min(first + _BLOCK, rounds))
            columns = self.whiten(np.eye(rounds, here.stop - first, -first))
            found[here] = np.sum((columns * signal[here]) ** 2, axis=0)
        return found


@dataclasses.dataclass(frozen=True)
class Precision:
    """What it does to filtered scores that the rounds' products G are estimated.

    Attributes:
        width: deviation of the scores of canaries that never took part, which are in G like all
            other directions.
        own: that of those that took part, about their means: their own part is taken out of G, so
            they are new to it.
        unit: √(fᵀG⁻¹f) on average, over that of the estimated G, as noise seems smaller than it is.
        parts: numbers of which each of the estimated cosines is a mean; infinite if they are known.
        sketched: whether the rounds' lengths are estimated, too.
    """

    width: float = 1.0
    own: float = 1.0
    unit: float = 1.0
    parts: float = math.inf
    sketched: bool = False

    @classmethod
    def of(cls, reach: float, dim: int, parts: int) -> Precision:
        """Of a factor with this `reach_of`, from sketches of so many parts, or 0 of the vectors."""
        few = min(parts or dim, dim)
        if reach <= 1:  # the rounds' norms are measured, in all dimensions
            few = dim
        # Of an inverse Wishart matrix, in the dimensions without the canaries' sum.
        unit = math.sqrt(max(few - max(reach, 1.0) - 2, 1) / few)
        if reach <= 1:
            return cls(unit=unit)
        own = _widening(few, reach)
        if few == dim:
            return cls(1.0, own, unit, few)
        samples = few * dim / (dim - few)  # random directions that tell as much
        return cls(_widening(samples, reach), own, unit, few, sketched=True)

    def unit_error(self, pairs: float, by_round: float, energy: float) -> float:
        """Relative standard error of the mean √(fᵀG⁻¹f), by the error of the cosines.

        A cosine of two rounds has the variance 1/parts, and with the factor g gᵀ of each canary's
        whitened signals g it changes the sum of all ``fᵀG⁻¹f``.

        Args:
            pairs: `energy_of_pairs` of the whitened signals of all canaries.
            by_round: the sum over rounds of (Σ_i g_it²)², which counts where lengths are estimated.
            energy: the sum of all squares.
        """
        square = pairs + by_round * self.sketched
        return math.sqrt(square / (2 * self.parts)) / energy if energy > 0 else 0.0


def _widening(samples: float, reach: float) -> float:
    """Deviation of what is filtered by G from so many samples, of a direction not among them."""
    rest = max(samples - reach, 1.0)
    return math.sqrt(samples / (rest + 1) * (samples + 1) / (rest + 2))


EXACT = Precision()  # of rounds that are declared independent


def energy_of_pairs(signals: Floats, before: Floats) -> float:
    """``2·Σ_s (Σ_i g_is·g_it)²`` over the rounds s before t.

    Args:
        signals: ``(k,)``, whitened, of round t.
        before: ``(s, k)``, of the rounds before it.
    """
    return 2 * float(np.sum((before @ signals) ** 2))


def whitened_row(row: Floats, value: Floats, before: Floats) -> Floats:
    """Row t of ``L⁻¹·values`` from that of the values and those before it."""
    back = min(len(row) - 1, len(before))
    if not back:
        return np.asarray(value / row[0])
    return np.asarray((value - row[back:0:-1] @ before[len(before) - back :]) / row[0])
