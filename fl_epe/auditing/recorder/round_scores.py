"""The rounds of a `RunAuditor`: their facts, their canaries' scores, and their record.

Each canary is scored against noise and clients, with the other canaries projected out, as
`View.round_scores` does for a record, while the round's vectors are in memory.
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

# Name of the series of released means without canaries, in place of "mean".
OTHERS = "others"

# A model of at least this norm counts as infinite, as it overflows in float32 when it is
# scored.
_LARGEST = 1e30

# In a model of up to so many parameters, canaries are projected out however little they added.
_FEW_PARAMETERS = 100_000

# The fields of `RoundFacts` that are one number for each round.
_FACTS = ("contribution", "clip_norm", "replies", "absent")


@dataclasses.dataclass(frozen=True)
class RoundFacts:
    """The facts about a round besides its models.

    Attributes:
        present: numbers of the canaries that took part.
        contribution: norm of the contribution of a client of median weight to the released
            mean, also in a round without canaries; NaN if it is not known.
        clip_norm: clip norm of the round; NaN if updates are not clipped.
        replies: number of updates in the mean, canaries included.
        absent: number of clients and canaries whose update was lost.
        weights: each canary's contribution over ``contribution``; empty if all are 1.
    """

    present: Collection[int] = ()
    contribution: float = math.nan
    clip_norm: float = math.nan
    replies: float = math.nan
    absent: int = 0
    weights: Sequence[float] = ()

    def canary_weights(self) -> Floats:
        """The weight of each canary that is present."""
        if len(self.weights):
            return np.asarray(self.weights)
        return np.ones(len(self.present))


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
    """Score the canaries of a round against the residual and their own part.

    Args:
        canaries: all canaries.
        count: number of canaries that may take part.
        mean: the mean that the round released, shape ``(dim,)``.
        facts: the facts about the round.
        dots: inner products of all canaries with the mean, if they are known.
        vectors: the canaries that are present, shape ``(K, dim)``, if they are in memory; otherwise
            they are regenerated.
        has_canaries: whether the canaries are in the mean; otherwise each is scored as if it
            were.
        everybody: whether to score absent canaries as well, because rounds are whitened. In a
            model of few parameters, canaries are then projected out however little they added:
            a canary that stayed in would be part of the estimated correlations, which lowers
            its score by the ratio of rounds to dimensions.

    Returns:
        Three values. The scores of the canaries that may take part, ``(count,)``, are N(0, 1)
        but for each canary's own part. Their means, ``(count,)``, are each canary's
        contribution, up to a factor if it is not known. The residual is ``None`` if nothing was
        released.
    """
    length = norm(mean)
    square = length**2
    scores = np.zeros(count)
    weights = np.zeros(count)
    if not square > 0:
        return scores, weights, None
    dim = len(mean)
    root = math.sqrt(dim)
    present = sorted(facts.present)
    weights[list(facts.present)] = facts.canary_weights()
    present_weights = weights[present]
    numbers = present
    if everybody:
        numbers = list(range(count))
    if dots is None:
        scores[numbers] = canaries.dot(mean, numbers=numbers)
    else:
        scores[numbers] = dots[numbers]
    is_known = math.isfinite(facts.contribution)
    contribution = facts.contribution if is_known else 0.0
    residual = Residual(mean)
    sum_dot = float(present_weights @ scores[present])
    # The energy of the canaries in the mean.
    energy = 0.0
    if has_canaries and present:
        energy = sum_dot**2 / float(present_weights @ present_weights)
    least_energy = SMALLEST_SHARE * square
    if everybody and dim <= _FEW_PARAMETERS:
        least_energy = 0.0
    if energy > 0 and energy >= least_energy:
        if vectors is None:
            total = canaries.combine(present_weights[None], numbers=present)[0]
        else:
            total = facts.canary_weights().astype(vectors.dtype) @ vectors
        own_dots, residual_norm, share = leave_others_out(
            scores[numbers],
            canaries.dot(total, numbers=numbers),
            weights[numbers],
            square,
            sum_dot,
            norm(total) ** 2,
        )
        residual = Residual(mean, total, float(share))
        length = float(residual_norm)
        scores[numbers] = root / length * own_dots
    elif has_canaries:
        scores = shift_scores(scores / length, dim)
        if present:
            length = float(hidden_norm(length, contribution))
    else:
        added = weights * contribution
        lengths_with_canary = np.sqrt(square + 2 * added * scores + added**2)
        scores = shift_scores((scores + added) / lengths_with_canary, dim)
    if not is_known:
        return scores, weights, residual
    return scores, root * contribution / length * weights, residual


class SeenRounds:
    """The facts and scores of all rounds so far.

    Args:
        count: number of canaries that may take part.
    """

    def __init__(self, count: int) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {
            **dict.fromkeys((*_FACTS, "update_norms", "window"), ()),
            **dict.fromkeys(
                ("presence", "scores", "signals", "weights"), (count,)
            ),
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
        """Add a round.

        Args:
            facts: the canaries that took part, and their contributions.
            update_norm: norm of the model update.
            scores: whitened scores, ``(count,)``.
            signals: whitened signals, ``(count,)``.
            row: the row of the factor that whitened them, see `Whitener.add`.
        """
        present = list(facts.present)
        presence = np.zeros(len(scores), bool)
        presence[present] = True
        weights = np.ones(len(scores))
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
        """The values of all rounds by a name of `add`, ``(T, …)``; the factor's rows are joined."""
        if name == "factor":
            return np.concatenate([np.empty(0), *self._rows[name]])
        kinds = {"presence": np.bool_, "window": np.int64}
        rows: np.ndarray = np.array(
            self._rows[name], kinds.get(name, np.float64)
        )
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
        self,
        server: ServerSGD | str,
        ids: Integers,
        client: ParticipationLaw | None,
    ) -> Mechanism:
        """The mechanism as far as rounds show it; ``ids`` are the observed canaries."""
        if isinstance(server, ServerSGD):
            rates = np.full(len(self), server.learning_rate)
            step = ServerStep("sgd", rates, server.momentum)
        else:
            step = ServerStep(server)
        replies = self["replies"]
        replies = replies[np.isfinite(replies)]
        weights = self["weights"]
        return Mechanism(
            cohort_size=float(replies.mean()) if len(replies) else math.nan,
            noise_multiplier=None,
            sum_noise_multiplier=None,
            participation=(client or ParticipationLaw(len(self))).in_record(),
            canary_participations=float(
                self["presence"].sum() / max(1, len(ids))
            ),
            server=step,
            clip_norms=self["clip_norm"],
            contributions=self["contribution"],
            canary_weights=None if np.all(weights == 1) else weights[:, ids],
        )

    def state(self) -> NamedArrays:
        """Named arrays, from which `restore` continues."""
        return {name: self[name] for name in self._rows}

    def restore(self, state: NamedArrays, rounds: int) -> None:
        """Restore the first ``rounds`` rounds of a `state`, which may have other arrays.

        Raises:
            ValueError: if the state does not fit.
        """
        saved = len(state["presence"])
        if not 0 <= rounds <= saved:
            wanted = f"to be from 0 to {saved}, the rounds of the state"
            raise_invalid("rounds", rounds, wanted)
        for name, shape in self._shapes.items():
            value = state[name]
            expected = (saved, *shape)
            if value.shape != expected or value.dtype.kind not in "bif":
                wanted = f"to be {expected}, of numbers"
                raise_invalid(f"{name}.shape", value.shape, wanted)
            self._rows[name] = list(value[:rounds])
        windows = state["window"].astype(np.int64)
        factor = state["factor"]
        if factor.shape != (int(windows.sum()),) or np.any(windows < 0):
            raise_invalid(
                "factor.shape", factor.shape, f"to be {(int(windows.sum()),)}"
            )
        ends = np.cumsum(windows, dtype=np.int64)[:-1]
        self._rows["factor"] = np.split(factor.astype(np.float64), ends)[
            :rounds
        ]
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

    A run without rounds, without canaries that took part, or with a final model that is not finite
    has a record too. Norms of such a model, and cosines with it, are NaN.

    Args:
        scorer: the scorer, which has scored the series ``released`` and, if they are known, the
            series "residual" and ``delta_series``.
        observed_ids: ids of the canaries that took part; the other canaries are unobserved.
        start: the initial model.
        final: the final model.
        delta_norms: norms of the model updates.
        delta_series: name of the series of the model updates.
        released: name of the series of means, or (`OTHERS`) means without canaries.
        values: more precise values by name (`AuditRecord.with_values`), by which canaries are
            projected out.
        fields: the other fields of `AuditRecord`.
    """
    count = scorer.canaries.count
    series = ["residual", delta_series]
    is_finite = norm(final) < _LARGEST
    if is_finite:
        scorer.add("final", final)
        scorer.add("displacement", final, start)
        series += ["final", "displacement"]
    cosines = {
        name: scorer.cosines(name) for name in series if len(scorer.norms(name))
    }
    # Without a round it has no rows.
    cosines["mean"] = scorer.cosines(released)
    if is_finite:
        # It is the last row, as a record during the run has scored earlier models.
        final_norm = float(scorer.norms("final")[-1])
        displacement_norm = float(scorer.norms("displacement")[-1])
    else:
        final_norm = math.nan
        displacement_norm = math.nan
        unknown = np.full((1, count), np.nan)
        cosines |= {"final": unknown, "displacement": unknown}

    def side(ids: Integers) -> CanaryCosines:
        side_cosines = {
            name: values[..., ids] for name, values in cosines.items()
        }
        return CanaryCosines(
            means=side_cosines["mean"],
            final=side_cosines["final"][-1],
            displacement=side_cosines["displacement"][-1],
            deltas=side_cosines.get(delta_series),
            residuals=side_cosines.get("residual"),
            ids=ids,
        )

    residual_norms = scorer.norms("residual")
    record = AuditRecord(
        dim=scorer.canaries.dim,
        observed=side(observed_ids),
        unobserved=side(np.setdiff1d(np.arange(count), observed_ids)),
        norms=Norms(
            means=scorer.norms(released),
            deltas=delta_norms,
            final=final_norm,
            displacement=displacement_norm,
            residuals=residual_norms if len(residual_norms) else None,
        ),
        **fields,
    )
    record = measure_others(
        record.with_values(**(values or {})), scorer.canaries
    )
    if released == OTHERS:
        return _with_own_parts(record)
    return record


def _with_own_parts(record: AuditRecord) -> AuditRecord:
    """The record of means without canaries, with each canary's own part in its rounds.

    All other canaries are known and already subtracted, so `Norms.sums` is 0.
    """
    norms = record.norms.means
    added = record.mechanism.added
    dots = record.observed.means * norms[:, None]
    parts = record.presence * added[:, None]
    lengths = np.sqrt(norms[:, None] ** 2 + 2 * parts * dots + parts**2)
    means = quotients(dots + parts, lengths)
    is_released = (norms > 0) | record.presence.any(axis=1)
    alone_norms = np.where(is_released, np.hypot(norms, added), 0.0)
    values = {
        "observed.means": means,
        "observed.deltas": means,
        "observed.sums": None,
        "unobserved.sums": None,
        "norms.means": alone_norms,
        "norms.deltas": quotients(record.norms.deltas, norms) * alone_norms,
        "norms.sums": np.zeros(record.rounds),
    }
    return record.with_values(**values)
