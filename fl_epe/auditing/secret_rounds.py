"""How a canary's rounds are drawn, for an adversary who does not know them."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.record import AuditRecord
from fl_epe.checks import raise_invalid
from fl_epe.schedules import SCHEDULES


@dataclasses.dataclass(frozen=True, eq=False)
class SecretRounds:
    """The law of one canary's rounds.

    Attributes:
        law: "coins", in each round independently with the same probability, as for Poisson sampling
            and for one member of a cohort of fixed size; "epochs", once in each of the ``blocks``.
        rate: probability of a canary to be in a round, for coins.
        blocks: the rounds of each epoch.
    """

    law: Literal["coins", "epochs"]
    rate: float
    blocks: list[NDArray[np.int64]]


def secret_rounds(record: AuditRecord) -> SecretRounds | None:
    """The law of a canary's rounds; ``None`` if it has no closed form."""
    mechanism, rounds = record.mechanism, record.rounds
    schedule, times = SCHEDULES.get(mechanism.participation), mechanism.canary_participations
    law = (
        None
        if schedule is None or mechanism.canary_weights is not None
        else schedule.unknown_rounds
    )
    if law is None or not rounds or (law == "epochs" and times != round(times)):
        return None
    blocks = np.array_split(np.arange(rounds), max(1, round(times)))
    return SecretRounds(law, min(times / rounds, 1.0), blocks)


def checked_secret_rounds(record: AuditRecord) -> SecretRounds:
    """`secret_rounds`.

    Raises:
        ValueError: if there is no closed form.
    """
    if (found := secret_rounds(record)) is None:
        mechanism = record.mechanism
        raise_invalid(
            "participation",
            mechanism.participation,
            f"with canary_participations={mechanism.canary_participations} to be poisson, "
            "fixed-size, balls-in-bins or whole epochs",
        )
    return found
