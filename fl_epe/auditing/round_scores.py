"""A round of a `RunAuditor`: what is known about it, its canaries' scores, and all rounds so far.

Each canary is scored against noise and clients, with the other canaries out, as `View.round_scores`
does for a record, while the round's vectors are at hand.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.leave_one_out import SMALLEST_SHARE, leave_others_out
from fl_epe.auditing.record_parts import Floats, Mechanism, RunningScores, ServerStep
from fl_epe.auditing.scores import hidden_norm, shift_scores
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
        scores: ``(k,)`` of each canary that may take part; N(0, 1) without its own part.
        signals: ``(k,)``, their means: what each added; in proportion where that is not known.
        hidden: the residual, the released vector without canaries; ``None`` where nothing was.
    """

    scores: Floats
    signals: Floats
    hidden: Vector | None = None


def score_round(
    canaries: CanarySet,
    count: int,
    mean: Vector,
    facts: RoundFacts,
    dots: Floats | None = None,
    vectors: Vector | None = None,
    has_canaries: bool = True,
    everybody: bool = True,
) -> RoundScores:
    """Score the canaries of a round against what others left in it, and their own part.

    Args:
        canaries: all of them.
        count: how many of them may take part.
        mean: released in the round, shape ``(dim,)``.
        facts: of the round.
        dots: inner products of all canaries with the mean, if they are known.
        vectors: the canaries that are present, shape ``(K, dim)``, if they are at hand; else they
            are made again.
        has_canaries: whether they are in the mean; otherwise each is scored as if it were.
        everybody: whether to score those that are not present, too.
    """
    square, present = norm(mean) ** 2, sorted(facts.present)
    scores, own, signals = np.zeros((3, count))
    if not square > 0:
        return RoundScores(scores, signals)
    own[list(facts.present)] = facts.canary_weights()
    weights, known = own[present], math.isfinite(facts.contribution)
    numbers = list(range(count)) if everybody else present
    mine = canaries.dot(mean, numbers=numbers) if dots is None else dots[numbers]
    scores[numbers] = mine
    hidden, dim, part = mean, len(mean), facts.contribution if known else 0.0
    energy = float(np.mean(weights * scores[present])) ** 2 if present else 0.0
    if has_canaries and energy > 0 and len(present) * energy >= SMALLEST_SHARE * square:
        if vectors is None:
            total = canaries.combine(weights[None], numbers=present)[0]
        else:
            given = facts.canary_weights().astype(vectors.dtype)
            total = np.asarray(given @ vectors)
        with_sum, added = canaries.dot(total, numbers=numbers), float(weights @ scores[present])
        left, rest, share = leave_others_out(
            scores[numbers], with_sum, own[numbers], square, added, norm(total) ** 2
        )
        hidden, length = mean - share * total, float(rest)
        scores[numbers] = math.sqrt(dim) / length * left
    elif has_canaries:
        length = float(hidden_norm(math.sqrt(square), part if present else 0.0))
        scores = shift_scores(scores / math.sqrt(square), dim)
    else:
        length, parts = math.sqrt(square), own * part
        whole = np.sqrt(square + 2 * parts * scores + parts**2)
        scores = shift_scores((scores + parts) / whole, dim)
    signals = math.sqrt(dim) * part / length * own if known else own
    return RoundScores(scores, signals, hidden)


_FACTS = ("contribution", "clip_norm", "replies", "absent")  # of `RoundFacts`
_LISTS = ("weights", "factor")  # of any length


