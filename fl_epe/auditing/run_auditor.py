"""`RunAuditor`: audits any training of which you see the model after every round.

Call `begin` with the initial model, `observe` after every round with the new model and the canaries
that took part, and `record` at the end. No framework is needed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.epsilon_estimate import EpsilonEstimate
from fl_epe.auditing.estimators import shift_estimate, shift_of_epsilon
from fl_epe.auditing.measured_null import NullTally, scorer_with_null
from fl_epe.auditing.other_canaries import SMALLEST_SHARE, alone_square, take_out
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.record_from_scorer import record_from_scorer
from fl_epe.auditing.record_parts import ClientLog, Mechanism, Provenance, installed_versions
from fl_epe.auditing.round_agreement import RoundAgreement
from fl_epe.auditing.sequential import UNPLANNED, WatchedMean
from fl_epe.auditing.shifted_cosines import hidden_norm, shift_scores
from fl_epe.canaries import SCORE_MEMORY, CanaryKind, CanaryScorer, CanarySet
from fl_epe.checks import check_positive, check_probability
from fl_epe.mechanism import ServerSGD, norm

Vector = NDArray[np.floating]
Floats = NDArray[np.float64]

PLAN_MARGIN = 1.1  # of the planned information, as rounds differ a little in what they show

WATCHED = "matched filter so far, interval valid at every round at once"
"""The method of a `RunningEstimate`."""

_NUMBERS = ("contribution", "clip_norm", "replies", "absent")  # of `RoundFacts`


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


class RunningEstimate:
    """ε so far, for an adversary who sees every round's model and knows who took part when.

    The matched filter of `epsilon_from_record`, for the rounds so far; it costs one inner product
    for each canary that takes part in a round, and one more where the other canaries of the round
    have to be taken out. Where canaries take part several times and the means of their rounds
    agree, scores are wider than N(0, 1) and are divided by their width (`RoundAgreement`).

    Its interval is a confidence sequence and may be watched: with the stated probability the
    intervals of *all* rounds hold. They are for the κ of `footprint_fit`, which in a round of
    weight a moves the expected score to κ·a; if κ changes, for its mean over the participations so
    far. See docs/notes/watching.md.

    Args:
        canaries: all of them.
        server: as in `RunAuditor`.
        planned: participations of all canaries together that the run is planned for, at which the
            intervals are tightest; ``None`` if nobody knows. It is no promise.
        null: follows canaries beyond those, if the products with them are handed to `note`.
    """

    def __init__(
        self,
        canaries: CanarySet,
        server: ServerSGD | str,
        planned: float | None = None,
        null: NullTally | None = None,
    ) -> None:
        if planned is not None:
            check_positive("planned", planned)
        self._canaries = canaries
        self._server = server
        self._planned = planned
        self.null = null
        self._unit = 0.0  # information of the first participation
        self._variance = self._first = 0.0  # of the total, and of its first participation
        self._velocity: Vector = np.zeros(canaries.dim, np.float32)
        self._total, self._energy = np.zeros(len(canaries)), np.zeros(len(canaries))
        self._agreement = RoundAgreement(canaries.dim, len(canaries))
        self._sketch = self._agreement.nothing()

    def add(self, delta: Vector, facts: RoundFacts, vectors: Vector | None = None) -> Vector:
        """Score those who took part in a round that moved the model by ``delta``.

        Returns:
            The mean that the server turned into ``delta``, as far as that can be undone.
        """
        mean = self.undo(delta)
        self.note(mean, facts, vectors)
        return mean

    def undo(self, delta: Vector) -> Vector:
        """The mean that the server turned into ``delta``, the next one after those before."""
        if not isinstance(self._server, ServerSGD):
            return delta
        self._velocity, mean = self._server.undo(self._velocity, delta)
        return mean

    def note(
        self,
        mean: Vector,
        facts: RoundFacts,
        vectors: Vector | None = None,
        dots: Floats | None = None,
    ) -> None:
        """Score those who took part in a round.

        Args:
            mean: released in it, shape ``(dim,)``.
            facts: of the round.
            vectors: as in `RunAuditor.observe`.
            dots: inner products of all canaries with the mean, and of those that `null` follows,
                if they are known.
        """
        length, present = norm(mean), list(facts.present)
        self._sketch = self._agreement.nothing()
        if present and length > 0:
            mine = dots[present] if dots is not None else self._dot(mean, present, vectors)
            others = dots[len(self._canaries) :] / length if dots is not None else None
            weights = facts.canary_weights()
            shared = self._shared(mine, length, present, vectors, weights)
            cosines, hidden = mine / length, mean
            if shared is not None:
                cosines, length, hidden = self._alone(
                    mean, mine, length, shared, present, vectors, weights
                )
            dim, own = len(mean), facts.contribution
            known = math.isfinite(own)
            signal = math.sqrt(dim) * own / float(hidden_norm(length, own)) if known else 1.0
            signals = signal * weights if known else np.ones(len(present))
            gains = signals * shift_scores(cosines, dim)
            self._total[present] += gains
            self._energy[present] += signals**2
            self._unit = self._unit or signal**2
            self._note_variance(gains, signals**2)
            if (left := norm(hidden)) > 0:
                self._sketch = self._agreement.sketch(hidden) * (signal / left)
                self._agreement.add(self._sketch, present)
            if self.null is not None and others is not None:
                self.null.add_round(math.sqrt(dim) * others, present, signal)

    def _note_variance(self, gains: Floats, squares: Floats) -> None:
        """What a round adds to the variance of the total.

        The length of what hides its canaries moves all their scores together. Its relative
        variance is at most 1/(2d), as of noise alone (`score_spread.mean_spread`).
        """
        moved = float(gains.sum()) ** 2 / (2 * self._canaries.dim)
        variance = float(squares.sum()) + moved
        self._variance += variance
        self._first = self._first or variance / len(gains)

    def _dot(self, x: Vector, present: list[int], vectors: Vector | None) -> Floats:
        if vectors is None:
            return self._canaries.dot(x, numbers=present)
        return np.asarray(vectors @ x, np.float64)

    def _shared(
        self,
        dots: Floats,
        length: float,
        present: list[int],
        vectors: Vector | None,
        weights: Floats,
    ) -> Vector | None:
        """Sum of the round's canaries; ``None`` if they have no share of the mean to speak of."""
        if len(present) * np.mean(weights * dots) ** 2 < SMALLEST_SHARE * length**2:
            return None
        if vectors is not None:
            return np.asarray(weights.astype(vectors.dtype) @ vectors)
        return np.asarray(self._canaries.combine(weights[None], numbers=present)[0])

    def _alone(
        self,
        mean: Vector,
        dots: Floats,
        length: float,
        total: Vector,
        present: list[int],
        vectors: Vector | None,
        weights: Floats,
    ) -> tuple[Floats, float, Vector]:
        """Cosines with the mean less the other canaries, its expected norm, and it without any.

        The same as `without_others` does with a record.
        """
        shared = length**2, float(weights @ dots), norm(total) ** 2
        hidden = mean - (shared[1] / shared[2]) * total
        if (len(present) - 1) * np.mean(weights * dots) ** 2 < SMALLEST_SHARE * length**2:
            return dots / length, length, hidden
        left, squares = take_out(dots, self._dot(total, present, vectors), weights, *shared)
        return left / np.sqrt(squares), math.sqrt(alone_square(*shared, 1.0)), hidden

    @property
    def sums(self) -> NDArray[np.float64]:
        """Sum of the signals times scores, and of the squared signals, shape ``(2, count)``."""
        return np.stack([self._total, self._energy])

    @property
    def unit(self) -> float:
        """Information of the first participation, by which the plan is measured; 0 before it."""
        return self._unit

    def recount(self, rounds: Iterable[NDArray[np.float64]]) -> None:
        """Set `variance` from what each round added to `sums`, each of shape ``(2, present)``."""
        self._variance = self._first = 0.0
        for gains, squares in rounds:
            if np.any(squares):
                self._note_variance(gains, squares)

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance of the total, and that of the first participation, shape ``(2,)``."""
        return np.array([self._variance, self._first])

    @property
    def sketch(self) -> NDArray[np.float64]:
        """Of the last round's mean, from which `restore` learns how rounds agree."""
        return self._sketch

    def restore(
        self,
        sums: NDArray[np.float64],
        unit: float,
        velocity: Vector | None = None,
        *,
        variance: NDArray[np.float64] | None = None,
        rounds: Iterable[tuple[NDArray[np.float64], Sequence[int]]] = (),
    ) -> None:
        """Go on from rounds before.

        What was shown of rounds that are forgotten is not among the intervals that hold together.

        Args:
            sums: their `sums`.
            unit: their `unit`.
            velocity: of the server after them; 0 by default.
            variance: their `variance`; by default as if canaries did not overlap.
            rounds: the `sketch` of each and who took part; without it they count as rounds that
                do not agree with any other.
        """
        self._total, self._energy = sums.astype(np.float64)
        self._unit = unit
        pair = np.array([self._energy.sum(), unit]) if variance is None else variance
        self._variance, self._first = pair.tolist()
        for sketch, present in rounds:
            self._agreement.add(sketch, present)
        if velocity is not None:
            self._velocity = velocity

    def watched(self, confidence: float = 0.95) -> WatchedMean | None:
        """κ so far, with its confidence sequence; ``None`` before two canaries took part."""
        if np.count_nonzero(self._energy) < 2:
            return None
        length = UNPLANNED if self._planned is None else PLAN_MARGIN * self._planned
        energy = float(self._energy.sum())
        width = self._agreement.width(energy)
        return WatchedMean(
            float(self._total.sum()) / width.value,
            energy,
            length * self._first,
            planned=self._planned is not None,
            confidence=confidence,
            variance=self._variance,
            width=width,
        )

    def epsilon(self, delta: float, confidence: float = 0.95) -> EpsilonEstimate | None:
        """The estimate at ``delta``; ``None`` before two canaries took part.

        The estimate is that of a report's matched filter, and its interval holds at every round at
        once, where that of the report is for one look at the end.
        """
        watched = self.watched(confidence)
        if watched is None:
            return None
        seen = self._energy > 0
        roots = np.sqrt(self._energy[seen])
        shift = float(np.mean(self._total[seen] / roots)) / watched.width.value
        low, high = (end * float(roots.mean()) for end in watched.interval())
        ends = min(low, shift), max(high, shift)  # footprints may differ
        method = WATCHED if watched.width.value == 1 else f"{WATCHED}, measured width"
        return shift_estimate(shift, ends, delta, confidence, method)

    def more_canaries(self, epsilon: float, delta: float, confidence: float = 0.95) -> float:
        """How many participations more would show that ε exceeds ``epsilon``, or that it does not.

        If the mean and the footprints stay as they are; 0 if it is shown already, infinite if it
        never will be, or nothing is known yet.
        """
        watched = self.watched(confidence)
        if watched is None:
            return math.inf
        footprint = float(np.sqrt(self._energy[self._energy > 0]).mean())
        target = shift_of_epsilon(epsilon, delta) / footprint
        more = min(watched.more_until_above(target), watched.more_until_below(target))
        return more / self._unit


