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
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

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
"""Deviations beyond which the tails are counted."""

_STATE = "null."
_NOTHING: Mapping[str, float] = types.MappingProxyType({})
_CERTAIN = 1e-3  # p-value, for all comparisons of a run together
_MATTERS = 0.02  # of a deviation; half of an ε changes by as much
_TAIL_MATTERS = 1.25
_FAR = (3.0, 3.5, 4.0)  # tails that are judged; nearer ones show in the deviation


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
        edges: the `EDGES`.
        limits: the `TAILS`.
    """

    edges: ClassVar[Floats] = EDGES
    limits: ClassVar[Floats] = TAILS

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

    def size(self, number: int) -> int:
        """How many canaries have a score of statistic ``number``."""
        assert self.counts is not None  # noqa: S101 - there is a statistic
        return int(self.counts[number].sum())

    def expected_counts(self, number: int) -> Floats:
        """How many scores N(0, 1) has in each of the `tails` of statistic ``number``."""
        return np.asarray(self.size(number) * scipy.special.ndtr(-TAILS))


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


def misfits(null: MeasuredNull, least: Mapping[str, float] = _NOTHING) -> list[Misfit]:
    """Where a null is not the exact one; the maximum has none, and is left out.

    Tails are judged from 3 deviations on, and only if too many scores are there: with fewer, bounds
    still hold.

    Args:
        null: of a run.
        least: deviations from which on a null is right by its statistic's name, 1 by default: see
            `fl_epe.auditing.least_deviations`.

    A false alarm comes in fewer than one of 1,000 runs. In simulations
    (`simulations/studies/calibration.py`, 131,072 canaries) there were 3 in 10,000 right runs. A
    null that is 3% too wide was found in all of 1,000 runs, a mean of 0.03 in 99.9%, and three
    times too many scores beyond 4 deviations in 93% where tails rise gradually, and in 74% where
    nothing else is wrong: 25 scores are then there instead of 8.3, and 22 are warned of.
    """
    exact = [number for number, name in enumerate(null.statistics) if name != "maximum"]
    if not exact:
        return []
    limit = _CERTAIN / (len(exact) * (2 + len(_FAR)))
    return [found for number in exact for found in _misfits_of(null, number, limit, least)]


def _misfits_of(
    null: MeasuredNull, number: int, limit: float, least: Mapping[str, float]
) -> Iterator[Misfit]:
    """Those of one statistic, whose p-values are below the limit."""
    assert null.means is not None  # noqa: S101
    assert null.deviations is not None  # noqa: S101
    name, size = null.statistics[number], null.size(number)
    mean, width = float(null.means[number]), float(null.deviations[number])
    certain = -scipy.special.ndtri(limit / 2)
    if abs(mean) > max(certain / np.sqrt(size), _MATTERS):
        yield Misfit(name, "mean", mean, 0.0)
    usual = min(max(width, least.get(name, 1.0)), 1.0)
    if abs(width - usual) > max(certain / np.sqrt(2 * size), _MATTERS):
        yield Misfit(name, "deviation", width, usual)
    counts, expected = np.sum(null.tails(number), axis=0), 2 * null.expected_counts(number)
    for tail in _FAR:
        place = int(np.searchsorted(TAILS, tail))
        count, usual = float(counts[place]), float(expected[place])
        chance = scipy.special.pdtrc(count - 1, usual) if count else 1.0  # so many, or more
        if chance < limit and count > _TAIL_MATTERS * usual:
            yield Misfit(name, f"tail beyond {tail:g}", count, usual)


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


def scorer_with_null(
    canaries: CanarySet, score_memory: int = SCORE_MEMORY, count: int = NULL_CANARIES
) -> CanaryScorer:
    """A scorer that shows ``count`` canaries in all, where they are cheap."""
    others = max(0, count - canaries.count)
    return CanaryScorer(canaries, score_memory, others=others)