class SeenRounds:
    """All rounds so far.

    Args:
        count: number of canaries that may take part.
    """

    def __init__(self, count: int) -> None:
        numbers: dict[str, tuple[int, ...]] = dict.fromkeys((*_FACTS, "update_norms"), ())
        each = dict.fromkeys(("presence", "scores", "signals"), (count,))
        self._shapes = {**numbers, "window": (), **each}
        self._rows: dict[str, list[Any]] = {name: [] for name in (*self._shapes, *_LISTS)}

    def __len__(self) -> int:
        return len(self._rows["presence"])

    def add(
        self, facts: RoundFacts, update_norm: float, scores: Floats, signals: Floats, row: Floats
    ) -> None:
        """Note a round.

        Args:
            facts: who took part, and how much each canary added.
            update_norm: norm of the model update.
            scores: ``(count,)``, whitened.
            signals: ``(count,)``, whitened.
            row: of the factor by which they were, see `Whitener.add`.
        """
        order = np.argsort(list(facts.present), kind="stable").astype(np.int64)
        presence = np.zeros(self._shapes["presence"], bool)
        presence[list(facts.present)] = True
        values = {
            **{name: getattr(facts, name) for name in _FACTS},
            "update_norms": update_norm,
            "window": len(row),
            "presence": presence,
            "scores": scores,
            "signals": signals,
            "weights": facts.canary_weights()[order],
            "factor": row,
        }
        for name, value in values.items():
            self._rows[name].append(value)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """What `add` was told of each round, ``(T, …)``; `_LISTS` one after the other."""
        if name in _LISTS:
            return np.concatenate([np.empty(0), *self._rows[name]])
        kinds = {"presence": np.bool_, "window": np.int64}
        rows: NDArray[Any] = np.array(self._rows[name], kinds.get(name, np.float64))
        return rows.reshape(len(self), *self._shapes[name])

    def last(self, name: str, count: int) -> Floats:
        """The last rows of "scores" or "signals", at most ``count``."""
        rows = self._rows[name]
        found = np.array(rows[max(len(rows) - count, 0) :], np.float64)
        return found.reshape(-1, *self._shapes[name])

    @property
    def factor(self) -> list[Floats]:
        """The rows of the factor, see `RoundCorrelation.of`."""
        return self._rows["factor"]

    def mechanism(self, server: ServerSGD | str, ids: NDArray[np.int64]) -> Mechanism:
        """As far as rounds show it; the canaries ``ids`` are the observed ones."""
        if isinstance(server, ServerSGD):
            rates = np.full(len(self), server.learning_rate)
            step = ServerStep("sgd", rates, server.momentum)
        else:
            step = ServerStep(server)
        replies = self["replies"]
        replies = replies[np.isfinite(replies)]
        presence = self["presence"]
        weights = np.ones(presence.shape)
        weights[presence] = self["weights"]
        return Mechanism(
            cohort_size=float(replies.mean()) if len(replies) else math.nan,
            noise_multiplier=None,
            sum_noise_multiplier=None,
            participation="deployment",
            canary_participations=float(presence.sum() / max(1, len(ids))),
            server=step,
            clip_norms=self["clip_norm"],
            contributions=self["contribution"],
            canary_weights=None if np.all(weights == 1) else weights[:, ids],
        )

    def running(self, ids: NDArray[np.int64], planned: float | None) -> RunningScores:
        """What `epsilon_by_round` needs of the canaries ``ids``."""
        scores, signals = (self[name].take(ids, axis=1) for name in ("scores", "signals"))
        return RunningScores(scores, signals, planned)

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
        lengths = {
            "weights": state["presence"].astype(bool).sum(axis=1),
            "factor": state["window"].astype(np.int64),
        }
        for name, each in lengths.items():
            value, whole = state[name], int(each.sum())
            if value.shape != (whole,) or np.any(each < 0):
                raise_invalid(f"{name}.shape", value.shape, f"to be {(whole,)}")
            ends = np.cumsum(each, dtype=np.int64)[:-1]
            self._rows[name] = np.split(value.astype(np.float64), ends)[:rounds]
        for name in ("scores", "signals", "factor", "weights"):
            if not np.all(np.isfinite(state[name])):
                raise ValueError(f"Expected {name} to be finite.")
        for name in self._shapes:
            self._rows[name] = list(state[name][:rounds])

    def scored(self) -> list[tuple[NDArray[np.bool_], Floats, Floats]]:
        """Of each round who took part, and the whitened scores and signals."""
        rows = self._rows
        return list(zip(rows["presence"], rows["scores"], rows["signals"], strict=True))
