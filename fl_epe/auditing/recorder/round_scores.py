"""Rounds of a `RunAuditor`: what is known about each, its canaries' scores, and the record of all.

Each canary is scored against noise and clients, with the other canaries out, as `View.round_scores`
does for a record, while the round's vectors are at hand.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fl_epe.auditing.record import (
    AuditRecord,
    CanaryCosines,
    Mechanism,
    Norms,
    Residual,
    ServerStep,
    quotients,
)
from fl_epe.auditing.scoring import (
    SMALLEST_SHARE,
    hidden_norm,
    leave_others_out,
    measure_others,
    shift_scores,
)
from fl_epe.canaries import CanaryScorer, CanarySet
from fl_epe.checks import Floats, Integers, NamedArrays, Vector, raise_invalid
from fl_epe.mechanism import ServerSGD, norm
from fl_epe.schedules import ParticipationLaw

OTHERS = "others"  # name of released means without canaries, in the place of "mean"

_LARGEST = (
    1e30  # a model beyond overflows in float32 where it is scored: as good as infinite
)


@dataclasses.dataclass(frozen=True)
class RoundFacts:
    """What is known about a round besides its models.

    Attributes:
        present: numbers of the canaries that took part.
        contribution: norm of what a client of median weight that takes part adds to the released
            mean, also in a round without canaries; NaN if not known.
        clip_norm: clip norm of the round; NaN where nothing clips.
        replies: how many updates the mean is over, canaries included.
        absent: clients and canaries whose update was lost.
        weights: how many times ``contribution`` each of the canaries adds; empty if each adds it
            once.
    """

    present: Collection[int] = ()
    contribution: float = math.nan
    clip_norm: float = math.nan
    replies: float = math.nan
    absent: int = 0
    weights: Sequence[float] = ()

    def canary_weights(self) -> Floats:
        """One number for each that is present."""
        return np.asarray(
            self.weights if len(self.weights) else [1.0] * len(self.present)
        )


def score_round(
    canaries: CanarySet,
    count: int,
    mean: Vector,
    facts: RoundFacts,
    dots: Floats | None = None,
    vectors: Vector | None = None,
    has_canaries: bool = True,
    everybody: bool = True,
) -> tuple[Floats, Floats, Residual | None]:
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
        everybody: whether to score those that are not present, too, as rounds are whitened. Then
            canaries are projected out however little they added, in a model of few parameters:
            those that stayed in would be part of the estimated correlations, which lowers their
            scores by the part that the rounds are of the dimension.

    Returns:
        Scores of the canaries that may take part, N(0, 1) without their own part, and their means:
        what each added, or in proportion where that is not known. Both have the shape ``(count,)``.
        Then the residual; ``None`` if nothing was released.
    """
    square = norm(mean) ** 2
    present = sorted(facts.present)
    scores, own, signals = np.zeros((3, count))
    residual = Residual(mean)
    if not square > 0:
        return scores, signals, None
    own[list(facts.present)] = facts.canary_weights()
    weights = own[present]
    known = math.isfinite(facts.contribution)
    numbers = list(range(count)) if everybody else present
    scores[numbers] = (
        canaries.dot(mean, numbers=numbers) if dots is None else dots[numbers]
    )
    dim = len(mean)
    part = facts.contribution if known else 0.0
    along = float(weights @ scores[present])  # the sum of the canaries
    energy = along**2 / float(weights @ weights) if present else 0.0
    least = 0.0 if everybody and dim <= _FEW_PARAMETERS else SMALLEST_SHARE * square
    if has_canaries and energy > 0 and energy >= least:
        if vectors is None:
            total = canaries.combine(weights[None], numbers=present)[0]
        else:
            total = facts.canary_weights().astype(vectors.dtype) @ vectors
        with_sum = canaries.dot(total, numbers=numbers)
        left, rest, share = leave_others_out(
            scores[numbers], with_sum, own[numbers], square, along, norm(total) ** 2
        )
        residual = Residual(mean, total, float(share))
        length = float(rest)
        scores[numbers] = math.sqrt(dim) / length * left
    elif has_canaries:
        length = float(hidden_norm(math.sqrt(square), part if present else 0.0))
        scores = shift_scores(scores / math.sqrt(square), dim)
    else:
        length = math.sqrt(square)
        parts = own * part
        whole = np.sqrt(square + 2 * parts * scores + parts**2)
        scores = shift_scores((scores + parts) / whole, dim)
    signals = math.sqrt(dim) * part / length * own if known else own
    return scores, signals, residual


