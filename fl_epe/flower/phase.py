"""The phases of an audited run: the round in progress, and whether rounds are still audited.

A run begins in `BeforeFirstRound`. While clients train in a round it is in `Training`, or in
`SittingOut` if no canary may join, and afterwards in `BetweenRounds`. `StartedAgain` lasts
until the next model shows whether the same run continues, and `Over` until a saved audit
replaces this one.
"""

import dataclasses
from typing import assert_never

from flwr.app import ArrayRecord

from fl_epe.flower.round_state import RoundState


@dataclasses.dataclass(frozen=True)
class BeforeFirstRound:
    """No round has begun.

    Attributes:
        awaited: the initial model with which a saved audit continues; ``None`` without one.
    """

    awaited: ArrayRecord | None = None


@dataclasses.dataclass(frozen=True)
class Training:
    """The clients of a round train, and canaries join their replies.

    Attributes:
        current: the round.
    """

    current: RoundState


@dataclasses.dataclass(frozen=True)
class SittingOut:
    """The clients of a round train, and no canary joins their replies.

    Attributes:
        current: the round.
    """

    current: RoundState


@dataclasses.dataclass(frozen=True)
class BetweenRounds:
    """The replies of the last round are aggregated, and the next round has not begun."""


@dataclasses.dataclass(frozen=True)
class StartedAgain:
    """The strategy was started again after some rounds; its model is still to be compared."""


@dataclasses.dataclass(frozen=True)
class Over:
    """No more rounds are audited.

    Attributes:
        reason: the reason.
        is_longer: whether all planned rounds are measured, and the run continued.
    """

    reason: str
    is_longer: bool = False


Phase = (
    BeforeFirstRound
    | Training
    | SittingOut
    | BetweenRounds
    | StartedAgain
    | Over
)


def current_round(phase: Phase) -> RoundState | None:
    """The audited round that is in progress; ``None`` without one."""
    match phase:
        case Training(current) | SittingOut(current):
            return current
        case BeforeFirstRound() | BetweenRounds() | StartedAgain() | Over():
            return None
        case _:
            assert_never(phase)