class RunAuditor:
    """Scores canaries against every round's model delta, and keeps what an `AuditRecord` needs.

    Canaries 0 … ``canaries`` − 1 may take part, the ``unobserved`` ones after them never do. The
    models are flat vectors of shape ``(dim,)``; the first one's length is the canaries' dimension.

    Args:
        num_canaries: number of canaries that may take part, at least 2.
        unobserved: number of canaries that are only scored.
        seed: of the canaries.
        delta: target δ.
        server: what the server does with the mean of the updates: SGD with a learning rate and
            momentum, which the audit undoes, or the name of an optimizer that it cannot undo.
        score_memory: bytes for vectors that wait to be scored together.
        planned: as in `RunningEstimate`.
        kind: of the canaries, see `CanarySet`.

    Raises:
        ValueError: for an argument out of range.
    """

    def __init__(
        self,
        num_canaries: int,
        unobserved: int,
        *,
        seed: int,
        delta: float,
        server: ServerSGD | str = ServerSGD(),  # noqa: B008 - frozen
        score_memory: int = SCORE_MEMORY,
        planned: float | None = None,
        kind: CanaryKind = "rotation",
    ) -> None:
        if planned is not None:
            check_positive("planned", planned)
        for name, value, least in (
            ("num_canaries", num_canaries, 2),
            ("unobserved", unobserved, 0),
        ):
            if value < least:
                raise ValueError(f"Expected {name}={value} >= {least}.")
        check_probability("delta", delta)
        self.delta = delta
        self._seed = seed
        self._count, self._unobserved = num_canaries, unobserved
        self._server = server
        self._bytes = score_memory
        self._kind: CanaryKind = kind
        self._planned = planned
        self._scorer: CanaryScorer | None = None
        self._start: Vector = np.empty(0)
        self._last: Vector = np.empty(0)
        self._running: RunningEstimate | None = None
        self._facts: list[RoundFacts] = []
        self._gains: list[NDArray[np.float64]] = []  # of each round, to `RunningEstimate.sums`
        self._sketches: list[NDArray[np.float64]] = []  # of each round

    @property
    def rounds(self) -> int:
        """Rounds seen so far."""
        return len(self._facts)

    @property
    def canaries(self) -> CanarySet:
        """All canaries, observed and unobserved.

        Raises:
            ValueError: before `begin`.
        """
        return self._started()[0].canaries

    def learn_server(self, server: ServerSGD) -> None:
        """Note what the server turned out to do with each mean, where it was not known before.

        Raises:
            ValueError: if it makes another mean of the deltas that were seen.
        """
        if isinstance(self._server, ServerSGD) and self._server != server:
            raise ValueError(f"Expected server={server} to be {self._server}.")
        if server != ServerSGD():  # deltas were scored as means
            raise ValueError(f"Expected server={server} to be {ServerSGD()}.")
        self._server = server

    def begin(self, theta: Vector) -> None:
        """Note the initial model, shape ``(dim,)``; rounds follow.

        Raises:
            ValueError: if it has begun already, or the model is not a finite vector.
        """
        if self._scorer is not None:
            raise ValueError(f"Expected a new RunAuditor: this one has seen {self.rounds} rounds.")
        if theta.ndim != 1 or not math.isfinite(norm(theta)):
            raise ValueError(f"Expected theta.shape={theta.shape} to be (dim,), and finite.")
        canaries = CanarySet(len(theta), self._count + self._unobserved, self._seed, self._kind)
        self._scorer = scorer = scorer_with_null(canaries, self._bytes)
        null = NullTally(self._count, scorer.others) if scorer.others else None
        self._running = RunningEstimate(canaries, self._server, self._planned, null)
        self._start = self._last = theta

    def observe(
        self, theta: Vector | None, facts: RoundFacts, vectors: Vector | None = None
    ) -> None:
        """Note a round.

        Args:
            theta: the model after the round; ``None`` if the round was lost and the model stayed,
                in which case nobody counts as present.
            facts: who took part, and how much each canary added.
            vectors: the canaries of ``facts.present``, shape ``(K, dim)``, if they are at hand;
                else they are made again.

        Raises:
            ValueError: before `begin`, or for a model of another shape or that is not finite.
            IndexError: if a canary id is not in the set.
        """
        scorer, running = self._started()
        if not facts.present and math.isnan(facts.contribution):
            facts = dataclasses.replace(facts, contribution=0.0)  # nobody added anything
        before = running.sums
        if theta is None:
            facts = dataclasses.replace(facts, present=(), contribution=0.0)
            delta = mean = np.zeros_like(self._last)
        else:
            if theta.shape != self._last.shape:
                raise ValueError(f"Expected theta.shape={theta.shape} to be {self._last.shape}.")
            if bad := [i for i in facts.present if not 0 <= i < self._count]:
                raise IndexError(f"Expected present={bad[0]} in [0, num_canaries={self._count}).")
            delta = theta - self._last
            mean = running.undo(delta)
            self._last = theta
        dots = scorer.add("mean", mean)
        if theta is not None:
            running.note(mean, facts, vectors, dots)
        if self._two_series():
            dots = scorer.add("delta", delta)
        if running.null is not None and dots is not None:
            running.null.add_delta(dots[len(scorer.canaries) :], norm(delta), len(delta))
        self._facts.append(facts)
        self._gains.append((running.sums - before)[:, list(facts.present)])
        self._sketches.append(running.sketch if theta is not None else 0 * running.sketch)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Named arrays from which `restore` goes on: a number for each canary and round.

        Vectors that wait are scored first; the models are not among them.

        Raises:
            ValueError: before `begin`.
        """
        scorer, running = self._started()
        ids = [np.array(list(facts.present), np.int64) for facts in self._facts]
        nothing = np.empty((2, 0))
        return {
            **{name: self._column(name) for name in _NUMBERS},
            "ends": np.cumsum([len(numbers) for numbers in ids], dtype=np.int64),
            "present": np.concatenate([np.empty(0, np.int64), *ids]),
            "weights": np.concatenate([np.empty(0), *(f.canary_weights() for f in self._facts)]),
            "gains": np.concatenate([nothing, *self._gains], axis=1),
            "sketches": np.array(self._sketches, np.float32),
            **scorer.scored(self._series()),
            **({} if running.null is None else running.null.state()),
        }

    def restore(
        self,
        state: Mapping[str, NDArray[Any]],
        rounds: int,
        *,
        start: Vector,
        last: Vector,
        velocity: Vector | None = None,
    ) -> None:
        """Go on from the first ``rounds`` of the rounds in a `state`; takes the place of `begin`.

        Args:
            state: what `state` returned, of an auditor with the same arguments.
            rounds: how many of its rounds count; later ones are forgotten.
            start: the initial model, shape ``(dim,)``.
            last: the model after those rounds.
            velocity: of the server's momentum after those rounds; 0 by default.

        Raises:
            ValueError: if it has begun already, or the state does not fit.
        """
        lengths = {name: len(state[name]) for name in (*_NUMBERS, "ends")}
        if not 0 <= rounds <= min(lengths.values()) or len(set(lengths.values())) > 1:
            raise ValueError(f"Expected rounds={rounds} within the rounds of the state, {lengths}.")
        ends = np.concatenate([[0], state["ends"][:rounds]])
        ids, gains = state["present"][: ends[-1]], state["gains"][:, : ends[-1]]
        if len(ids) < ends[-1] or np.any(np.diff(ends) < 0) or gains.shape != (2, len(ids)):
            raise ValueError(f"Expected ends={ends} to be those of present and gains, {len(ids)}.")
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._count:
            raise ValueError(f"Expected present in [0, num_canaries={self._count}).")
        self.begin(start)
        scorer, running = self._started()
        scorer.go_on({name: state[name] for name in scorer.names_of(self._series())}, rounds)
        sums = np.zeros((2, self._count + self._unobserved))
        for row, gain in zip(sums, gains, strict=True):
            np.add.at(row, ids, gain)
        if running.null is not None:  # rounds that are forgotten stay in it: they are null as well
            running.null.restore(state)
        parts = [slice(*pair) for pair in itertools.pairwise(ends)]
        # Earlier versions kept no sketches.
        empty = np.zeros((rounds, len(running.sketch)), np.float32)
        sketches = np.asarray(state.get("sketches", empty))[:rounds].astype(np.float64)
        if rounds and sketches.shape != empty.shape:
            raise ValueError(f"Expected sketches.shape={sketches.shape} to be {empty.shape}.")
        seen = [(row, ids[part].tolist()) for row, part in zip(sketches, parts, strict=True)]
        loud = gains[1][gains[1] > 0]
        unit = float(loud[0]) if len(loud) else 0.0
        running.restore(sums, unit, velocity, rounds=seen)
        running.recount([gains[:, part] for part in parts])
        self._sketches = list(sketches)
        self._gains = [gains[:, part] for part in parts]
        columns = [state[name][:rounds].tolist() for name in _NUMBERS]
        weights = np.asarray(state.get("weights", np.ones(len(ids))), np.float64)[: len(ids)]
        if len(weights) < len(ids) or not np.all(np.isfinite(weights)):
            raise ValueError(f"Expected weights={weights} to be those of present, {len(ids)}.")
        self._facts = [
            RoundFacts(
                ids[part].tolist(),
                contribution,
                clip_norm,
                replies,
                int(absent),
                _unequal(weights[part]),
            )
            for part, contribution, clip_norm, replies, absent in zip(parts, *columns, strict=True)
        ]
        self._last = last

    def _series(self) -> list[str]:
        return ["mean", "delta"] if self._two_series() else ["mean"]

    def _two_series(self) -> bool:
        """With momentum the deltas are other vectors than the means."""
        return isinstance(self._server, ServerSGD) and self._server.momentum > 0

    def epsilon_so_far(self, confidence: float = 0.95) -> EpsilonEstimate | None:
        """See `RunningEstimate.epsilon`; at the target δ."""
        return None if self._running is None else self._running.epsilon(self.delta, confidence)

    def record(self, **facts: Any) -> AuditRecord:
        """What the run leaves behind so far; every canary is scored against every round.

        A canary that has never taken part counts as unobserved. A record of fewer than two that
        have is valid, and has no ε: see `fl_epe.auditing.NotMeasured`.

        Args:
            facts: fields of a record that the models do not show, by their names in
                `AuditRecord.by_name`: ``noise_multiplier``, ``participation``, ``metrics``,
                ``config`` and so on.

        Raises:
            ValueError: before `begin`.
        """
        scorer, running = self._started()
        presence = np.zeros((self.rounds, self._count), bool)
        for row, round_facts in zip(presence, self._facts, strict=True):
            row[list(round_facts.present)] = True
        weights = np.ones_like(presence, np.float64)
        for row, round_facts in zip(weights, self._facts, strict=True):
            row[list(round_facts.present)] = round_facts.canary_weights()
        seen = np.flatnonzero(presence.any(axis=0))
        record = record_from_scorer(
            scorer,
            seen,
            start=self._start,
            final=self._last,
            delta_norms=self._delta_norms(scorer),
            delta_series="delta" if isinstance(self._server, ServerSGD) else "mean",
            presence=presence[:, seen],
            delta=self.delta,
            mechanism=dataclasses.replace(
                self._mechanism(float(presence.sum() / max(1, len(seen)))),
                canary_weights=None if np.all(weights == 1) else weights[:, seen],
            ),
            clients=ClientLog(absent=self._column("absent").astype(np.int64)),
            metrics={},
            provenance=Provenance(
                seeds={"canary": self._seed}, canary_kind=self._kind, versions=installed_versions()
            ),
            null=running.null,
        )
        return record.with_values(**facts)

    def _column(self, name: str) -> NDArray[np.float64]:
        return np.array([getattr(facts, name) for facts in self._facts], np.float64)

    def _mechanism(self, participations: float) -> Mechanism:
        server: dict[str, Any] = {"name": self._server}
        if isinstance(self._server, ServerSGD):
            server = {"name": "sgd", **dataclasses.asdict(self._server)}
        replies = self._column("replies")
        known = replies[np.isfinite(replies)]
        return Mechanism(
            cohort_size=float(known.mean()) if len(known) else math.nan,
            noise_multiplier=None,
            sum_noise_multiplier=None,
            participation="deployment",
            canary_participations=participations,
            server=server,
            clip_norms=self._column("clip_norm"),
            contributions=self._column("contribution"),
        )

    def _delta_norms(self, scorer: CanaryScorer) -> NDArray[np.float64]:
        if self._two_series():
            return scorer.norms("delta")
        rate = self._server.learning_rate if isinstance(self._server, ServerSGD) else 1.0
        return scorer.norms("mean") * rate

    def _started(self) -> tuple[CanaryScorer, RunningEstimate]:
        if self._scorer is None or self._running is None:
            raise ValueError("Expected begin(theta) with the initial model first.")
        return self._scorer, self._running


def _unequal(weights: Floats) -> Sequence[float]:
    """None where all are 1."""
    return () if np.all(weights == 1) else weights.tolist()
