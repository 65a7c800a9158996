"""Whether a record measures anything, and whether training failed.

An ε that was not measured is an error, never a number: every statistic of a record first calls
`check_measured`, which raises `NotMeasured` with the reason in a sentence. `divergence` returns
why training failed: a loss that is not finite, or a model no better than chance. `updates_lost`
reports that most clients did not answer. If a record lacks the values to decide, these two
functions report nothing.

Examples:
    >>> raise NotMeasured("no canary took part in 12 rounds")
    Traceback (most recent call last):
    fl_epe.auditing.record.measured.NotMeasured: no canary took part in 12 rounds
"""

import math

import numpy as np

from fl_epe.auditing.estimate import Adversary
from fl_epe.auditing.record.audit_record import AuditRecord
from fl_epe.checks import Booleans, Floats
from fl_epe.wording import counted

LEAST_CANARIES = 2  # canaries that must have taken part for an ε

# Number of evaluations, or rounds, at the end of a run that decide whether training failed.
_NUM_LAST = 3

# In evaluations before this round, a model may still be at chance.
_FIRST_LATE_ROUND = 10

# A larger share of lost updates is reported.
_MAX_LOST_SHARE = 0.5

# A loss has exploded if it exceeds the first one by this factor.
_MAX_LOSS_RATIO = 100.0

# A loss has fallen if it is at most this part of the first one.
_MAX_FALLEN_RATIO = 0.9

# A model distinguishes examples if its metric is at least this part of the way from chance to 1.
_MIN_PROGRESS = 0.1


class NotMeasured(ValueError):  # noqa: N818 - reports show it as a result, not as an error
    """ε was not measured; the message says why, in a sentence without its full stop."""


def check_measured(
    record: AuditRecord, adversary: Adversary, statistic: str | None = None
) -> None:
    """Raise if a record has no ε; the arguments are those of `not_measured`.

    Raises:
        NotMeasured: with the reason.
    """
    reason = not_measured(record, adversary, statistic)
    if reason is not None:
        raise NotMeasured(reason)


def not_measured(
    record: AuditRecord, adversary: Adversary, statistic: str | None = None
) -> str | None:
    """Why a record has no ε; ``None`` if it has one.

    Args:
        record: the audit record of a run.
        adversary: the adversary.
        statistic: the statistic. For an adversary who sees the final model, "model" uses that
            model, and other statistics its displacement from the initial one.
    """
    reason = _no_canaries(record)
    if reason is not None:
        return reason
    if adversary.sees_final:
        return _no_final_model(record, statistic)
    moved_model = record.presence & (record.norms.means > 0)[:, None]
    if _count_canaries(moved_model) < LEAST_CANARIES:
        rounds = counted(int(record.presence.any(axis=1).sum()), "round")
        return f"the model did not move in the {rounds} in which canaries took part"
    return record.findings.unbounded


def _no_canaries(record: AuditRecord) -> str | None:
    """Why too few canaries took part for an ε; ``None`` if enough did."""
    rounds = f"in {counted(record.rounds, 'round')}"
    count = _count_canaries(record.presence)
    if count < LEAST_CANARIES:
        # The findings may have a more precise reason.
        if record.findings.missing_canaries_reason:
            return record.findings.missing_canaries_reason.rstrip(". ")
        if record.rounds == 0:
            return "the audit saw no round"
        if count == 0:
            return f"no canary took part {rounds}"
        return f"only 1 canary took part {rounds}; an ε needs at least {LEAST_CANARIES}"
    adds_nothing = record.mechanism.contribution_norms == 0
    num_adding = _count_canaries(record.presence & ~adds_nothing[:, None])
    if num_adding >= LEAST_CANARIES:
        return None
    canaries = f"only {num_adding}" if num_adding else "none"
    return f"{canaries} of the {count} canaries that took part {rounds} added anything to the model"


