"""Scores of the canaries of one round, each against noise and clients with the other canaries out.

They are those that `leave_one_out` and `shift_scores` make of a record, while the round's vectors
are at hand.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.leave_one_out import SMALLEST_SHARE, project_out, projected_square
from fl_epe.auditing.record_parts import Floats
from fl_epe.auditing.shifted_cosines import hidden_norm, shift_scores
from fl_epe.canaries import CanarySet
from fl_epe.mechanism import norm

Vector = NDArray[np.floating]


@dataclasses.dataclass(frozen=True)
class RoundFacts:
    """What is known about a round besides its models.

    Attributes:
        present: numbers of the canaries that took part.
        contribution: norm of what each of them adds to the released mean; NaN if not known.
        clip_norm: clip norm of the round; NaN where nothing clips.
        replies: how many updates the mean is over, canaries included.
        absent: clients and canaries whose update was lost.
        weights: how many times ``contribution`` each of them adds, where they differ; their
            squares are 1 on average.
    """

    present: Collection[int] = ()
    contribution: float = math.nan
    clip_norm: float = math.nan
    replies: float = math.nan
    absent: int = 0
    weights: Sequence[float] = ()

    def canary_weights(self) -> Floats:
        """One number for each that is present."""
        return np.asarray(self.weights if len(self.weights) else [1.0] * len(self.present))


@dataclasses.dataclass(frozen=True, eq=False)
class RoundScores:
    """What a round says of its canaries.

    Attributes:
        gains: signal times score of each canary that is present.
        energies: the squared signals.
        signal: of a canary of weight 1.
        hidden: the residual, the mean update without the canaries; ``None`` where nothing was
            released.
    """

    gains: Floats
    energies: Floats
    signal: float = 0.0
    hidden: Vector | None = None

    @classmethod
    def nothing(cls, facts: RoundFacts) -> RoundScores:
        """Of a round that says nothing of those that are present."""
        return cls(*np.zeros((2, len(facts.present))))


def score_round(
    canaries: CanarySet,
    mean: Vector,
    facts: RoundFacts,
    dots: Floats | None = None,
    vectors: Vector | None = None,
    has_canaries: bool = True,
) -> RoundScores:
    """Score the canaries of a round.

    Args:
        canaries: all of them.
        mean: released in the round, shape ``(dim,)``.
        facts: of the round.
        dots: inner products of all canaries with the mean, if they are known.
        vectors: the canaries that are present, shape ``(K, dim)``, if they are at hand; else they
            are made again.
        has_canaries: whether they are in the mean; otherwise it is all that hides them, and each is
            scored as if it alone were in it.
    """
    length, own, weights = norm(mean), facts.contribution, facts.canary_weights()
    if not facts.present or not length > 0:
        return RoundScores.nothing(facts)
    round_ = _Round(canaries, list(facts.present), weights, vectors)
    mine = round_.dot(mean) if dots is None else dots[list(facts.present)]
    if has_canaries:
        cosines, length, hidden = round_.alone(mean, length, mine)
    else:
        added = own * weights
        cosines = (mine + added) / np.sqrt(length**2 + 2 * added * mine + added**2)
        length, hidden = math.hypot(length, own), mean
    dim, known = len(mean), math.isfinite(own)
    signal = math.sqrt(dim) * own / float(hidden_norm(length, own)) if known else 1.0
    signals = signal * weights if known else np.ones(len(weights))
    return RoundScores(signals * shift_scores(cosines, dim), signals**2, signal, hidden)


@dataclasses.dataclass(frozen=True, eq=False)
class _Round:
    """The canaries that are present, their weights, and their vectors if these are at hand."""

    canaries: CanarySet
    present: list[int]
    weights: Floats
    vectors: Vector | None

    def dot(self, vector: Vector) -> Floats:
        """Their inner products with a vector."""
        if self.vectors is None:
            return self.canaries.dot(vector, numbers=self.present)
        return np.asarray(self.vectors @ vector, np.float64)

    def sum(self) -> Vector:
        """Their sum."""
        if self.vectors is not None:
            return np.asarray(self.weights.astype(self.vectors.dtype) @ self.vectors)
        return np.asarray(self.canaries.combine(self.weights[None], numbers=self.present)[0])

    def alone(self, mean: Vector, length: float, dots: Floats) -> tuple[Floats, float, Vector]:
        """Cosines with the mean less the other canaries, its expected norm, and it without any."""
        added, count = np.mean(self.weights * dots) ** 2, len(self.present)
        if count * added < SMALLEST_SHARE * length**2:
            return dots / length, length, mean
        total = self.sum()
        shared = length**2, float(self.weights @ dots), norm(total) ** 2
        hidden = mean - (shared[1] / shared[2]) * total
        if (count - 1) * added < SMALLEST_SHARE * length**2:
            return dots / length, length, hidden
        left, squares = project_out(dots, self.dot(total), self.weights, *shared)
        return left / np.sqrt(squares), math.sqrt(projected_square(*shared, 1.0)), hidden
