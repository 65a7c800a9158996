"""Where an audit's canaries come from: the server makes up replies, or clients answer with them."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from flwr.app import Message

from fl_epe.auditing import RoundFacts
from fl_epe.canaries import CanarySet
from fl_epe.flower import injection
from fl_epe.flower.client_canaries import ClientCanaries, with_order
from fl_epe.flower.round_state import RoundState
from fl_epe.flower.wrapped import Wrapped
from fl_epe.schedules import Cohort
from fl_epe.seeding import generator

_FAR_ABOVE = 1e3  # so that the clipping under audit is what scales a canary down
_JUST_BELOW = 1 - 1e-4  # of the clip norm: not clipped, whatever the arrays' rounding
_WITHHELD, _NORMS = 1, 2  # streams of an audit's own choices


class Source(abc.ABC):
    """Puts canaries into a round."""

    participation: str
    """Kind of schedule, as in `AuditRecord`."""

    @abc.abstractmethod
    def configure(self, state: RoundState, messages: list[Message]) -> None:
        """Decide what is sent of the strategy's ``messages``: fills ``state.sent``."""

    @abc.abstractmethod
    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """The replies that the strategy is given; fills ``state.facts``."""


@dataclasses.dataclass(frozen=True)
class ServerCanaries(Source):
    """Replies made up by the server, beside the real ones or in the place of some.

    Attributes:
        wrapped: the strategy.
        cohorts: numbers of the canaries that take part in each round.
        canaries: all of them; their dimension is that of the model.
        seed: of the choice of replaced clients, and of the updates whose median norm is taken.
        inject: "add", "replace" or "auto": fill up to the number of replies that the strategy's
            noise is meant for, and replace real clients beyond that.
        weight: weight of a canary in averages; the median of the real ones by default.
        length: norm of an update where nothing clips; the real ones' median by default.
    """

    wrapped: Wrapped
    cohorts: Sequence[Cohort]
    canaries: CanarySet
    seed: int
    inject: str = "auto"
    weight: float | None = None
    length: float | None = None

    participation = "epochs"

    def configure(self, state: RoundState, messages: list[Message]) -> None:
        """See `Source.configure`.

        Raises:
            ValueError: if no real client would be left.
        """
        replaced = self._replaced(len(self._cohort(state)), len(messages))
        if messages and replaced >= len(messages):
            raise ValueError(
                f"Expected fewer than {len(messages)} of the round's {len(messages)} clients to be"
                f" replaced by canaries, got {replaced}: lower num_canaries (or participations), or"
                " let num_sampled_clients count clients and canaries."
            )
        nodes = sorted(message.metadata.dst_node_id for message in messages)
        rng = generator(self.seed, _WITHHELD, state.index)
        out = {nodes[i] for i in rng.choice(len(nodes), replaced, replace=False)} if nodes else ()
        state.sent = [message for message in messages if message.metadata.dst_node_id not in out]
        state.withheld = [message for message in messages if message.metadata.dst_node_id in out]

    def _cohort(self, state: RoundState) -> list[int]:
        if state.index >= len(self.cohorts):
            return []
        return [int(number) for number in self.cohorts[state.index]]

    def _replaced(self, num_canaries: int, clients: int) -> int:
        expected = self.wrapped.expected_replies()
        if self.inject == "add" or (self.inject == "auto" and expected is None):
            return 0
        room = 0 if self.inject == "replace" or expected is None else max(expected - clients, 0)
        return max(num_canaries - room, 0)

    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """See `Source.join`. Without a readable real reply there is no round, and no canary."""
        real = injection.readable(replies)
        lost = len(state.sent) - len(real)
        state.facts = RoundFacts(clip_norm=state.clip_norm, replies=len(real), absent=lost)
        cohort = self._cohort(state)
        if not real or not cohort:
            return replies
        state.vectors = self.canaries.vectors(cohort)
        canary_norms = self._canary_norms(state, real, len(cohort))
        key = self.wrapped.weighted_by()
        metrics = injection.neutral_metrics(real, key, self.weight)
        state.made_up = injection.make_replies(cohort, canary_norms, real[0], metrics, state)
        state.facts = dataclasses.replace(
            state.facts,
            present=cohort,
            contribution=canary_norms.counted * self._share(real, state.made_up, key),
            replies=len(real) + len(cohort),
        )
        return [*replies, *state.made_up]

    def _share(self, real: list[Message], made_up: list[Message], key: str) -> float:
        """Share of one canary in the average; NaN where the strategy is no average."""
        if not self.wrapped.averages():
            return math.nan
        weights = injection.weights(made_up, key)
        return weights[0] / (sum(weights) + sum(injection.weights(real, key)))

    def _canary_norms(
        self, state: RoundState, real: list[Message], count: int
    ) -> injection.CanaryNorms:
        clipped = np.zeros(count, bool)
        if math.isnan(state.clip_norm):
            length = self.length or self._median(state, real)
            return injection.CanaryNorms(np.full(count, length), clipped, length)
        sent = np.full(count, state.clip_norm)
        target = self.wrapped.target_clipped()
        if self.wrapped.clips_on_server or target is not None:
            # So that canaries do not move an adaptive clip norm, as many are clipped as it aims at.
            clipped = np.arange(count) < (count if target is None else round(target * count))
            sent *= np.where(clipped, _FAR_ABOVE, _JUST_BELOW)
        if not self.wrapped.clips_on_server:
            sent = np.minimum(sent, state.clip_norm)
        return injection.CanaryNorms(sent, clipped, state.clip_norm)

    def _median(self, state: RoundState, real: list[Message]) -> float:
        rng = generator(self.seed, _NORMS, state.index)
        length = injection.median_norm(real, state, rng)
        if not 0 < length < math.inf:
            raise ValueError(
                f"Expected a median norm={length} of the clients' updates in (0, inf): set"
                " canary_norm."
            )
        return length


@dataclasses.dataclass(frozen=True)
class ClientAnswers(Source):
    """Clients that answer with a canary through `canary_mod`, whenever they are asked to train.

    Attributes:
        wrapped: the strategy.
        clients: which clients, with which canaries.
        length: norm of an update where nothing clips; the client's own by default.
    """

    wrapped: Wrapped
    clients: ClientCanaries
    length: float | None = None

    participation = "deployment"

    def configure(self, state: RoundState, messages: list[Message]) -> None:
        """See `Source.configure`."""
        length = self.length or 0.0
        if self.wrapped.clips_on_server and math.isfinite(state.clip_norm):
            length = _FAR_ABOVE * state.clip_norm
        for message in messages:
            order = self.clients.order(message.metadata.dst_node_id, length)
            state.sent.append(message if order is None else with_order(message, order))

    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """See `Source.join`. Reads who answered, and nothing of what they answered."""
        answered = injection.readable(replies)
        numbers = [self.clients.number(reply.metadata.src_node_id) for reply in answered]
        share = state.clip_norm / len(answered) if answered else math.nan
        state.facts = RoundFacts(
            present=[number for number in numbers if number is not None],
            contribution=share if self.wrapped.averages() else math.nan,
            clip_norm=state.clip_norm,
            replies=len(answered),
            absent=len(state.sent) - len(answered),
        )
        return replies


class OwnCanaries(Source):
    """A strategy that has canaries itself: its messages and replies stay as they are."""

    participation = "epochs"

    def configure(self, state: RoundState, messages: list[Message]) -> None:
        """See `Source.configure`."""
        state.sent = messages

    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """See `Source.join`; the strategy itself knows the facts."""
        return replies
