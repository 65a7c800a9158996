"""The phases of an audited run: the round in progress, and whether rounds are still audited.

While clients train in a round, a run is in `InRound`, and before and after it in
`BetweenRounds`. `StartedAgain` lasts until the next model shows whether the same run continues,
and `Over` until a saved audit replaces this one.
"""

import dataclasses

from flwr.app import ArrayRecord

from fl_epe.flower.round_state import RoundState


@dataclasses.dataclass(frozen=True)
class BetweenRounds:
    """No round is in progress.

    Attributes:
        awaited: before the first round, the initial model with which a saved audit continues;
            ``None`` without one.
    """

    awaited: ArrayRecord | None = None


@dataclasses.dataclass(frozen=True)
class InRound:
    """The clients of a round train.

    Attributes:
        current: the round.
    """

    current: RoundState


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


Phase = BetweenRounds | InRound | StartedAgain | Over


def current_round(phase: Phase) -> RoundState | None:
    """The audited round that is in progress; ``None`` without one."""
    if isinstance(phase, InRound):
        return phase.current
    return None
