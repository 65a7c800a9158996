"""The null of a run's statistics, measured on many canaries that took no part.

Rotated canaries are scored by the hundred thousand at the price of a few, so that the law on which
every ε rests is looked at in every run: `NullTally` follows them through the rounds, `MeasuredNull`
is what is left in the record, and `misfits` says where it is not the exact null.

Examples:
    >>> tally = NullTally(observed=2, count=4)
    >>> tally.add_round(np.array([0.5, -0.5, 1.0, -1.0]), present=[0], signal=1.0)
    >>> tally.finish({}).statistics
    ('matched-filter',)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.canaries import SCORE_MEMORY, CanaryScorer, CanarySet
from fl_epe.mechanism import ServerSGD

Floats = NDArray[np.float64]

NULL_CANARIES = 1 << 17
"""Rotated canaries that are scored in a run, together with those that it keeps."""

EDGES = np.linspace(-6.0, 6.0, 49)
"""Limits between which scores are counted, in deviations of the exact null."""

TAILS = np.arange(1.0, 4.6, 0.5)
"""Deviations beyond which the tails are compared."""

_STATE = "null."
_CERTAIN = 1e-4  # p-value, for all comparisons of a run together
_MATTERS = 0.02  # of a deviation; half of an ε changes by as much
_TAIL_MATTERS = 1.25


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredNull:
    """Scores of canaries that took no part, in units in which the exact null is N(0, 1).

    Attributes:
        statistics: names, as in `STATISTICS`. "maximum" is in the units in which that of as many
            independent rounds is N(0, 1).
        means: ``(S,)``.
        deviations: ``(S,)``.
        counts: ``(S, len(EDGES) + 1)``, how many scores are below the first of the `EDGES`, between
            each two, and above the last.
    """

    statistics: tuple[str, ...] = ()
    means: Floats | None = None
    deviations: Floats | None = None
    counts: NDArray[np.int64] | None = None

    def tails(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many scores of statistic ``number`` are below ``-TAILS``, and above ``TAILS``."""
        assert self.counts is not None  # noqa: S101 - there is a statistic
        below = np.cumsum(self.counts[number])
        low = below[np.searchsorted(EDGES, -TAILS)]
        high = below[-1] - below[np.searchsorted(EDGES, TAILS)]
        return low, high


@dataclasses.dataclass(frozen=True)
class Misfit:
    """Where a measured null is not N(0, 1), by more than chance and by enough to matter.

    Attributes:
        statistic: its name.
        what: "mean", "deviation" or "tail beyond 3".
        measured: its value; for a tail how many scores are in it.
        expected: that of N(0, 1).
    """

    statistic: str
    what: str
    measured: float
    expected: float


def misfits(null: MeasuredNull) -> list[Misfit]:
    """All of them; those of the maximum, which has no exact null, are left out."""
    found = []
    for number, name in enumerate(null.statistics):
        if name == "maximum":
            continue
        assert null.means is not None  # noqa: S101
        assert null.deviations is not None  # noqa: S101
        assert null.counts is not None  # noqa: S101
        size = int(null.counts[number].sum())
        limit = _CERTAIN / (len(null.statistics) * (2 + len(TAILS)))
        mean, width = float(null.means[number]), float(null.deviations[number])
        certain = -scipy.special.ndtri(limit / 2)
        if abs(mean) > max(certain / np.sqrt(size), _MATTERS):
            found.append(Misfit(name, "mean", mean, 0.0))
        if abs(width - 1) > max(certain / np.sqrt(2 * size), _MATTERS):
            found.append(Misfit(name, "deviation", width, 1.0))
        for tail, count in zip(TAILS, np.sum(null.tails(number), axis=0), strict=True):
            expected = 2 * size * scipy.special.ndtr(-tail)
            more = scipy.stats.poisson.sf(count - 1, expected)
            if more < limit and count > _TAIL_MATTERS * expected:
                found.append(Misfit(name, f"tail beyond {tail:g}", float(count), float(expected)))
    return found