_FEW_PARAMETERS = 100_000  # more rounds than a hundredth of that are not followed
_FACTS = ("contribution", "clip_norm", "replies", "absent")  # of `RoundFacts`


class SeenRounds:
    """All rounds so far.

    Args:
        count: number of canaries that may take part.
    """

    def __init__(self, count: int) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {
            **dict.fromkeys((*_FACTS, "update_norms", "window"), ()),
            **dict.fromkeys(("presence", "scores", "signals", "weights"), (count,)),
        }
        self._rows: dict[str, list[Any]] = {
            name: [] for name in (*self._shapes, "factor")
        }

    def __len__(self) -> int:
        return len(self._rows["presence"])

    def add(
        self,
        facts: RoundFacts,
        update_norm: float,
        scores: Floats,
        signals: Floats,
        row: Floats,
    ) -> None:
        """Note a round.

        Args:
            facts: who took part, and how much each canary added.
            update_norm: norm of the model update.
            scores: ``(count,)``, whitened.
            signals: ``(count,)``, whitened.
            row: of the factor by which they were, see `Whitener.add`.
        """
        present = list(facts.present)
        presence = np.zeros(len(scores), bool)
        weights = np.ones(len(scores))
        presence[present] = True
        weights[present] = facts.canary_weights()
        values = {
            **{name: getattr(facts, name) for name in _FACTS},
            "update_norms": update_norm,
            "window": len(row),
            "presence": presence,
            "scores": scores,
            "signals": signals,
            "weights": weights,
            "factor": row,
        }
        for name, value in values.items():
            self._rows[name].append(value)

    def __getitem__(self, name: str) -> np.ndarray:
        """What `add` was told of each round, ``(T, …)``; the factor's rows one after the other."""
        if name == "factor":
            return np.concatenate([np.empty(0), *self._rows[name]])
        kinds = {"presence": np.bool_, "window": np.int64}
        rows: np.ndarray = np.array(self._rows[name], kinds.get(name, np.float64))
        return rows.reshape(len(self), *self._shapes[name])

    def last(self, name: str, count: int) -> Floats:
        """The last rows of "scores" or "signals", at most ``count``."""
        rows = self._rows[name][max(len(self) - count, 0) :]
        return np.array(rows, np.float64).reshape(-1, *self._shapes[name])

    @property
    def factor(self) -> list[Floats]:
        """The rows of the factor, see `RoundCorrelation.of`."""
        return self._rows["factor"]

    def mechanism(
        self, server: ServerSGD | str, ids: Integers, client: ParticipationLaw | None
    ) -> Mechanism:
        """As far as rounds show it; the canaries ``ids`` are the observed ones."""
        if isinstance(server, ServerSGD):
            step = ServerStep(
                "sgd", np.full(len(self), server.learning_rate), server.momentum
            )
        else:
            step = ServerStep(server)
        replies, presence, weights = self["replies"], self["presence"], self["weights"]
        replies = replies[np.isfinite(replies)]
        return Mechanism(
            cohort_size=float(replies.mean()) if len(replies) else math.nan,
            noise_multiplier=None,
            sum_noise_multiplier=None,
            participation=(client or ParticipationLaw(len(self))).in_record(),
            canary_participations=float(presence.sum() / max(1, len(ids))),
            server=step,
            clip_norms=self["clip_norm"],
            contributions=self["contribution"],
            canary_weights=None if np.all(weights == 1) else weights[:, ids],
        )

    def state(self) -> NamedArrays:
        """Named arrays, from which `restore` goes on."""
        return {name: self[name] for name in self._rows}

    def restore(self, state: NamedArrays, rounds: int) -> None:
        """Take up the first ``rounds`` rounds in what `state` returned, among other arrays.

        Raises:
            ValueError: if it does not fit.
        """
        seen = len(state["presence"])
        if not 0 <= rounds <= seen:
            raise_invalid(
                "rounds", rounds, f"to be from 0 to {seen}, the rounds of the state"
            )
        for name, shape in self._shapes.items():
            value = state[name]
            if value.shape != (seen, *shape) or value.dtype.kind not in "bif":
                raise_invalid(
                    f"{name}.shape", value.shape, f"to be {(seen, *shape)}, of numbers"
                )
            self._rows[name] = list(value[:rounds])
        each = state["window"].astype(np.int64)
        factor = state["factor"]
        if factor.shape != (int(each.sum()),) or np.any(each < 0):
            raise_invalid("factor.shape", factor.shape, f"to be {(int(each.sum()),)}")
        ends = np.cumsum(each, dtype=np.int64)[:-1]
        self._rows["factor"] = np.split(factor.astype(np.float64), ends)[:rounds]
        for name in ("scores", "signals", "factor", "weights"):
            if not np.all(np.isfinite(state[name])):
                raise ValueError(f"Expected {name} to be finite.")


