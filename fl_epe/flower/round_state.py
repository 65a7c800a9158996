"""`RoundState`: a round in progress, and the contributions of its clients and canaries."""

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

# Weights that differ by less from 1 count as 1.
_MAX_DIFFERENCE = 1e-5

Shares = Mapping[int, float]
"""The share of each reply in the released model, by the ``id`` of its content."""


@dataclasses.dataclass
class Aggregation:
    """The replies that a strategy got, and the arrays into which it aggregated them.

    Attributes:
        replies: the replies without an error.
        arrays: the strategy's result; ``None`` before there is one.
    """

    replies: Sequence[Message] = ()
    arrays: ArrayRecord | None = None

    @property
    def eps(self) -> float:
        """The machine epsilon of the coarsest floating-point array in the result."""
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
    """What was observed of a call of the strategy's ``aggregate_train``.

    Attributes:
        replies: all replies without an error that it got.
        used: the ``id`` of the content of each reply that it used, as in `Shares`; ``None`` if
            that is not known.
        innermost: the aggregation of the innermost strategy; ``None`` if it was not observed.
        noise_std: the claimed standard deviation of the noise; ``None`` if the noise cannot be
            separated from the updates.
    """

    replies: Sequence[Message] = ()
    used: Collection[int] | None = None
    innermost: Aggregation | None = None
    noise_std: float | None = None


@dataclasses.dataclass(frozen=True)
class CanaryReplies:
    """The canaries among the replies of a round.

    Attributes:
        numbers: the numbers of the canaries.
        replies: the replies with these canaries, in the same order.
        vectors: the canaries, shape ``(K, dim)``, if the server made the replies; ``None`` if
            clients sent them.
    """

    numbers: Sequence[int] = ()
    replies: Sequence[Message] = ()
    vectors: Floats32 | None = None

    @property
    def synthetic(self) -> Sequence[Message]:
        """The replies that the server made."""
        if self.vectors is None:
            return ()
        return self.replies


@dataclasses.dataclass
class RoundState:
    """A round, from the messages to clients to the released model.

    Attributes:
        index: the index of the round, from 0.
        arrays: the global model that is sent to clients.
        layout: the layout of the model.
        before: the global model as one vector, shape ``(dim,)``.
        clip_norm: the clip norm of the round; NaN without known clipping.
        grid: the grid by which clients are asked.
        sent: the messages that are sent.
        withheld: the messages that are not sent, as a canary replaces the client.
        canaries_may_join: whether canaries join the replies.
        cohort: the numbers of the canaries that should take part.
        clients: the client of each real reply, by the ``id`` of its content.
        absent: the number of clients and canaries whose update is lost.
        update_norm: the norm of a client's or a canary's update after clipping; NaN if not
            known. It is the clip norm until replies are read.
        canaries: the canaries that take part.
        call: what was observed of the strategy's aggregation.
        updates: some entries of the real clients' updates; ``None`` if they cannot be read.
        unmoved: the names of the layout's arrays that no reply of the round moved, and that
            canaries do not move in this round either.
        moved_norm: the expected norm of a canary without these arrays, at most 1.
    """

    index: int
    arrays: ArrayRecord
    layout: Layout
    before: Vector
    clip_norm: float
    grid: Grid
    sent: list[Message]
    withheld: list[Message] = dataclasses.field(default_factory=list)
    canaries_may_join: bool = False
    cohort: list[int] = dataclasses.field(default_factory=list)
    clients: dict[int, int] = dataclasses.field(default_factory=dict)
    absent: int = 0
    update_norm: float = dataclasses.field(init=False)
    canaries: CanaryReplies = CanaryReplies()
    call: StrategyCall = StrategyCall()
    updates: RoundUpdates | None = None
    unmoved: Collection[str] = ()
    moved_norm: float = 1.0

    def __post_init__(self) -> None:
        self.update_norm = self.clip_norm

    def remove_canaries(self) -> None:
        """Remove the canaries, and what was observed of the strategy's call with them."""
        self.canaries_may_join = False
        self.canaries = CanaryReplies()
        self.call = StrategyCall()

    def settle(
        self, shares: Shares | None
    ) -> tuple[RoundFacts, Floats32 | None]:
        """The contributions to the mean: of a client with median weight, and of each canary.

        Canaries that the strategy did not use are absent.

        Args:
            shares: the shares of the replies, see `shares_of`; ``None`` if they are not known.

        Returns:
            The facts of the round, and the vectors of the canaries that are present.
        """
        contents = [id(reply.content) for reply in self.canaries.replies]
        # Without shares, all canaries have the same share.
        canary_shares = shares or dict.fromkeys(contents, 1.0)
        used = self.call.used
        present = [
            position
            for position, content in enumerate(contents)
            if canary_shares.get(content, 0.0) > 0
            and (used is None or content in used)
        ]
        vectors = self.canaries.vectors
        if len(present) < len(contents) and vectors is not None:
            vectors = vectors[present]
        median = self._median_share(canary_shares)
        weights = [
            canary_shares[contents[position]] / median for position in present
        ]
        contribution = math.nan
        if shares:
            contribution = self.update_norm * median
        if math.isnan(self.clip_norm):
            # Without clipping, clients also move only the moved arrays, so that canaries keep
            # their weights relative to a client's.
            contribution *= self.moved_norm
        else:
            weights = [weight * self.moved_norm for weight in weights]
        are_unequal = any(
            abs(weight - 1) > _MAX_DIFFERENCE for weight in weights
        )
        facts = RoundFacts(
            present=[self.canaries.numbers[position] for position in present],
            contribution=contribution,
            clip_norm=self.clip_norm,
            replies=len(self.call.replies),
            absent=self.absent + len(contents) - len(present),
            weights=weights if are_unequal else (),
        )
        return facts, vectors

    def _median_share(self, shares: Shares) -> float:
        """The lower median of the real replies' positive shares; NaN without positive shares.

        If every reply is a canary's, it is the median of the canaries' shares.
        """
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
        """The share of each client's replies, divided by the median share.

        Without shares, it is the number of the client's replies.
        """
        client_shares = shares or dict.fromkeys(self.clients, 1.0)
        median = self._median_share(client_shares)
        weights = dict.fromkeys(self.clients.values(), 0.0)
        for content, client in self.clients.items():
            weights[client] += client_shares.get(content, 0.0) / median
        return weights