class NullTally:
    """Follows canaries that took no part through a run, each at the rounds of an observed one.

    Args:
        observed: number of canaries that may take part.
        count: number of canaries that are followed.
    """

    def __init__(self, observed: int, count: int) -> None:
        self._borrowed = np.arange(count) % observed
        self._total = np.zeros(count, np.float32)
        self._largest = np.full(count, -np.inf, np.float32)
        self._velocity = np.zeros(count, np.float32)
        self._energy = np.zeros(observed)
        self._rounds = 0

    def add_round(self, scores: Floats, present: Collection[int], signal: float) -> None:
        """Note a round with a mean.

        Args:
            scores: √d times each cosine with the mean, ``(count,)``.
            present: numbers of the observed canaries of the round.
            signal: the weight of the round in the matched filter.
        """
        here = np.zeros(len(self._energy), bool)
        here[list(present)] = True
        weights = (signal * here).astype(np.float32)
        self._total += weights[self._borrowed] * scores.astype(np.float32)
        self._energy += weights.astype(np.float64) ** 2

    def add_delta(self, dots: NDArray[np.floating], length: float, dim: int) -> None:
        """Note inner products with a model delta, for the maximum over rounds.

        Args:
            dots: with each canary, shape ``(count,)``.
            length: norm of the delta.
            dim: its dimension d.
        """
        if length > 0:
            scores = (math.sqrt(dim) / length * dots).astype(np.float32)
            np.maximum(self._largest, scores, out=self._largest)
            self._rounds += 1

    def add_step(self, dots: Floats, server: ServerSGD, length: float, dim: int) -> None:
        """`add_delta` for the delta that ``server`` makes of a mean with these inner products."""
        self._velocity = np.float32(server.momentum) * self._velocity + dots.astype(np.float32)
        self.add_delta(server.learning_rate * self._velocity, length, dim)

    def finish(self, scores: Mapping[str, Floats]) -> MeasuredNull:
        """What the record keeps.

        Args:
            scores: √d times each cosine with a vector of the end, by the statistic's name.
        """
        standard = {name: np.asarray(values, np.float64) for name, values in scores.items()}
        seen = self._energy[self._borrowed] > 0
        if np.any(seen):
            roots = np.sqrt(self._energy[self._borrowed[seen]])
            standard["matched-filter"] = self._total[seen] / roots
        if self._rounds:  # Φ^T of the largest of T; where it is 1 only its complement is known
            log_below = self._rounds * scipy.special.log_ndtr(self._largest.astype(np.float64))
            above = -np.expm1(log_below)
            standard["maximum"] = np.where(
                log_below < -1, scipy.special.ndtri_exp(log_below), -scipy.special.ndtri(above)
            )
        standard = {name: values for name, values in standard.items() if len(values) > 1}
        if not standard:
            return MeasuredNull()
        edges = np.concatenate([[-np.inf], EDGES, [np.inf]])
        return MeasuredNull(
            statistics=tuple(standard),
            means=np.array([values.mean() for values in standard.values()]),
            deviations=np.array([values.std() for values in standard.values()]),
            counts=np.array([np.histogram(values, edges)[0] for values in standard.values()]),
        )

    def state(self) -> dict[str, NDArray[Any]]:
        """Named arrays from which `restore` goes on."""
        return {
            _STATE + "total": self._total,
            _STATE + "largest": self._largest,
            _STATE + "velocity": self._velocity,
            _STATE + "energy": self._energy,
            _STATE + "rounds": np.array(self._rounds),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned, among other arrays.

        Raises:
            ValueError: if it does not fit.
        """
        for name, mine in self.state().items():
            if name not in state or state[name].shape != mine.shape:
                raise ValueError(f"Expected an array {name} of shape {mine.shape}.")
        self._total, self._largest, self._velocity = (
            state[_STATE + name].astype(np.float32) for name in ("total", "largest", "velocity")
        )
        self._energy = state[_STATE + "energy"].astype(np.float64)
        self._rounds = int(state[_STATE + "rounds"])


def scorer_with_null(canaries: CanarySet, score_memory: int = SCORE_MEMORY) -> CanaryScorer:
    """A scorer that shows `NULL_CANARIES` in all, where they are cheap."""
    others = max(0, NULL_CANARIES - canaries.count)
    return CanaryScorer(canaries, score_memory, others=others)
