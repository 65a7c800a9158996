"""What an audit does to a run, and what it holds of a round under way."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fl_epe.auditing import RoundFacts
from fl_epe.flower.arrays import Layout

_WARN_ABOVE = 0.1
_ROUNDING = 1e-5  # shares that differ less are equal


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


def canaries_that_fit(share: float, clients: int, room: float) -> float:
    """How many canaries a round may have: at least one, if that is at most twice their share.

    Args:
        share: largest of a round's replies.
        clients: whom the strategy asks.
        room: how many replies can be added to theirs; beyond that canaries replace clients. Who
            set a finite number asked for canaries in it, up to half of a round.
    """
    if share == 1:
        return math.inf
    most = math.floor(min(share / (1 - share) * clients, share * (clients + room)) + 1e-9)
    one = 2 * share * (clients + min(room, 1)) >= 1
    return max(most, one, min(room, clients) if math.isfinite(room) else 0)


@dataclasses.dataclass(frozen=True)
class AuditPlan:
    """The audit's share of the rounds and its price.

    Attributes:
        canaries: most canaries in a round.
        clients: real clients in the first round, those that canaries replace included.
        replaced: how many of them are not asked in a round, as canaries take their place.
        left_out: names of arrays that canaries leave alone.
        reduced: which number of canaries was asked for, and why fewer take part; "" if all do.
    """

    canaries: int
    clients: int
    replaced: int = 0
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
        if self.left_out:
            lines.append(f"Canaries leave alone: {', '.join(self.left_out)}.")
        return lines


@dataclasses.dataclass
class RoundState:
    """A round from the messages that go out to the model that comes back.

    Attributes:
        index: of the round, from 0.
        arrays: the global model that is sent out.
        layout: of the model.
        clip_norm: of the round; NaN where nothing is known to clip.
        grid: by which clients can be asked.
        sent: messages that go out.
        withheld: messages that do not, as a canary answers in their place.
        synthetic: replies that the server made.
        vectors: the canaries in them, shape ``(K, dim)``.
        counted: norm that each canary has after clipping; NaN if not known.
        replies: all that the strategy is given, without an error.
        played: those with canaries, in the order of ``facts.present``.
        used: replies that the strategy used, as in `Shares`; ``None`` if it does not tell.
        facts: what the auditor is told.
        heaviest: largest share of a real reply, and of a canary; NaN if not known.
        sits_out: whether no canary may join, and the round is the strategy's alone.
    """

    index: int
    arrays: ArrayRecord
    layout: Layout
    clip_norm: float
    grid: Grid | None = None
    sent: list[Message] = dataclasses.field(default_factory=list)
    withheld: list[Message] = dataclasses.field(default_factory=list)
    synthetic: list[Message] = dataclasses.field(default_factory=list)
    vectors: NDArray[np.float32] | None = None
    counted: float = math.nan
    replies: list[Message] = dataclasses.field(default_factory=list)
    played: list[Message] = dataclasses.field(default_factory=list)
    used: set[int] | None = None
    facts: RoundFacts = dataclasses.field(default_factory=RoundFacts)
    heaviest: tuple[float, float] = (math.nan, math.nan)
    sits_out: bool = False

    @functools.cached_property
    def before(self) -> NDArray[np.floating]:
        """The global model as one vector, shape ``(dim,)``."""
        return self.layout.flatten(self.arrays)

    def without_canaries(self) -> None:
        """Forget the canaries of this round: nobody takes part."""
        self.synthetic, self.played, self.vectors, self.used = [], [], None, None
        self.replies = []
        self.facts = dataclasses.replace(self.facts, present=(), contribution=0.0)

    def settle(self, shares: Mapping[int, float] | None) -> int:
        """Note what each canary added to the mean; how many the strategy left out.

        Args:
            shares: of the replies, see `Aggregation.shares`; ``None`` if they are not known.
        """
        ids = [id(reply.content) for reply in self.played]
        if shares is None:
            mine = [math.nan if self.used is None or i in self.used else 0.0 for i in ids]
        else:
            mine = [shares.get(i, 0.0) for i in ids]
            real = max((share for i, share in shares.items() if i not in ids), default=math.nan)
            self.heaviest = real, max(mine, default=math.nan)
        kept = [position for position, share in enumerate(mine) if not share <= 0]
        left_out = len(ids) - len(kept)
        if not kept:
            self.facts = dataclasses.replace(self.facts, present=(), contribution=0.0)
            return left_out
        weights = np.array(mine)[kept]
        typical = float(np.sqrt(np.mean(weights**2)))
        differ = bool(np.ptp(weights) > _ROUNDING * typical)
        if left_out and self.vectors is not None:
            self.vectors = self.vectors[kept]
        present = list(self.facts.present)
        self.facts = dataclasses.replace(
            self.facts,
            present=[present[position] for position in kept],
            contribution=self.counted * typical,
            weights=(weights / typical).tolist() if differ else (),
            absent=self.facts.absent + left_out,
        )
        return left_out
