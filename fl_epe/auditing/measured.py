"""Whether a record measures anything: an ε that was not measured is an error, never a number.

`check_measured` raises `NotMeasured` with the reason in a sentence; every statistic of a record
asks it first.

Examples:
    >>> raise NotMeasured("no canary took part in 12 rounds")
    Traceback (most recent call last):
    fl_epe.auditing.measured.NotMeasured: no canary took part in 12 rounds
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.record import AuditRecord

LEAST_CANARIES = 2
"""Canaries that must have taken part for an ε."""


class NotMeasured(ValueError):  # noqa: N818 - a finding, which reports show
    """ε was not measured; the message says why, in a sentence without its full stop."""


def check_measured(
    record: AuditRecord, threat: Literal["final", "all"], statistic: str | None = None
) -> None:
    """Refuse a record that has nothing to say about ε.

    Args:
        record: the audit record of a run.
        threat: "final" (the adversary sees the final model) or "all" (every round's).
        statistic: of the threat; "model" looks at the final model instead of its displacement.

    Raises:
        NotMeasured: with the reason.
    """
    reason = _nobody(record) or _nothing_added(record)
    if reason is None:
        reason = _no_final_model(record, statistic) if threat == "final" else _no_rounds(record)
    unbounded = record.provenance.config.get("unbounded")  # what ran the audit saw no noise
    if reason is None and threat == "all" and isinstance(unbounded, str) and unbounded:
        reason = unbounded
    if reason is not None:
        raise NotMeasured(reason)


def too_few(count: int, where: str) -> str | None:
    """Why ``count`` canaries are too few for an ε, or ``None``; ``where`` ends the sentence."""
    if count >= LEAST_CANARIES:
        return None
    who = "no canary" if count == 0 else f"only {count} canary"
    needed = f"; an ε needs at least {LEAST_CANARIES}" if count else ""
    return f"{who} took part {where}{needed}"


def in_rounds(rounds: int) -> str:
    """Such as "in 1 round" or "in 12 rounds"."""
    return f"in {rounds} round" + ("" if rounds == 1 else "s")


def _nobody(record: AuditRecord) -> str | None:
    few = too_few(_count(record.presence), in_rounds(record.rounds))
    told = record.provenance.config.get("not_measured")
    if few and isinstance(told, str) and told:  # what ran the audit knows a better reason
        return told.rstrip(". ")
    return "the audit saw no round" if record.rounds == 0 else few


def _nothing_added(record: AuditRecord) -> str | None:
    """Canaries that took part, but added a vector of norm 0 to what was released."""
    mechanism = record.mechanism
    added = mechanism.clip_norms if mechanism.contributions is None else mechanism.contributions
    adding = _count(record.presence & ~(added == 0)[:, None])
    if adding >= LEAST_CANARIES:
        return None
    who = "none" if adding == 0 else f"only {adding}"
    took_part = f"{_count(record.presence)} canaries that took part {in_rounds(record.rounds)}"
    return f"{who} of the {took_part} added anything to the model"


def _no_final_model(record: AuditRecord, statistic: str | None) -> str | None:
    norms = record.norms
    if not (math.isfinite(norms.final) and math.isfinite(norms.displacement)):
        return "the final model is not finite"
    if statistic == "model":
        return None if norms.final > 0 else "every entry of the final model is 0"
    if norms.displacement > 0:
        return None
    return f"the final model is equal to the initial one, after {record.rounds} rounds"


def _no_rounds(record: AuditRecord) -> str | None:
    if _count(record.presence & (record.norms.means > 0)[:, None]) >= LEAST_CANARIES:
        return None
    rounds = int(record.presence.any(axis=1).sum())
    which = "the round" if rounds == 1 else f"the {rounds} rounds"
    return f"the model did not move in {which} in which canaries took part"


def _count(presence: NDArray[np.bool_]) -> int:
    """Canaries that took part in at least one round."""
    return int(presence.any(axis=0).sum())
