"""`Adversary`: who attacks a client of a run, what is seen, and what is known.

Examples:
    >>> FINAL_MODEL.sees_final, EVERY_ROUND.sees_final
    (True, False)
"""

import dataclasses
from typing import Literal, assert_never

from fl_epe.checks import checked_type

Sees = Literal["final", "all"]
"""The final model, or every round's model."""


@dataclasses.dataclass(frozen=True)
class Adversary:
    """Who attacks a client of a run.

    Attributes:
        sees: "final", the final model and the initial one, or "all", every round's model.
        knows_rounds: whether the rounds in which the client takes part are known.
        knows_others: whether all other clients' updates are known (the full knowledge that
            differential privacy assumes); if not, only the directions of the other canaries are.
    """

    sees: Sees
    knows_rounds: bool = True
    knows_others: bool = False

    def __post_init__(self) -> None:
        checked_type("sees", self.sees, Sees)

    @property
    def sees_final(self) -> bool:
        """Whether only the final model is seen, beside the initial one."""
        match self.sees:
            case "final":
                return True
            case "all":
                return False
        assert_never(self.sees)


FINAL_MODEL = Adversary("final")
"""Sees the initial and the final model, and knows the client's rounds."""

EVERY_ROUND = Adversary("all")
"""Sees every round's model, and knows the client's rounds."""
