"""Whether training failed: a loss that is not finite, a model no better than chance, lost updates.

`divergence` asks every function of this module; each reads what a record keeps and says nothing
where it does not know.

Examples:
    >>> share_lost(lost=3, arrived=1)
    '3 of 4 updates were lost'
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.measured import in_rounds
from fl_epe.auditing.record import AuditRecord

Floats = NDArray[np.float64]

LAST = 3
"""Evaluations at the end of a run in which the model must have been no better than chance."""

EARLY = 10
"""Rounds that a model has to leave chance: evaluations before this one do not count."""

_MOST_LOST = 0.5
_EXPLODED = 100.0
_FELL = 0.9  # of the first loss on held-out data


def divergence(record: AuditRecord) -> tuple[str, ...]:
    """Why a run has diverged, as sentences without their full stops; empty if it has not."""
    reasons = (
        model_not_finite(record),
        loss_not_finite(record),
        loss_exploded(record),
        accuracy_at_chance(record),
        loss_at_chance(record),
        updates_lost(record),
    )
    return tuple(reason for reason in reasons if reason is not None)


def model_not_finite(record: AuditRecord) -> str | None:
    """The final model has an entry that is NaN or infinite.

    An audit of a deployment keeps the last finite model, and says so in the run's settings.
    """
    if record.provenance.config.get("last_model_is_finite") is False:
        return "the last model that the strategy released has NaN or infinite entries"
    if math.isfinite(record.norms.final):
        return None
    return "the final model is not finite"


def loss_not_finite(record: AuditRecord) -> str | None:
    """The last loss, on held-out data or in training, is NaN or infinite.

    A round in which no client trained has no training loss, which is NaN in a record; such rounds
    are passed over.
    """
    held_out = _series(record, "eval_loss")
    if len(held_out) and not math.isfinite(held_out[-1]):
        return f"the loss on held-out data is {held_out[-1]} at the end"
    training, cohort = _series(record, "train_loss"), _series(record, "cohort")
    if len(cohort) == len(training):
        training = training[cohort > 0]
    if len(training) and not math.isfinite(training[-1]):
        return f"the training loss is {training[-1]} at the end"
    return None


def loss_exploded(record: AuditRecord) -> str | None:
    """A loss is a hundred times that on held-out data before the training.

    The loss on held-out data itself, or that of the clients as they train, while the one on
    held-out data fell by less than a tenth.
    """
    losses, rounds = _series(record, "eval_loss"), _series(record, "eval_round")
    if len(losses) < 2 or len(rounds) != len(losses) or rounds[0] != 0:
        return None
    first, last = float(losses[0]), float(losses[-1])
    if not 0 < first < math.inf or not math.isfinite(last):
        return None
    if last > _EXPLODED * first:
        return f"the loss on held-out data rose from {first:.3g} to {last:.3g}"
    training = _series(record, "train_loss")
    most = float(np.max(training[np.isfinite(training)][-LAST:], initial=0.0))
    if most > _EXPLODED * first and last > _FELL * first:
        return (
            f"the training loss rose to {most:.3g}, and that on held-out data is {last:.3g}, after "
            f"{first:.3g} before the training"
        )
    return None


def accuracy_at_chance(record: AuditRecord) -> str | None:
    """Accuracy on held-out data was at chance or below in the `LAST` evaluations.

    The chance level stands in the settings of a run, see `fl_epe.tasks.Task.chance_accuracy`.
    Rounds before `EARLY` do not count, so that a short run says nothing.
    """
    chance, last = _chance(record, "chance_accuracy"), _last(record, "eval_accuracy")
    if chance is None or last is None or np.any(last > chance):
        return None
    return (
        f"accuracy on held-out data is {last[-1]:.1%}, and in the last {LAST} evaluations was never"
        f" above chance ({chance:.1%})"
    )


def loss_at_chance(record: AuditRecord) -> str | None:
    """The loss of a regression was at chance or above in the `LAST` evaluations.

    Chance is the best constant prediction, the mean of the targets for the mean square, see
    `fl_epe.tasks.Task.chance_loss`. Rounds before `EARLY` do not count.
    """
    chance, last = _chance(record, "chance_loss"), _last(record, "eval_loss")
    if chance is None or last is None or np.any(last < chance):
        return None
    return (
        f"the loss on held-out data is {last[-1]:.3g}, and in the last {LAST} evaluations was never"
        f" below that of the same prediction for everybody ({chance:.3g})"
    )


def _chance(record: AuditRecord, name: str) -> float | None:
    value = record.provenance.config.get(name)
    return float(value) if isinstance(value, int | float) else None


def _last(record: AuditRecord, name: str) -> Floats | None:
    """The `LAST` evaluations from round `EARLY` on; ``None`` if there are not so many."""
    values, rounds = _series(record, name), _series(record, "eval_round")
    if len(rounds) != len(values) or np.sum(rounds >= EARLY) < LAST:
        return None
    return values[rounds >= EARLY][-LAST:]


def updates_lost(record: AuditRecord) -> str | None:
    """More than half of all updates were lost, or every one of the last `LAST` rounds."""
    absent = record.clients.absent
    arrived = _arrived(record)
    if absent is None or arrived is None or not len(absent):
        return None
    if (text := share_lost(int(absent.sum()), round(float(arrived.sum())))) is not None:
        return text
    whole = (absent > 0) & (arrived == 0)
    if len(whole) >= LAST and whole[-LAST:].all():
        return f"every update was lost {in_rounds(LAST)} at the end"
    return None


def share_lost(lost: int, arrived: int) -> str | None:
    """What to say where more than half of ``lost + arrived`` updates are lost, else ``None``."""
    total = lost + arrived
    if not lost or lost <= _MOST_LOST * total:
        return None
    if total == 1:
        return "the only update was lost"
    which = f"all {total}" if not arrived else f"{lost} of {total}"
    return f"{which} updates were lost"


def _arrived(record: AuditRecord) -> Floats | None:
    """Updates of clients and canaries that arrived in each round, ``(T,)``; ``None`` if unknown."""
    canaries = record.presence.sum(axis=1)
    cohort, offsets = _series(record, "cohort"), record.clients.offsets
    if len(cohort) == record.rounds:
        return np.asarray(cohort + canaries, np.float64)
    if offsets is not None and len(offsets) == record.rounds + 1:
        return np.asarray(np.diff(offsets) + canaries, np.float64)
    size = record.mechanism.cohort_size  # a deployment's mean number of replies, with canaries
    if not math.isfinite(size):
        return None
    return np.full(record.rounds, size)


def _series(record: AuditRecord, name: str) -> Floats:
    return np.asarray(record.metrics.get(name, np.empty(0)), np.float64)
