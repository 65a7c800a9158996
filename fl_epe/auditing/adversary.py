"""`Adversary`: what an attacker on a run sees and knows; every ε is against one.

Examples:
    >>> EVERY_ROUND
    Adversary(sees='all', knows_rounds=True, knows_others=False)
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from fl_epe.checks import raise_invalid

Sees = Literal["final", "all"]
"""The final model, or every round's model."""


@dataclasses.dataclass(frozen=True)
class Adversary:
    """Who attacks a client of a run.

    Attributes:
        sees: "final", the final model and the initial one, or "all", every round's model.
        knows_rounds: whether the rounds in which the client takes part are known.
        knows_others: whether all other clients' updates are known (the full knowledge that
            differential privacy assumes); if not, the directions of the other canaries are known
            and no more.
    """

    sees: Sees
    knows_rounds: bool = True
    knows_others: bool = False

    def __post_init__(self) -> None:
        if self.sees not in ("final", "all"):
            raise_invalid("sees", self.sees, "to be 'final' or 'all'")


FINAL_MODEL = Adversary("final")
"""Sees the initial and the final model, and knows the client's rounds."""

EVERY_ROUND = Adversary("all")
"""Sees every round's model, and knows the client's rounds."""
