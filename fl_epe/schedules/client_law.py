"""The exact law of one client's rounds, as a mixture of types of clients.

`fl_epe.accounting` turns it into the law of what a client leaves behind, see
`fl_epe.accounting.expected_score_law`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class ClientType:
    """Clients whose rounds are drawn in the same way, by events that follow each other in time.

    In each event a client takes part in at most one round. Events are independent but for
    ``rest`` and ``most``.

    Attributes:
        share: probability that a client is of this type.
        events: number of the event of each row, ascending from 0, shape ``(rows,)``.
        rounds: a round of that event, ``(rows,)``.
        chances: probability of taking part in that round, ``(rows,)``; those of an event add up
            to at most 1.
        keep: probability with which a participation counts, once the cap has let it in.
        most: cap: events after so many participations are refused; ``None`` for no cap.
        rest: after taking part in an event a client takes no part in the ``rest - 1`` next ones;
            chances are those of a client who is not resting.
    """

    share: float
    events: NDArray[np.int64]
    rounds: NDArray[np.int64]
    chances: Floats
    keep: float = 1.0
    most: int | None = None
    rest: int = 1

    @classmethod
    def coins(cls, share: float, chances: Floats, rest: int = 1) -> ClientType:
        """One event a round, with these probabilities of taking part, ``(T,)``."""
        used = np.flatnonzero(chances)
        events = np.arange(len(used)) if rest == 1 else used
        return cls(share, events, used, np.asarray(chances, np.float64)[used], rest=rest)

    @classmethod
    def blocks(cls, share: float, chances: list[tuple[int, Floats]]) -> ClientType:
        """One event a block of rounds: its first round and the chances of its rounds."""
        events = np.repeat(np.arange(len(chances)), [len(part) for _, part in chances])
        rounds = [start + np.arange(len(part)) for start, part in chances]
        return cls(
            share, events, np.concatenate(rounds), np.concatenate([part for _, part in chances])
        )

    def thinned(self, keep: float) -> ClientType:
        """Each participation then counts with probability ``keep``."""
        if self.most is None and self.rest == 1:
            return dataclasses.replace(self, chances=self.chances * keep)
        return dataclasses.replace(self, keep=self.keep * keep)

    def capped(self, most: int) -> ClientType | None:
        """With a cap on participations; ``None`` where that has no closed form here."""
        if self.keep < 1 or self.rest > 1:
            return None
        caps = [most] if self.most is None else [most, self.most]
        return dataclasses.replace(self, most=min(caps))


ClientLaw = tuple[ClientType, ...]
"""The types of clients; their shares add up to 1."""
