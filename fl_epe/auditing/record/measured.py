"""Whether a record measures anything, and whether training failed.

An ε that was not measured is an error, never a number: `check_measured` raises `NotMeasured` with
the reason in a sentence; every statistic of a record asks it first. `divergence` says why training
failed: a loss that is not finite, a model no better than chance. `updates_lost` says that most
clients did not answer. They read what a record keeps and say nothing where it does not know.

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

LEAST_CANARIES = 2  # that must have taken part for an ε
_LAST = 3  # evaluations, or rounds, at the end of a run that tell that training failed
_EARLY = 10  # rounds that a model has to leave chance: evaluations before do not count
_MOST_LOST = 0.5
_EXPLODED = 100.0
_APART = 0.1  # of the way from the metric of a constant prediction to 1
_FELL = 0.9  # of the first loss on held-out data


class NotMeasured(ValueError):  # noqa: N818 - a finding, which reports show
    """ε was not measured; the message says why, in a sentence without its full stop."""


def check_measured(
    record: AuditRecord, adversary: Adversary, statistic: str | None = None
) -> None:
    """Refuse a record that has nothing to say about ε; arguments are as for `not_measured`.

    Raises:
        NotMeasured: with the reason.
    """
    if (reason := not_measured(record, adversary, statistic)) is not None:
        raise NotMeasured(reason)


def not_measured(
    record: AuditRecord, adversary: Adversary, statistic: str | None = None
) -> str | None:
    """Why a record has nothing to say about ε; ``None`` if it has.

    Args:
        record: the audit record of a run.
        adversary: what is seen.
        statistic: "model" looks at the final model instead of its displacement.
    """
    if (reason := _nobody(record)) is not None:
        return reason
    if adversary.sees_final:
        return _no_final_model(record, statistic)
    return (
        _no_rounds(record) or record.findings.unbounded
    )  # what ran it may have seen no noise


def _nobody(record: AuditRecord) -> str | None:
    where = f"in {counted(record.rounds, 'round')}"
    if (count := _count(record.presence)) < LEAST_CANARIES:
        if record.findings.not_measured:  # what ran the audit knows a better reason
            return record.findings.not_measured.rstrip(". ")
        if record.rounds == 0:
            return "the audit saw no round"
        if count:
            return (
                f"only 1 canary took part {where}; an ε needs at least {LEAST_CANARIES}"
            )
        return f"no canary took part {where}"
    adding = _count(record.presence & ~(record.mechanism.added == 0)[:, None])
    if adding >= LEAST_CANARIES:
        return None
    who = f"only {adding}" if adding else "none"
    return f"{who} of the {count} canaries that took part {where} added anything to the model"


def _no_final_model(record: AuditRecord, statistic: str | None) -> str | None:
    norms = record.norms
    if not (math.isfinite(norms.final) and math.isfinite(norms.displacement)):
        return "the final model is not finite"
    if statistic == "model":
        return None if norms.final > 0 else "every entry of the final model is 0"
    if norms.displacement > 0:
        return None
    return f"the final model is equal to the initial one, after {counted(record.rounds, 'round')}"


def _no_rounds(record: AuditRecord) -> str | None:
    if _count(record.presence & (record.norms.means > 0)[:, None]) >= LEAST_CANARIES:
        return None
    which = counted(int(record.presence.any(axis=1).sum()), "round")
    return f"the model did not move in the {which} in which canaries took part"


def _count(presence: Booleans) -> int:
    return int(presence.any(axis=0).sum())


def divergence(record: AuditRecord) -> tuple[str, ...]:
    """Why a run has diverged, as sentences without their full stops; empty if it has not."""
    reasons = (
        _model_not_finite(record),
        _loss_not_finite(record),
        _loss_exploded(record),
        at_chance(record, _LAST),
    )
    return tuple(reason for reason in reasons if reason is not None)


def _model_not_finite(record: AuditRecord) -> str | None:
    """The final model has an entry that is NaN or infinite.

    An audit of a deployment keeps the last finite model, and says so in the run's settings.
    """
    if not record.findings.last_model_is_finite:
        return "the last model that the strategy released has NaN or infinite entries"
    return (
        None if math.isfinite(record.norms.final) else "the final model is not finite"
    )


def _loss_not_finite(record: AuditRecord) -> str | None:
    """The last loss, on held-out data or in training, is NaN or infinite.

    A round in which no client trained has no training loss, which is NaN in a record; such rounds
    are passed over.
    """
    training = _series(record, "train_loss")
    cohort = _series(record, "cohort")
    if len(cohort) == len(training):
        training = training[cohort > 0]
    for name, losses in (
        ("loss on held-out data", _series(record, "eval_loss")),
        ("training loss", training),
    ):
        if len(losses) and not math.isfinite(losses[-1]):
            return f"the {name} is {losses[-1]} at the end"
    return None


def _loss_exploded(record: AuditRecord) -> str | None:
    """A loss is a hundred times that on held-out data before the training.

    The loss on held-out data itself, or that of the clients as they train, while the one on
    held-out data fell by less than a tenth.
    """
    losses = _series(record, "eval_loss")
    rounds = _series(record, "eval_round")
    if len(losses) < 2 or len(rounds) != len(losses) or rounds[0] != 0:
        return None
    first = float(losses[0])
    last = float(losses[-1])
    if not 0 < first < math.inf or not math.isfinite(last):
        return None
    if last > _EXPLODED * first:
        return f"the loss on held-out data rose from {first:.3g} to {last:.3g}"
    training = _series(record, "train_loss")
    most = float(np.max(training[np.isfinite(training)][-_LAST:], initial=0.0))
    if most > _EXPLODED * first and last > _FELL * first:
        return (
            f"the training loss rose to {most:.3g}, and that on held-out data is {last:.3g}, after "
            f"{first:.3g} before the training"
        )
    return None


def at_chance(record: AuditRecord, evaluations: int = 1) -> str | None:
    """Why the model has not learned in the last evaluations; ``None`` if it has.

    It has not where it is no better than a constant prediction (`no_better_than_constant`), unless
    it tells examples apart (`tells_apart`): a model that is too sure of itself may have a large
    loss, and still be right more often than by chance.

    Args:
        record: the audit record of a run.
        evaluations: how many of the last ones must all be so.
    """
    return (
        None
        if tells_apart(record, evaluations)
        else no_better_than_constant(record, evaluations)
    )


def no_better_than_constant(record: AuditRecord, evaluations: int = 1) -> str | None:
    """Why the model is no better than the best constant prediction; ``None`` if it is.

    Its loss decides, or its metric where the loss of that prediction is not known. Accuracy alone
    would not do: where 95% of examples are of one class, a good model may never predict the other.

    The chance levels stand in the design of a run, see `fl_epe.tasks.Task`; that of R² is 0. Early
    rounds do not count, so that a short run says nothing. Arguments are as for `at_chance`.
    """
    least = record.design.chance_loss
    losses = _late(record, "eval_loss", evaluations)
    if least is not None and len(losses):
        if np.any(losses < least):
            return None
        return (
            f"the loss on held-out data is {losses[-1]:.3g}, no better than that of the same "
            f"prediction for everybody ({least:.3g})"
        )
    guess = _guess(record)
    scores = _late(record, "eval_accuracy", evaluations)
    if guess is None or not len(scores) or np.any(scores > guess):
        return None
    if _has_r_square(record):
        return f"R² on held-out data is {scores[-1]:.2f}, no better than predicting the mean"
    return f"accuracy on held-out data is {scores[-1]:.1%}, no better than chance ({guess:.1%})"


def tells_apart(record: AuditRecord, evaluations: int = 1) -> bool:
    """Whether the model tells examples apart, by its accuracy, R² or ROC AUC.

    One of the last evaluations is a tenth of the way from chance to a perfect model. Arguments are
    as for `at_chance`.
    """
    levels = ("eval_accuracy", _guess(record)), ("eval_auc", 0.5)
    return any(
        bool(np.any(_late(record, name, evaluations) >= guess + _APART * (1 - guess)))
        for name, guess in levels
        if guess is not None
    )


def _guess(record: AuditRecord) -> float | None:
    """The metric of the best constant prediction."""
    return 0.0 if _has_r_square(record) else record.design.chance_accuracy


def _has_r_square(record: AuditRecord) -> bool:
    return record.design.metric.lower().replace("_", "") in ("r2", "r2score")


def _late(record: AuditRecord, name: str, count: int) -> Floats:
    """The last values of an evaluation, if there are so many after the early rounds, else none."""
    values = _series(record, name)
    late = _series(record, "eval_round") >= _EARLY
    enough = len(values) == len(late) and late.sum() >= count
    return values[late][-count:] if enough else np.empty(0)


def updates_lost(record: AuditRecord) -> str | None:
    """That most clients' updates did not arrive, or none at the end; ``None`` otherwise.

    It says nothing of the training: clients may have been switched off.
    """
    absent = record.clients.absent
    arrived = _arrived(record)
    if absent is None or arrived is None or not len(absent):
        return None
    if (text := share_lost(int(absent.sum()), round(float(arrived.sum())))) is not None:
        return text
    whole = (absent > 0) & (arrived == 0)
    if len(whole) >= _LAST and whole[-_LAST:].all():
        return f"every update was lost in {counted(_LAST, 'round')} at the end"
    return None


def share_lost(lost: int, arrived: int) -> str | None:
    """What to say where more than half of ``lost + arrived`` updates are lost, else ``None``."""
    total = lost + arrived
    return f"{lost} of {total} updates were lost" if lost > _MOST_LOST * total else None


def _arrived(record: AuditRecord) -> Floats | None:
    """Updates of clients and canaries that arrived in each round, ``(T,)``; ``None`` if unknown."""
    canaries = record.presence.sum(axis=1)
    cohort = _series(record, "cohort")
    offsets = record.clients.offsets
    if len(cohort) == record.rounds:
        return np.asarray(cohort + canaries, np.float64)
    if offsets is not None and len(offsets) == record.rounds + 1:
        return np.asarray(np.diff(offsets) + canaries, np.float64)
    size = (
        record.mechanism.cohort_size
    )  # a deployment's mean number of replies, with canaries
    return np.full(record.rounds, size) if math.isfinite(size) else None


def _series(record: AuditRecord, name: str) -> Floats:
    return np.asarray(record.metrics.get(name, np.empty(0)), np.float64)
