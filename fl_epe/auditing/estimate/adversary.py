"""`Adversary`: what an attacker of a client sees of a run, and knows.

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
    """An attacker of a client of a run.

    Attributes:
        sees: "final", the final model and the initial one, or "all", every round's model.
        knows_rounds: whether the adversary knows the rounds in which the client takes part.
        knows_others: whether the adversary knows all other clients' updates, which is the full
            knowledge that differential privacy assumes; otherwise only the directions of the
            other canaries.
    """

    sees: Sees
    knows_rounds: bool = True
    knows_others: bool = False

    def __post_init__(self) -> None:
        checked_type("sees", self.sees, Sees)

    @property
    def sees_final(self) -> bool:
        """Whether the adversary sees the initial and the final model only."""
        match self.sees:
            case "final":
                return True
            case "all":
                return False
        assert_never(self.sees)


FINAL_MODEL = Adversary("final")
"""An adversary who sees the initial and the final model, and knows the client's rounds."""

EVERY_ROUND = Adversary("all")
"""An adversary who sees every round's model, and knows the client's rounds."""
