"""A round of a `RunAuditor`: what is known about it, its canaries' scores, and all rounds so far.

Each canary is scored against noise and clients, with the other canaries out, as `leave_one_out` and
`shift_scores` do for a record, while the round's vectors are at hand.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.leave_one_out import SMALLEST_SHARE, project_out, projected_square
from fl_epe.auditing.record_parts import Floats, Mechanism, RunningScores, ServerStep
from fl_epe.auditing.round_correlation import Width
from fl_epe.auditing.shifted_cosines import hidden_norm, shift_scores
from fl_epe.canaries import CanarySet
from fl_epe.checks import raise_invalid
from fl_epe.mechanism import ServerSGD, norm

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


_FACTS = ("contribution", "clip_norm", "replies", "absent")  # of `RoundFacts`
_OF_CANARIES = ("weights", "gains", "energies")  # of those that took part, by their numbers


class SeenRounds:
    """All rounds so far.

    Args:
        count: number of canaries that may take part.
        parts: length of the sketch of a round, see `RoundCorrelation`.
    """

    def __init__(self, count: int, parts: int) -> None:
        numbers: dict[str, tuple[int, ...]] = dict.fromkeys((*_FACTS, "update_norms"), ())
        self._shapes = {**numbers, "widths": (3,), "sketches": (parts,), "presence": (count,)}
        self._rows: dict[str, list[Any]] = {name: [] for name in (*self._shapes, *_OF_CANARIES)}

    def __len__(self) -> int:
        return len(self._rows["presence"])

    def add(
        self,
        facts: RoundFacts,
        update_norm: float,
        scores: RoundScores,
        sketch: NDArray[np.float32],
        width: Width,
    ) -> None:
        """Note a round.

        Args:
            facts: who took part, and how much each canary added.
            update_norm: norm of the model update.
            scores: of the canaries that took part.
            sketch: of the residual, see `RoundCorrelation`.
            width: of all scores so far.
        """
        order = np.argsort(list(facts.present), kind="stable").astype(np.int64)
        presence = np.zeros(self._shapes["presence"], bool)
        presence[list(facts.present)] = True
        row = {
            **{name: getattr(facts, name) for name in _FACTS},
            "update_norms": update_norm,
            "widths": dataclasses.astuple(width),
            "sketches": sketch,
            "presence": presence,
            "weights": facts.canary_weights()[order],
            "gains": scores.gains[order],
            "energies": scores.energies[order],
        }
        for name, value in row.items():
            self._rows[name].append(value)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """What `add` was told of each round, ``(T, …)``; of canaries, those that took part."""
        if name in _OF_CANARIES:
            return np.concatenate([np.empty(0), *self._rows[name]])
        kinds = {"presence": np.bool_, "sketches": np.float32}
        rows: NDArray[Any] = np.array(self._rows[name], kinds.get(name, np.float64))
        return rows.reshape(len(self), *self._shapes[name])

    def _by_canary(self, name: str, absent: float = 0.0) -> Floats:
        """``(T, count)``, with the value of canaries that took no part."""
        presence = self["presence"]
        found = np.full(presence.shape, absent)
        found[presence] = self[name]
        return found

    def mechanism(self, server: ServerSGD | str, ids: NDArray[np.int64]) -> Mechanism:
        """As far as rounds show it; the canaries ``ids`` are the observed ones."""
        if isinstance(server, ServerSGD):
            rates = np.full(len(self), server.learning_rate)
            step = ServerStep("sgd", rates, server.momentum)
        else:
            step = ServerStep(server)
        replies = self["replies"]
        replies = replies[np.isfinite(replies)]
        equal = bool(np.all(self["weights"] == 1))
        return Mechanism(
            cohort_size=float(replies.mean()) if len(replies) else math.nan,
            noise_multiplier=None,
            sum_noise_multiplier=None,
            participation="deployment",
            canary_participations=float(self["presence"].sum() / max(1, len(ids))),
            server=step,
            clip_norms=self["clip_norm"],
            contributions=self["contribution"],
            canary_weights=None if equal else self._by_canary("weights", 1.0)[:, ids],
        )

    def running(self, ids: NDArray[np.int64], planned: float | None) -> RunningScores:
        """What `epsilon_by_round` needs of the canaries ``ids``."""
        gains, energies = self._by_canary("gains"), self._by_canary("energies")
        return RunningScores(gains[:, ids], energies[:, ids], self["widths"], planned)

    def state(self) -> dict[str, NDArray[Any]]:
        """Named arrays, from which `restore` goes on."""
        return {name: self[name] for name in self._rows}

    def restore(self, state: Mapping[str, NDArray[Any]], rounds: int) -> None:
        """Take up the first ``rounds`` rounds in what `state` returned, among other arrays.

        Raises:
            ValueError: if it does not fit.
        """
        seen = len(state["presence"])
        if not 0 <= rounds <= seen:
            raise_invalid("rounds", rounds, f"to be from 0 to {seen}, the rounds of the state")
        for name, shape in self._shapes.items():
            value = state[name]
            if value.shape != (seen, *shape) or value.dtype.kind not in "bif":
                raise_invalid(f"{name}.shape", value.shape, f"to be {(seen, *shape)}, of numbers")
        presence = state["presence"].astype(bool)
        ends = np.cumsum(presence.sum(axis=1), dtype=np.int64)
        for name in _OF_CANARIES:
            value, times = state[name], int(presence.sum())
            if value.shape != (times,) or not np.all(np.isfinite(value)):
                raise_invalid(f"{name}.shape", value.shape, f"to be {(times,)}, all finite")
            self._rows[name] = np.split(value.astype(np.float64), ends[:-1])[:rounds]
        bad = {
            "energies": state["energies"] < 0,
            "widths": ~(state["widths"] >= 1),
            "sketches": ~np.isfinite(state["sketches"]),
        }
        for name, found in bad.items():
            if found.any():
                raise ValueError(f"Expected {name} to be in their range.")
        for name in self._shapes:
            self._rows[name] = list(state[name][:rounds])

    def scored(self) -> list[tuple[NDArray[np.int64], Floats, Floats, NDArray[np.float32], Width]]:
        """Of each round who took part, their gains and energies, the sketch and the width."""
        rows = self._rows
        return [
            (np.flatnonzero(here), gains, energies, sketch, Width(*map(float, width)))
            for here, gains, energies, sketch, width in zip(
                *(rows[name] for name in ("presence", "gains", "energies", "sketches", "widths")),
                strict=True,
            )
        ]
