"""`Source`: where an audit's canaries come from, and what it does to a run, said in advance."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from fl_epe.flower.round_state import RoundState

FAR_ABOVE = 1e3
"""How many times the clip norm a canary is, so that the clipping under audit scales it down."""

Vectors = Callable[[list[int]], NDArray[np.float32]]
"""Makes the canaries with these numbers, of length 1, shape ``(K, dim)``.

The next call may write over them.
"""

_WARN_ABOVE = 0.1


class SettingsError(ValueError):
    """An argument of the audit does not go with the run; said before its first round."""


class TooManyCanariesError(ValueError):
    """Canaries would have more than their share of a round."""

    def __init__(self, canaries: float, rest: float, most: float) -> None:
        super().__init__(
            f"Expected canaries to be at most {most:.0%} of a round, got {canaries:g} beside"
            f" {rest:g} of real clients ({canaries / (canaries + rest):.0%}): lower num_canaries or"
            " participations, or raise max_share."
        )


@dataclasses.dataclass(frozen=True)
class AuditPlan:
    """The audit's share of the rounds and its price.

    Attributes:
        canaries: most canaries in a round.
        clients: real clients in the first round, those that canaries replace included.
        replaced: how many of them are not asked in a round, as canaries take their place.
        dim: entries of a canary.
        left_out: names of arrays that canaries leave alone.
        reduced: which number of canaries was asked for, and why fewer take part; "" if all do.
    """

    canaries: int
    clients: int
    replaced: int = 0
    dim: int = 0
    left_out: Sequence[str] = ()
    reduced: str = ""

    @property
    def share(self) -> float:
        """Canaries among the replies of a round."""
        replies = self.clients - self.replaced + self.canaries
        return self.canaries / replies if replies else 0.0

    @property
    def too_much(self) -> bool:
        """Whether canaries take so much of a round that its user must hear of it."""
        return self.share > _WARN_ABOVE or bool(self.reduced)

    def sentences(self) -> list[str]:
        """The plan in plain English."""
        lines = [
            f"Up to {self.canaries} canaries a round, beside {self.clients - self.replaced} of"
            f" {self.clients} clients: {self.share:.0%} of the replies.",
            f"Real clients have {1 - self.share:.0%} of the weight that they have without the"
            f" audit{f', as {self.replaced} of them are not asked' if self.replaced else ''}.",
        ]
        if self.reduced:
            lines.append(self.reduced)
        if self.dim:  # a canary and its reply
            memory = 8 * self.canaries * self.dim / 1024**2
            lines.append(f"Canaries take about {math.ceil(memory)} MiB in a round.")
        if self.left_out:
            lines.append(f"Canaries leave alone: {', '.join(self.left_out)}.")
        return lines


class Source(abc.ABC):
    """Puts canaries into a round."""

    participation: str
    """Kind of schedule, as in `AuditRecord`."""

    def plan(self, clients: int, dim: int, left_out: Sequence[str]) -> AuditPlan:
        """What the audit does to a run with so many clients in its first round."""
        return AuditPlan(0, clients, left_out=left_out)

    @abc.abstractmethod
    def configure(self, state: RoundState, messages: list[Message]) -> None:
        """Decide what is sent of the strategy's ``messages``: fills ``state.sent``.

        Raises:
            TooManyCanariesError: if canaries would have more than their share of the round.
        """

    @abc.abstractmethod
    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """The replies that the strategy is given; fills ``state.facts``.

        Raises:
            ValueError: if a canary cannot join, with the reason.
        """

    def ended(self, index: int) -> str | None:
        """Why no canary takes part from the round with this index on; ``None`` if some do."""
        return None

    def rejected(self) -> str:
        """What happens from the next round on, as the strategy failed on the canaries' replies."""
        return "the strategy's own error"

    def averages_models(self) -> None:  # noqa: B027 - only synthetic replies need to know
        """Note that the new model is the average of the replies, so that these are models."""

    def reason(self) -> str | None:
        """Why fewer canaries took part than were meant to; ``None`` if nothing is known."""
        return None

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """What was found out so far, as JSON values."""

    @abc.abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Know what `state` returned."""
