"""`RoundState`: a round under way, and what each of its clients and canaries added."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fl_epe.auditing import RoundFacts
from fl_epe.checks import Floats32, Vector
from fl_epe.flower.dominance import RoundUpdates
from fl_epe.flower.layout import Layout

_ROUNDING = 1e-5  # shares that differ less are equal

Shares = Mapping[int, float]
"""Share of each reply in what was released, by the ``id`` of its content."""


@dataclasses.dataclass
class Aggregation:
    """The replies that a strategy was given, and the arrays that it made of them.

    Attributes:
        replies: those without an error.
        arrays: the strategy's result; ``None`` until it is there.
    """

    replies: Sequence[Message] = ()
    arrays: ArrayRecord | None = None

    @property
    def eps(self) -> float:
        """Machine epsilon of the coarsest floating-point array that was made."""
        arrays = (self.arrays or {}).values()
        return float(
            max(
                np.finfo(array.dtype).eps
                for array in arrays
                if "float" in array.dtype
            )
        )


@dataclasses.dataclass(frozen=True)
class StrategyCall:
    """What was seen of the strategy's aggregation.

    Attributes:
        replies: all that it was given, without an error.
        used: replies that it used, as in `Shares`; ``None`` if it does not tell.
        innermost: what the innermost strategy was given and made; ``None`` if that was not seen.
        noise_std: claimed standard deviation of the noise; ``None`` if that is not seen apart.
    """

    replies: Sequence[Message] = ()
    used: Collection[int] | None = None
    innermost: Aggregation | None = None
    noise_std: float | None = None


@dataclasses.dataclass(frozen=True)
class CanaryReplies:
    """The canaries among the replies of a round.

    Attributes:
        numbers: of the canaries.
        replies: with these canaries, in their order.
        vectors: the canaries, shape ``(K, dim)``, if the server made the replies; ``None`` if
            clients sent them.
    """

    numbers: Sequence[int] = ()
    replies: Sequence[Message] = ()
    vectors: Floats32 | None = None

    @property
    def synthetic(self) -> Sequence[Message]:
        """Replies that the server made."""
        if self.vectors is None:
            return ()
        return self.replies


@dataclasses.dataclass
class RoundState:
    """A round from the messages that go out to the model that comes back.

    Attributes:
        index: of the round, from 0.
        arrays: the global model that is sent out.
        layout: of the model.
        before: the model as one vector, shape ``(dim,)``.
        clip_norm: of the round; NaN where nothing is known to clip.
        grid: by which clients can be asked.
        sent: messages that go out.
        withheld: messages that do not, as a canary answers in their place.
        cohort: numbers of the canaries that are to take part.
        clients: the client of each real reply, by the ``id`` of its content.
        absent: clients and canaries whose update was lost.
        update_norm: norm of a client's update after clipping, which a canary's has, too; NaN if not
            known. The clip norm, until replies are read.
        canaries: that take part.
        call: what was seen of the strategy's aggregation.
        updates: of the real clients, in some entries; ``None`` if they cannot be read.
        unmoved: names of arrays of the layout that no reply of the round moved: canaries leave
            them alone in it.
        moved_part: expected cosine of a canary with what is left of it in the other arrays.
    """

    index: int
    arrays: ArrayRecord
    layout: Layout
    before: Vector
    clip_norm: float
    grid: Grid
    sent: list[Message]
    withheld: list[Message] = dataclasses.field(default_factory=list)
    cohort: list[int] = dataclasses.field(default_factory=list)
    clients: dict[int, int] = dataclasses.field(default_factory=dict)
    absent: int = 0
    update_norm: float = dataclasses.field(init=False)
    canaries: CanaryReplies = CanaryReplies()
    call: StrategyCall = StrategyCall()
    updates: RoundUpdates | None = None
    unmoved: Collection[str] = ()
    moved_part: float = 1.0

    def __post_init__(self) -> None:
        self.update_norm = self.clip_norm

    def without_canaries(self) -> None:
        """Forget the canaries, and the strategy's call with them."""
        self.canaries = CanaryReplies()
        self.call = StrategyCall()

    def settle(
        self, shares: Shares | None
    ) -> tuple[RoundFacts, Floats32 | None]:
        """What a client of median weight added to the mean, and each canary.

        Canaries that the strategy left out are absent.

        Args:
            shares: of the replies, see `shares_of`; ``None`` if they are not known.

        Returns:
            What the round shows, and the vectors of the canaries that are present.
        """
        contents = [id(reply.content) for reply in self.canaries.replies]
        canary_shares = [1.0] * len(contents)
        if shares:
            canary_shares = [shares.get(content, 0.0) for content in contents]
        used = self.call.used
        present = [
            position
            for position, content in enumerate(contents)
            if canary_shares[position] > 0 and (used is None or content in used)
        ]
        vectors = self.canaries.vectors
        if len(present) < len(contents) and vectors is not None:
            vectors = vectors[present]
        median = self._median_share(shares)
        weights = [1.0] * len(present)
        if shares:
            weights = [canary_shares[position] / median for position in present]
        contribution = self.update_norm * median
        if math.isnan(self.clip_norm):  # no noise in arrays that nobody moved
            contribution *= self.moved_part
        else:
            weights = [weight * self.moved_part for weight in weights]
        differ = any(abs(weight - 1) > _ROUNDING for weight in weights)
        facts = RoundFacts(
            present=[self.canaries.numbers[position] for position in present],
            contribution=contribution,
            clip_norm=self.clip_norm,
            replies=len(self.call.replies),
            absent=self.absent + len(contents) - len(present),
            weights=weights if differ else (),
        )
        return facts, vectors

    def _median_share(self, shares: Shares | None) -> float:
        """The median share of the real replies that have any; NaN if not known.

        Where every reply is a canary's, that of these.
        """
        if not shares:
            return math.nan
        canaries = {id(reply.content) for reply in self.canaries.replies}
        positive = {
            content: share for content, share in shares.items() if share > 0
        }
        real = [
            share
            for content, share in positive.items()
            if content not in canaries
        ]
        return statistics.median_low(real or positive.values() or [math.nan])

    def client_weights(self, shares: Shares | None) -> dict[int, float]:
        """How many times the median share each client's replies had together; 1 each if unknown."""
        median = self._median_share(shares)
        weights = dict.fromkeys(self.clients.values(), 0.0)
        for content, client in self.clients.items():
            weights[client] += (
                shares.get(content, 0.0) / median if shares else 1.0
            )
        return weights
