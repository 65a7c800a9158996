"""What an audit is about to do to a run, said before its first round."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

_WARN_ABOVE = 0.1


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
class Plan:
    """The audit's share of the rounds and its price.

    Attributes:
        canaries: most canaries in a round.
        clients: real clients in the first round, those that canaries replace included.
        replaced: how many of them are not asked in a round, as canaries take their place.
        seconds: time a round for drawing and scoring canaries, about; NaN if not known.
        memory: bytes for canaries, their replies and models that wait to be scored; NaN if not
            known.
        left_out: names of arrays that canaries leave alone.
        reduced: which number of canaries was asked for, and why fewer take part; "" if all do.
    """

    canaries: int
    clients: int
    replaced: int = 0
    seconds: float = math.nan
    memory: float = math.nan
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
        if math.isfinite(self.seconds):
            lines.append(
                f"Canaries take about {self.seconds:.1g} s a round and"
                f" {self.memory / 1024**2:.0f} MiB."
            )
        if self.left_out:
            lines.append(f"Canaries leave alone: {', '.join(self.left_out)}.")
        return lines
