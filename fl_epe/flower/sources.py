"""Where an audit's canaries come from: the server makes up replies, or clients answer with them."""

from __future__ import annotations

import abc
import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from fl_epe.auditing import RoundFacts
from fl_epe.flower import injection
from fl_epe.flower.client_canaries import (
    Acknowledgement,
    CanaryOrder,
    ClientCanaries,
    take_acknowledgement,
    with_order,
)
from fl_epe.flower.plan import canaries_that_fit
from fl_epe.flower.reply_kind import ReplyKind, are_noise, kind_of_replies
from fl_epe.flower.round_state import RoundState
from fl_epe.flower.wrapped import Wrapped
from fl_epe.schedules import Cohort
from fl_epe.seeding import generator

Vectors = Callable[[list[int]], NDArray[np.float32]]
"""Makes the canaries with these numbers, of length 1, shape ``(K, dim)``.

The next call may write over them.
"""

_FAR_ABOVE = 1e3  # so that the clipping under audit is what scales a canary down
_JUST_BELOW = 1 - 1e-4  # of the clip norm: not clipped, whatever the arrays' rounding
_LOUD, _LEAST_COMPARED = 4, 3  # times the median norm, among so many updates
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

    def note_loud(
        self,
        wrapped: Wrapped,
        state: RoundState,
        real: Sequence[Message],
        kind: ReplyKind | None,
        rng: np.random.Generator,
    ) -> None:
        """Note updates in ``state.loud`` that are most of the energy of the round's updates."""
        norms = injection.norms_of(real, state, wrapped.arrays_key(), kind, rng)
        if wrapped.clips_on_server:
            norms = np.minimum(norms, state.clip_norm)
        known = np.isfinite(norms)
        if known.sum() < _LEAST_COMPARED:
            return
        energies = (norms * np.array(injection.weights(real, wrapped.weighted_by()))) ** 2
        typical, whole = float(np.median(norms[known])), float(energies[known].sum())
        loud = known & (norms > _LOUD * typical)
        if energies[loud].sum() > whole / 2:
            state.loud = [
                f"node {real[i].metadata.src_node_id}: its update is {norms[i] / typical:.0f} times"
                f" as long as the median one, and {energies[i] / whole:.0%} of the energy of all"
                for i in np.flatnonzero(loud).tolist()
            ]

    def rejected(self) -> str:
        """What happens from the next round on, as the strategy failed on the canaries' replies."""
        return "the strategy's own error"

    def averages_models(self) -> None:  # noqa: B027 - only who makes replies up needs to know
        """Note that the new model is the average of the replies, so that these are models."""

    def reason(self) -> str | None:
        """Why fewer canaries took part than were meant to; ``None`` if nothing is known."""
        return None

    def state(self) -> dict[str, Any]:
        """What was found out so far, as JSON values."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most find out nothing
        """Know what `state` returned."""


@dataclasses.dataclass
class ServerCanaries(Source):
    """Replies made up by the server, beside the real ones or in the place of some.

    Attributes:
        wrapped: the strategy.
        spread: makes the numbers of the canaries that take part in each round, of so many.
        number: how many canaries take part; fewer if they do not fit (`fit`).
        vectors: the updates of the canaries with these numbers, at length 1, shape ``(K, dim)``.
        seed: of the choice of replaced clients, and of the updates whose median norm is taken.
        inject: "add", "replace" or "auto": fill up to the number of replies that the strategy's
            noise is meant for, and replace real clients beyond that; "none" after the strategy
            has failed on either.
        weight: weight of a canary in averages; by default drawn from the real ones'.
        length: norm of an update where nothing clips; the real ones' median by default.
        kind: what replies are; found out if ``None``.
        max_share: largest share of a round's replies that canaries may have.
    """

    wrapped: Wrapped
    spread: Callable[[int], list[Cohort]]
    number: int
    vectors: Vectors
    seed: int
    inject: str = "auto"
    weight: float | None = None
    length: float | None = None
    kind: ReplyKind | None = None
    max_share: float = 0.1

    participation = "epochs"

    def __post_init__(self) -> None:
        self.cohorts = self.spread(self.number)
        if self.kind is None and self.wrapped.takes_models():
            self.kind = "model"

    def configure(self, state: RoundState, messages: list[Message]) -> None:
        """See `Source.configure`.

        Raises:
            TooManyCanariesError: if they would have more than their share of the round.
        """
        count = len(self._cohort(state))
        replaced = self.replaced(count, len(messages))
        self._check_share(count, max(len(messages) - replaced, 0))
        rng = generator(self.seed, _WITHHELD, state.index)
        by_node = sorted(range(len(messages)), key=lambda i: messages[i].metadata.dst_node_id)
        out = {by_node[i] for i in rng.choice(len(messages), replaced, replace=False)}
        state.sent = [m for i, m in enumerate(messages) if i not in out]
        state.withheld = [messages[i] for i in sorted(out)]

    def fit(self, clients: int) -> str:
        """Spread no more canaries than fit beside so many clients; none if fewer than two do.

        Returns:
            A sentence about those that do not; "" if all do.
        """
        expected = self.wrapped.expected_replies()
        room = math.inf if self.inject == "add" or expected is None else max(expected - clients, 0)
        total, rounds = sum(map(len, self.cohorts)), len(self.cohorts)
        most = canaries_that_fit(self.max_share, clients, 0 if self.inject == "replace" else room)
        text = ""
        if total > most * rounds:
            asked, self.number = self.number, int(most * rounds * self.number / total + 1e-9)
            enough = self._planned_share(clients, asked if self.number >= 2 else 2)
            text = (
                f"Of {asked} canaries {self.number} fit into {rounds} rounds with {clients}"
                f" clients, as more than {self.max_share:.0%} of replies harm the model: ask for"
                f" {f'num_canaries={self.number}, or ' * (self.number >= 2)}max_share={enough}."
            )
            self.number = self.number if self.number >= 2 else 0
            self.cohorts = self.spread(self.number) if self.number else []
        self.max_share = max(self.max_share, self._planned_share(clients, self.number))
        return text

    def _planned_share(self, clients: int, number: int) -> float:
        """Largest share of a round's replies that so many canaries have, rounded up."""
        count = max(map(len, self.spread(number))) if number else 0
        replies = count + max(clients - self.replaced(count, clients), 0)
        return math.ceil(100 * count / replies - 1e-9) / 100 if count else 0.0

    def _check_share(self, canaries: float, rest: float) -> None:
        # Where clients are fewer than in the round that was planned by, up to twice the share.
        most = max(self.max_share, min(0.5, 2 * self.max_share))
        if canaries and (rest <= 0 or canaries > most * (canaries + rest)):
            raise TooManyCanariesError(canaries, rest, most)

    def _cohort(self, state: RoundState) -> list[int]:
        if state.index >= len(self.cohorts) or self.inject == "none":
            return []
        return [int(number) for number in self.cohorts[state.index]]

    def replaced(self, num_canaries: int, clients: int) -> int:
        """How many of a round's clients are not asked, as canaries take their place."""
        expected = self.wrapped.expected_replies()
        if self.inject == "add" or (self.inject == "auto" and expected is None):
            return 0
        room = 0 if self.inject == "replace" or expected is None else max(expected - clients, 0)
        return min(max(num_canaries - room, 0), clients)

    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """See `Source.join`. Without a readable real reply there is no round, and no canary.

        Raises:
            ValueError: if a canary's reply cannot be made, with the reason.
            TooManyCanariesError: if so few clients answered that canaries would outweigh them.
        """
        real = injection.readable(replies)
        lost = len(state.sent) - len(real)
        state.facts = RoundFacts(clip_norm=state.clip_norm, replies=len(real), absent=lost)
        cohort = self._cohort(state)
        if not real or not cohort:
            return replies
        key, preferred = self.wrapped.weighted_by(), self.wrapped.arrays_key()
        rng = generator(self.seed, _NORMS, state.index)
        like = injection.some_answers(real, state, preferred, rng)
        kind = self._kind(like, state)
        self.note_loud(self.wrapped, state, real, kind, rng)
        if self.length is None and math.isnan(state.clip_norm):
            self._check_noise(like, state.before if kind == "model" else None)
        canary_norms = self._canary_norms(state, like, kind, len(cohort))
        metrics = injection.neutral_metrics(real, key)
        drawn = injection.drawn_weights(real, key, len(cohort), rng)
        given = drawn if self.weight is None else [self.weight] * len(cohort)
        like = injection.alike(like, real, key)
        state.vectors = self.vectors(cohort)
        made_up = injection.make_replies(
            cohort, canary_norms, like, metrics, (key, given), state, kind
        )
        if self.weight is None:  # theirs are real clients'
            self._check_share(len(cohort), len(real))
        else:
            self._check_share(sum(given), sum(injection.weights(real, key)))
        state.made_up, state.played, state.counted = made_up, made_up, canary_norms.counted
        state.facts = dataclasses.replace(
            state.facts, present=cohort, replies=len(real) + len(cohort)
        )
        return [*replies, *state.made_up]

    def rejected(self) -> str:
        """See `Source.rejected`: canaries stand in for clients that were asked, or stop."""
        self.inject = "replace" if self.inject in ("auto", "add") else "none"
        if self.inject == "replace":
            return "from the next round on canaries answer in the place of clients"
        return "no canary takes part any more"

    def averages_models(self) -> None:
        """See `Source.averages_models`."""
        self.kind = self.kind or "model"

    def state(self) -> dict[str, Any]:
        """See `Source.state`."""
        names = ("inject", "kind", "number", "max_share")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Source.restore`."""
        for name, value in state.items():
            setattr(self, name, value)
        self.cohorts = self.spread(self.number) if self.number else []

    def _kind(self, like: Sequence[injection.Answer], state: RoundState) -> ReplyKind | None:
        """What replies are; ``None`` where it makes no difference, as the model is 0."""
        if self.kind is None and np.any(state.before):
            self.kind = kind_of_replies([answer.vector for answer in like], state.before)
            if self.kind is None:
                raise ValueError(
                    "Expected replies that are clearly models or clearly differences from the"
                    " model: say which with replies='model' or replies='delta'."
                )
        return self.kind

    def _canary_norms(
        self,
        state: RoundState,
        like: Sequence[injection.Answer],
        kind: ReplyKind | None,
        count: int,
    ) -> injection.CanaryNorms:
        clipped = np.zeros(count, bool)
        if math.isnan(state.clip_norm):
            length = self.length or self._median(like, state.before if kind == "model" else 0.0)
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

    def _check_noise(
        self, like: Sequence[injection.Answer], before: NDArray[np.floating] | None
    ) -> None:
        if are_noise([answer.vector for answer in like], before):
            raise ValueError(
                "Expected updates, but what clients answer looks like noise of their own, which"
                " says nothing about how long an update is: let clients answer with canaries"
                " (clients=… and canary_mod), or pass canary_norm, the norm without the noise."
            )

    def _median(
        self, like: Sequence[injection.Answer], before: NDArray[np.floating] | float
    ) -> float:
        length = statistics.median(float(np.linalg.norm(a.vector - before)) for a in like)
        if length == 0:
            raise ValueError("Expected clients that moved the model, but half of them did not.")
        return length


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


@dataclasses.dataclass
class ClientAnswers(Source):
    """Clients that answer with a canary through `canary_mod`, whenever they are asked to train.

    Attributes:
        wrapped: the strategy.
        clients: which clients, with which canaries.
        length: norm of an update where nothing clips; the client's own by default.
        max_share: largest share of a round's clients that may be asked for a canary.
        directions: makes the canaries that are sent to their clients; without it these get the
            seed and make their own.
        ordered: numbers of the canaries that clients were asked for so far.
        answered: those that came.
        refused: why clients answered with their own update, and how often.
    """

    wrapped: Wrapped
    clients: ClientCanaries
    length: float | None = None
    max_share: float = 0.5
    directions: Vectors | None = None
    ordered: set[int] = dataclasses.field(default_factory=set)
    answered: set[int] = dataclasses.field(default_factory=set)
    refused: Counter[Acknowledgement] = dataclasses.field(default_factory=Counter)

    participation = "deployment"

    def configure(self, state: RoundState, messages: list[Message]) -> None:
        """See `Source.configure`.

        Raises:
            TooManyCanariesError: if they would have more than their share of the round.
        """
        length = self.length or 0.0
        if self.wrapped.clips_on_server and math.isfinite(state.clip_norm):
            length = _FAR_ABOVE * state.clip_norm
        orders = [self.clients.order(m.metadata.dst_node_id, length) for m in messages]
        asked = [order for order in orders if order is not None]
        if len(asked) > self.max_share * len(messages):
            raise TooManyCanariesError(len(asked), len(messages) - len(asked), self.max_share)
        self.ordered.update(order.number for order in asked)
        pairs = zip(messages, orders, strict=True)
        state.sent = [m if order is None else self._with_order(m, order) for m, order in pairs]

    def _with_order(self, message: Message, order: CanaryOrder) -> Message:
        if self.directions is None:
            return with_order(message, order)
        return with_order(message, order, self.directions([order.number])[0])

    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """See `Source.join`. Reads who answered with a canary, and nothing else of the replies."""
        real = injection.readable(replies)
        played, once = dict[int, Message](), True
        for reply in real:
            answer = take_acknowledgement(reply.content)
            if answer is Acknowledgement.CANARY:
                number = self.clients.number(reply.metadata.src_node_id)
                if number is not None:
                    once = once and number not in played  # else what it adds is not known
                    played[number] = reply
            elif answer is not None:
                self.refused[answer] += 1
        self.answered.update(played)
        mine = {id(reply) for reply in played.values()}
        others = [reply for reply in real if id(reply) not in mine]
        self.note_loud(self.wrapped, state, others, "model", np.random.default_rng())
        state.counted = state.clip_norm if once else math.nan
        state.played = [played[number] for number in sorted(played)]
        state.facts = RoundFacts(
            present=sorted(played),
            clip_norm=state.clip_norm,
            replies=len(real),
            absent=len(state.sent) - len(real),
        )
        return replies

    def reason(self) -> str | None:
        """See `Source.reason`."""
        if len(self.answered) == len(self.ordered):
            return None
        hints = [answer.hint for answer in self.refused] or ["is canary_mod installed?"]
        return (
            f"{len(self.answered)} of {len(self.ordered)} canary clients answered with their"
            f" canary; {'; '.join(hints)}"
        )

    def state(self) -> dict[str, Any]:
        """See `Source.state`."""
        return {
            "ordered": sorted(self.ordered),
            "answered": sorted(self.answered),
            "refused": [[int(answer), count] for answer, count in self.refused.items()],
            "clients": self.clients.numbers,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Source.restore`."""
        self.ordered, self.answered = set(state["ordered"]), set(state["answered"])
        self.refused = Counter({Acknowledgement(int(a)): int(n) for a, n in state["refused"]})
        self.clients.restore(state["clients"])


class OwnCanaries(Source):
    """A strategy that has canaries itself: its messages and replies stay as they are."""

    participation = "epochs"

    def configure(self, state: RoundState, messages: list[Message]) -> None:
        """See `Source.configure`."""
        state.sent = messages

    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """See `Source.join`; the strategy itself knows the facts."""
        return replies