def record_from_scorer(
    scorer: CanaryScorer,
    observed_ids: Integers,
    *,
    start: Vector,
    final: Vector,
    delta_norms: Floats,
    delta_series: str = "delta",
    released: str = "mean",
    values: Mapping[str, Any] | None = None,
    **fields: Any,
) -> AuditRecord:
    """Score the final model, and collect all cosines and norms.

    The ``scorer`` has scored what was ``released``, means or (`OTHERS`) means without canaries, and
    where they are known "residual" and the model updates, whose series is ``delta_series`` and
    whose norms are ``delta_norms``. Of its canaries those of ``observed_ids`` took part; the others
    are unobserved. ``start`` and ``final`` are the initial and the final model; ``fields`` are the
    other fields of `AuditRecord`, and ``values`` those that are known better, by name
    (`AuditRecord.with_values`): canaries are projected out by them.

    A run without rounds, without canaries that took part, or with a final model that is not finite
    has a record too. Norms of such a model, and cosines with it, are NaN.
    """
    known = norm(final) < _LARGEST
    count = scorer.canaries.count
    if known:
        scorer.add("final", final)
        scorer.add("displacement", final, start)
    series = ("final", "displacement", delta_series, "residual")
    cosines = {name: scorer.cosines(name) for name in series if len(scorer.norms(name))}
    cosines["mean"] = scorer.cosines(released)  # of no rows without a round
    lengths = {name: float(scorer.norms(name)[-1]) for name in series[:2] if known}
    if not known:
        cosines |= dict.fromkeys(series[:2], np.full((1, count), np.nan))
        lengths = dict.fromkeys(series[:2], math.nan)
    residuals = scorer.norms("residual")

    def side(ids: Integers) -> CanaryCosines:
        mine = {name: values[..., ids] for name, values in cosines.items()}
        return CanaryCosines(
            means=mine["mean"],
            final=mine["final"][
                -1
            ],  # a record in the middle of the run scored others before
            displacement=mine["displacement"][-1],
            deltas=mine.get(delta_series),
            residuals=mine.get("residual"),
            ids=ids,
        )

    record = AuditRecord(
        dim=scorer.canaries.dim,
        observed=side(observed_ids),
        unobserved=side(np.setdiff1d(np.arange(count), observed_ids)),
        norms=Norms(
            means=scorer.norms(released),
            deltas=delta_norms,
            final=lengths["final"],
            displacement=lengths["displacement"],
            residuals=residuals if len(residuals) else None,
        ),
        **fields,
    )
    record = measure_others(record.with_values(**(values or {})), scorer.canaries)
    return _with_own(record) if released == OTHERS else record


def _with_own(record: AuditRecord) -> AuditRecord:
    """The record of means without canaries, with each canary's own part in its rounds.

    All other canaries are known, so that nothing of them is left: `Norms.sums` is 0.
    """
    norms = record.norms.means
    added = record.mechanism.added
    dots = record.observed.means * norms[:, None]
    own = record.presence * added[:, None]
    lengths = np.sqrt(norms[:, None] ** 2 + 2 * own * dots + own**2)
    means = quotients(dots + own, lengths)
    here = (norms > 0) | record.presence.any(axis=1)
    alone = np.where(here, np.hypot(norms, added), 0.0)
    values = {
        "observed.means": means,
        "observed.deltas": means,
        "norms.means": alone,
        "norms.deltas": quotients(record.norms.deltas, norms) * alone,
        "norms.sums": np.zeros(record.rounds),
    }
    return record.with_values(
        **values, **dict.fromkeys(("observed.sums", "unobserved.sums"))
    )
