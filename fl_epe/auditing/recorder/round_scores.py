"""The rounds of a `RunAuditor`: their facts, their canaries' scores, and their record.

`score_round` scores the canaries of a round while its vectors are in memory. Each is scored with
the other canaries projected out; `View.round_scores` does the same from a record.
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
    MIN_PROJECTED_SHARE,
    measure_others,
    project_out,
    residual_norm,
    shift_scores,
)
from fl_epe.canaries import CanaryScorer, CanarySet
from fl_epe.checks import (
    ArgumentError,
    Floats,
    Integers,
    NamedArrays,
    Vector,
    raise_invalid,
)
from fl_epe.mechanism import ServerSGD, norm
from fl_epe.schedules import ParticipationLaw

# Name of the series of released means without canaries, in place of "mean".
OTHERS = "others"

# A model of at least this norm counts as infinite, as its scores overflow in float32.
_MAX_NORM = 1e30

# In a model of up to this many parameters, canaries are projected out however little they added.
_FEW_PARAMETERS = 100_000

# The fields of `RoundFacts` that are one number for each round.
_FACTS = ("contribution", "clip_norm", "replies", "absent")


@dataclasses.dataclass(frozen=True)
class RoundFacts:
    """The facts about a round besides its models.

    Attributes:
        present: ids of the canaries that took part.
        contribution: norm of the contribution of a client of median weight to the released
            mean, also in a round without canaries; NaN if it is not known.
        clip_norm: clip norm of the round; NaN if updates are not clipped.
        replies: number of updates in the mean, canaries included.
        absent: number of clients and canaries whose update was lost.
        weights: the contribution of each canary in ``present``, divided by ``contribution``;
            empty if all are 1.
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
    *,
    dots: Floats | None = None,
    vectors: Vector | None = None,
    in_mean: bool = True,
    score_absent: bool = True,
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
        in_mean: whether the canaries are in the mean; otherwise each is scored as if it were.
        score_absent: whether to score absent canaries as well, because rounds are whitened. In a
            model of few parameters, canaries are then projected out however little they added:
            a canary that stayed in would be part of the estimated correlations, which lowers
            its score by the ratio of rounds to dimensions.

    Returns:
        Three values. The scores of the canaries that may take part, ``(count,)``, are N(0, 1)
        plus what the canary itself contributed. The means of the scores, ``(count,)``, are correct
        up to a factor if the contribution is not known. The residual is ``None`` if nothing was
        released.
    """
    length = norm(mean)
    energy = length**2
    scores = np.zeros(count)
    weights = np.zeros(count)
    if not energy > 0:
        return scores, weights, None
    dim = len(mean)
    root = math.sqrt(dim)
    present = sorted(facts.present)
    weights[list(facts.present)] = facts.canary_weights()
    numbers = list(range(count)) if score_absent else present
    round_dots = np.zeros(count)
    if dots is None:
        round_dots[numbers] = canaries.dot(mean, numbers=numbers)
    else:
        round_dots[numbers] = dots[numbers]
    is_known = math.isfinite(facts.contribution)
    contribution = facts.contribution if is_known else 0.0
    residual = Residual(mean)
    present_weights = weights[present]
    sum_dot = float(present_weights @ round_dots[present])
    canary_energy = 0.0
    if in_mean and present:
        canary_energy = sum_dot**2 / float(present_weights @ present_weights)
    min_energy = MIN_PROJECTED_SHARE * energy
    if score_absent and dim <= _FEW_PARAMETERS:
        min_energy = 0.0
    if canary_energy > 0 and canary_energy >= min_energy:
        # The other canaries are projected out.
        if vectors is None:
            total = canaries.combine(present_weights[None], numbers=present)[0]
        else:
            total = facts.canary_weights().astype(vectors.dtype) @ vectors
        own_dots, projected_norm, sum_weight = project_out(
            round_dots[numbers],
            canaries.dot(total, numbers=numbers),
            weights[numbers],
            energy,
            sum_dot,
            norm(total) ** 2,
        )
        residual = Residual(mean, total, float(sum_weight))
        length = float(projected_norm)
        scores[numbers] = root / length * own_dots
    elif in_mean:
        # The other canaries are too small a part of the mean to affect a score.
        scores = shift_scores(round_dots / length, dim)
        if present:
            length = float(residual_norm(length, contribution))
    else:
        # Each canary is added to the mean, which has no other canaries.
        added = weights * contribution
        dots_with_own = round_dots + added
        squares = energy + 2 * added * round_dots + added**2
        scores = shift_scores(dots_with_own / np.sqrt(squares), dim)
    if not is_known:
        return scores, weights, residual
    return scores, root * contribution / length * weights, residual


class SeenRounds:
    """The facts and scores of all rounds so far, by the names in `add`.

    Args:
        count: number of canaries that may take part.
    """

    def __init__(self, count: int) -> None:
        by_round = (*_FACTS, "update_norms", "window")
        by_canary = ("presence", "scores", "signals", "weights")
        # The shape of each value of one round; rows of the factor differ in length.
        self._shapes: dict[str, tuple[int, ...]] = {
            **dict.fromkeys(by_round, ()),
            **dict.fromkeys(by_canary, (count,)),
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
        """The values of all rounds by their name in `add`, ``(T, …)``.

        The factor's rows, which differ in length, are concatenated.
        """
        if name == "factor":
            return np.concatenate([np.empty(0), *self._rows[name]])
        dtypes = {"presence": np.bool_, "window": np.int64}
        rows: np.ndarray = np.array(
            self._rows[name], dtypes.get(name, np.float64)
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
        """The mechanism, as far as it is known from the rounds.

        Args:
            server: the server's step, or the name of an optimizer.
            ids: ids of the observed canaries.
            client: the law of a client's participations, if it is known.
        """
        if isinstance(server, ServerSGD):
            learning_rates = np.full(len(self), server.learning_rate)
            step = ServerStep("sgd", learning_rates, server.momentum)
        else:
            step = ServerStep(server)
        replies = self["replies"]
        known_replies = replies[np.isfinite(replies)]
        cohort_size = math.nan
        if len(known_replies):
            cohort_size = float(known_replies.mean())
        weights = self["weights"]
        return Mechanism(
            cohort_size=cohort_size,
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
        expected = (int(windows.sum()),)
        if factor.shape != expected or np.any(windows < 0):
            raise_invalid("factor.shape", factor.shape, f"to be {expected}")
        ends = np.cumsum(windows, dtype=np.int64)[:-1]
        rows = np.split(factor.astype(np.float64), ends)
        self._rows["factor"] = rows[:rounds]
        for name in ("scores", "signals", "factor", "weights"):
            if not np.all(np.isfinite(state[name])):
                raise ArgumentError(f"Expected {name} to be finite.")


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
    has a record too. Norms of a model that is not finite, and cosines with it, are NaN.

    Args:
        scorer: the scorer of the run's canaries. It has scored the series ``released``, and the
            series "residual" and ``delta_series`` if they are known.
        observed_ids: ids of the canaries that took part; the other canaries are unobserved.
        start: the initial model.
        final: the final model.
        delta_norms: norms of the model updates.
        delta_series: name of the series of the model updates.
        released: name of the series of means; "others" if they are without canaries.
        values: more precise values by name (`AuditRecord.with_values`), which replace those of
            ``fields`` before canaries are projected out.
        fields: the other fields of `AuditRecord`.
    """
    count = scorer.canaries.count
    is_finite = norm(final) < _MAX_NORM
    if is_finite:
        scorer.add("final", final)
        scorer.add("displacement", final - start)
        # The last rows are those of this model. Records that were made during the run have added
        # earlier rows.
        final_norm = float(scorer.norms("final")[-1])
        displacement_norm = float(scorer.norms("displacement")[-1])
        final_cosines = scorer.cosines("final")[-1]
        displacement_cosines = scorer.cosines("displacement")[-1]
    else:
        final_norm = displacement_norm = math.nan
        final_cosines = displacement_cosines = np.full(count, np.nan)
    mean_cosines = scorer.cosines(released)

    has_updates = bool(len(scorer.norms(delta_series)))
    update_cosines = scorer.cosines(delta_series) if has_updates else None
    residual_norms = scorer.norms("residual")
    has_residuals = bool(len(residual_norms))
    residual_cosines = scorer.cosines("residual") if has_residuals else None

    def part_of(cosines: Floats | None, ids: Integers) -> Floats | None:
        return None if cosines is None else cosines[:, ids]

    def side(ids: Integers) -> CanaryCosines:
        return CanaryCosines(
            means=mean_cosines[:, ids],
            final=final_cosines[ids],
            displacement=displacement_cosines[ids],
            model_updates=part_of(update_cosines, ids),
            residuals=part_of(residual_cosines, ids),
            ids=ids,
        )

    record = AuditRecord(
        dim=scorer.canaries.dim,
        observed=side(observed_ids),
        unobserved=side(np.setdiff1d(np.arange(count), observed_ids)),
        norms=Norms(
            means=scorer.norms(released),
            model_updates=delta_norms,
            final=final_norm,
            displacement=displacement_norm,
            residuals=residual_norms if has_residuals else None,
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
    """The record of means without canaries, to which each canary's own part is added.

    Each canary is then the only one in its rounds, so `Norms.canary_sums` is 0.
    """
    norms = record.norms.means
    added = record.mechanism.contribution_norms
    dots = record.observed.means * norms[:, None]
    own_parts = record.presence * added[:, None]
    squares = norms[:, None] ** 2 + 2 * own_parts * dots + own_parts**2
    means = quotients(dots + own_parts, np.sqrt(squares))
    is_released = (norms > 0) | record.presence.any(axis=1)
    norms_with_own = np.where(is_released, np.hypot(norms, added), 0.0)
    values = {
        "observed.means": means,
        "observed.model_updates": means,
        "observed.canary_sums": None,
        "unobserved.canary_sums": None,
        "norms.means": norms_with_own,
        "norms.model_updates": quotients(record.norms.model_updates, norms)
        * norms_with_own,
        "norms.canary_sums": np.zeros(record.rounds),
    }
    return record.with_values(**values)