def _no_final_model(record: AuditRecord, statistic: str | None) -> str | None:
    """Why the final model has no information about canaries; ``None`` if it has."""
    norms = record.norms
    if not (math.isfinite(norms.final) and math.isfinite(norms.displacement)):
        return "the final model is not finite"
    if statistic == "model":
        if norms.final > 0:
            return None
        return "every entry of the final model is 0"
    if norms.displacement > 0:
        return None
    return f"the final model is equal to the initial one, after {counted(record.rounds, 'round')}"


def _count_canaries(presence: Booleans) -> int:
    """The number of canaries that took part in any round."""
    return int(presence.any(axis=0).sum())


def divergence(record: AuditRecord) -> tuple[str, ...]:
    """Why a run has diverged, as sentences without their full stops; empty if it has not."""
    reasons = (
        _model_not_finite(record),
        _loss_not_finite(record),
        _loss_exploded(record),
        at_chance(record, _NUM_LAST),
    )
    return tuple(reason for reason in reasons if reason is not None)


def _model_not_finite(record: AuditRecord) -> str | None:
    """A reason if the final model has an entry that is NaN or infinite.

    An audit of a deployment records the last finite model as the final one, and its findings say
    whether a model that was not finite followed.
    """
    if not record.findings.last_model_is_finite:
        return "the last model that the strategy released has NaN or infinite entries"
    if not math.isfinite(record.norms.final):
        return "the final model is not finite"
    return None


def _loss_not_finite(record: AuditRecord) -> str | None:
    """A reason if the last loss, on held-out data or in training, is NaN or infinite.

    Rounds in which no client trained are ignored: their training loss is NaN.
    """
    held_out = _series(record, "eval_loss")
    training = _series(record, "train_loss")
    cohort = _series(record, "cohort")
    if len(cohort) == len(training):
        training = training[cohort > 0]
    if len(held_out) and not math.isfinite(held_out[-1]):
        return f"the loss on held-out data is {held_out[-1]} at the end"
    if len(training) and not math.isfinite(training[-1]):
        return f"the training loss is {training[-1]} at the end"
    return None


def _loss_exploded(record: AuditRecord) -> str | None:
    """A reason if a loss is over a hundred times the held-out loss before the training.

    The loss on held-out data counts, and the clients' training loss in the last rounds. The
    latter is ignored if the loss on held-out data fell by at least a tenth.
    """
    losses = _series(record, "eval_loss")
    rounds = _series(record, "eval_round")
    if len(losses) < 2 or len(rounds) != len(losses) or rounds[0] != 0:
        return None
    first = float(losses[0])
    last = float(losses[-1])
    if not 0 < first < math.inf or not math.isfinite(last):
        return None
    if last > _MAX_LOSS_RATIO * first:
        return f"the loss on held-out data rose from {first:.3g} to {last:.3g}"
    training = _series(record, "train_loss")
    late = training[np.isfinite(training)][-_NUM_LAST:]
    largest = float(np.max(late, initial=0.0))
    has_fallen = last <= _MAX_FALLEN_RATIO * first
    if largest > _MAX_LOSS_RATIO * first and not has_fallen:
        return (
            f"the training loss rose to {largest:.3g}, and that on held-out data is {last:.3g}, "
            f"after {first:.3g} before the training"
        )
    return None


def at_chance(record: AuditRecord, evaluations: int = 1) -> str | None:
    """Why the model has not learned according to its last evaluations; ``None`` if it has.

    It has not learned if it is no better than a constant prediction (`no_better_than_constant`),
    unless it distinguishes examples (`tells_apart`): an overconfident model may have a large loss,
    but still be right more often than by chance.

    Args:
        record: the audit record of a run.
        evaluations: number of evaluations at the end; the model has learned if it has in any of
            them.
    """
    if tells_apart(record, evaluations):
        return None
    return no_better_than_constant(record, evaluations)


def no_better_than_constant(
    record: AuditRecord, evaluations: int = 1
) -> str | None:
    """Why the model is no better than the best constant prediction; ``None`` if it is.

    The loss decides, or the metric if the loss of that prediction is not known. Accuracy alone
    is not enough: if 95% of examples are of one class, a good model may never predict another
    class.

    The loss and accuracy of a constant prediction are in the design of a run, see
    `fl_epe.tasks.Task`; its R² is 0. Evaluations of early rounds do not count, so nothing is
    reported of a short run. Arguments are those of `at_chance`.
    """
    chance_loss = record.design.chance_loss
    losses = _late_values(record, "eval_loss", evaluations)
    if chance_loss is not None and len(losses):
        if np.any(losses < chance_loss):
            return None
        return (
            f"the loss on held-out data is {losses[-1]:.3g}, no better than that of the same "
            f"prediction for everybody ({chance_loss:.3g})"
        )
    chance = _chance_metric(record)
    metrics = _late_values(record, "eval_accuracy", evaluations)
    if chance is None or not len(metrics) or np.any(metrics > chance):
        return None
    if _has_r_square(record):
        return f"R² on held-out data is {metrics[-1]:.2f}, no better than predicting the mean"
    return f"accuracy on held-out data is {metrics[-1]:.1%}, no better than chance ({chance:.1%})"


def tells_apart(record: AuditRecord, evaluations: int = 1) -> bool:
    """Whether the model distinguishes examples, by its accuracy, R² or ROC AUC.

    It does if one of the last evaluations is at least a tenth of the way from chance to a
    perfect model. Arguments are those of `at_chance`.
    """
    chance_levels = {"eval_accuracy": _chance_metric(record), "eval_auc": 0.5}
    for name, chance in chance_levels.items():
        if chance is not None:
            values = _late_values(record, name, evaluations)
            if np.any(values >= chance + _MIN_PROGRESS * (1 - chance)):
                return True
    return False


def _chance_metric(record: AuditRecord) -> float | None:
    """The value of the metric "eval_accuracy" for a constant prediction, if it is known."""
    if _has_r_square(record):
        return 0.0
    return record.design.chance_accuracy


def _has_r_square(record: AuditRecord) -> bool:
    """Whether the metric "eval_accuracy" is R², which is written "r2" or "r2_score"."""
    return record.design.metric.lower().replace("_", "") in ("r2", "r2score")


def _late_values(record: AuditRecord, name: str, count: int) -> Floats:
    """The last ``count`` values of an evaluation metric, without early rounds; empty if fewer."""
    values = _series(record, name)
    is_late = _series(record, "eval_round") >= _FIRST_LATE_ROUND
    if len(values) != len(is_late) or is_late.sum() < count:
        return np.empty(0)
    return values[is_late][-count:]


def updates_lost(record: AuditRecord) -> str | None:
    """A sentence if most updates were lost, or all in the last rounds; else ``None``.

    It is separate from `divergence`, as clients may have been switched off while training went
    well.
    """
    absent = record.clients.absent
    arrived = _arrived(record)
    if absent is None or arrived is None or not len(absent):
        return None
    lost = int(absent.sum())
    total = lost + round(float(arrived.sum()))
    if lost > _MAX_LOST_SHARE * total:
        return f"{lost} of {total} updates were lost"
    all_lost = (absent > 0) & (arrived == 0)
    if len(all_lost) >= _NUM_LAST and all_lost[-_NUM_LAST:].all():
        return (
            f"every update was lost in {counted(_NUM_LAST, 'round')} at the end"
        )
    return None


def _arrived(record: AuditRecord) -> Floats | None:
    """The number of updates that arrived in each round, ``(T,)``; ``None`` if unknown.

    Updates of canaries are included.
    """
    canaries = record.presence.sum(axis=1)
    cohort = _series(record, "cohort")
    if len(cohort) == record.rounds:
        return np.asarray(cohort + canaries, np.float64)
    offsets = record.clients.offsets
    if offsets is not None and len(offsets) == record.rounds + 1:
        return np.asarray(np.diff(offsets) + canaries, np.float64)
    # The mean number of replies, canaries included.
    replies = record.mechanism.cohort_size
    if not math.isfinite(replies):
        return None
    return np.full(record.rounds, replies)


def _series(record: AuditRecord, name: str) -> Floats:
    """A series of the record's metrics; empty if it is missing."""
    return np.asarray(record.metrics.get(name, np.empty(0)), np.float64)
