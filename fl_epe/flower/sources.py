"""Where canaries come from: replies that the server makes, or clients that answer with one."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from fl_epe.flower.client_canaries import (
    Acknowledgement,
    ClientCanaries,
    take_acknowledgement,
    with_order,
)
from fl_epe.flower.replies import (
    MOST_READ,
    Answer,
    are_noise,
    dominant_updates,
    drawn_weights,
    kind_of_replies,
    make_replies,
    median_norm,
    model_record,
    neutral_metrics,
    readable,
    some_answers,
    weights,
)
from fl_epe.flower.rounds import AuditPlan, RoundState, TooManyCanariesError, canaries_that_fit
from fl_epe.flower.settings import CanaryAuditSettings, ReplyKind
from fl_epe.flower.wrapped import Wrapped
from fl_epe.mechanism import norm
from fl_epe.schedules import Cohort, ShuffledEpochs
from fl_epe.seeding import generator

FAR_ABOVE = 1e3
"""How many times the clip norm a canary is, so that the clipping under audit scales it down."""

Vectors = Callable[[list[int]], NDArray[np.float32]]
"""Makes the canaries with these numbers, of length 1, shape ``(K, dim)``."""

_JUST_BELOW = 1 - 1e-4  # of the clip norm: not clipped, whatever the arrays' rounding
_SURELY = 3.0  # deviations of an answer without the canary, above which it is there
_SCHEDULE, _WITHHELD, _NORMS = 0, 1, 2  # streams of an audit's own choices
_FOUND_OUT = ("inject", "kind", "number", "max_share")


class ServerCanaries:
    """Synthetic replies beside the real ones or in the place of some.

    Args:
        wrapped: the strategy.
        settings: of the audit.
        rounds: of the run, over which the canaries are spread.
        vectors: makes the canaries.

    Attributes:
        number: how many canaries take part; fewer than in the settings if they do not fit (`plan`).
        inject: "auto": fill up to the number of replies that the strategy's noise is meant for,
            and replace real clients beyond that; after the strategy has failed on that "replace",
            and then "none".
        kind: what replies are; found out if ``None``.
        max_share: largest share of a round's replies that canaries may have.
    """

    def __init__(
        self, wrapped: Wrapped, settings: CanaryAuditSettings, rounds: int, vectors: Vectors
    ) -> None:
        self._wrapped, self._settings, self._vectors = wrapped, settings, vectors
        self._schedule = ShuffledEpochs(rounds, settings.participations)
        self.number, self.max_share = settings.num_canaries, settings.max_share
        self.inject = "auto"
        self.kind: ReplyKind | None = settings.replies
        if self.kind is None and wrapped.takes_models():
            self.kind = "model"
        self._cohorts = self._spread(self.number)

    def _spread(self, number: int) -> list[Cohort]:
        """Who takes part in each round, of so many canaries."""
        if not number:
            return []
        return list(self._schedule.cohorts(number, generator(self._settings.seed, _SCHEDULE)))

    def plan(self, clients: int, left_out: Sequence[str]) -> AuditPlan:
        """What the audit does to a run; spreads no more canaries than fit, or none below two."""
        total, rounds = sum(map(len, self._cohorts)), len(self._cohorts)
        most = canaries_that_fit(self.max_share, clients, self._room(clients))
        reduced = ""
        if total > most * rounds:
            asked, self.number = self.number, int(most * rounds * self.number / total + 1e-9)
            reduced = (
                f"Of {asked} canaries {self.number} fit into {rounds} rounds with {clients}"
                f" clients, as more than {self.max_share:.0%} of replies harm the model: ask for as"
                " many, or raise max_share."
            )
            self.number = self.number if self.number >= 2 else 0
            self._cohorts = self._spread(self.number)
        canaries = max(map(len, self._cohorts), default=0)
        replaced = self._replaced(canaries, clients)
        plan = AuditPlan(canaries, clients, replaced, left_out, reduced)
        self.max_share = max(self.max_share, math.ceil(100 * plan.share - 1e-9) / 100)
        return plan

    def _replaced(self, num_canaries: int, clients: int) -> int:
        """How many of a round's clients are not asked, as canaries take their place."""
        return int(min(max(num_canaries - self._room(clients), 0), clients))

    def _room(self, clients: int) -> float:
        """How many replies can be added to those of so many clients."""
        if self.inject == "replace":
            return 0
        expected = self._wrapped.expected_replies()
        return math.inf if expected is None else max(expected - clients, 0)

    def _check_share(self, canaries: float, rest: float) -> None:
        # Where clients are fewer than in the round that was planned by, up to twice the share.
        most = max(self.max_share, min(0.5, 2 * self.max_share))
        if canaries and (rest <= 0 or canaries > most * (canaries + rest)):
            raise TooManyCanariesError(canaries, rest, most)

    def _cohort(self, state: RoundState) -> list[int]:
        if state.index >= len(self._cohorts) or self.inject == "none":
            return []
        return [int(number) for number in self._cohorts[state.index]]

    def configure(self, state: RoundState, messages: list[Message]) -> None:
        """Decide what is sent of the strategy's ``messages``: fills ``state.sent``.

        Raises:
            TooManyCanariesError: if canaries would have more than their share of the round.
        """
        count = len(self._cohort(state))
        replaced = self._replaced(count, len(messages))
        self._check_share(count, max(len(messages) - replaced, 0))
        rng = generator(self._settings.seed, _WITHHELD, state.index)
        by_node = sorted(range(len(messages)), key=lambda i: messages[i].metadata.dst_node_id)
        out = {by_node[i] for i in rng.choice(len(messages), replaced, replace=False)}
        state.sent = [m for i, m in enumerate(messages) if i not in out]
        state.withheld = [messages[i] for i in sorted(out)]

    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """The replies that the strategy is given, canaries' among them; fills ``state.facts``.

        Without a readable real reply there is no round, and no canary.

        Raises:
            ValueError: if a canary cannot join, with the reason.
        """
        real, cohort = readable(replies), self._cohort(state)
        if not real or not cohort:
            return replies
        settings, key = self._settings, self._wrapped.weighted_by()
        rng = generator(settings.seed, _NORMS, state.index)
        like = some_answers(real, state, self._wrapped.arrays_key(), rng)
        kind = self._kind_of(like, state)
        state.dominant = dominant_updates(self._wrapped, state, real, kind)
        norms, clipped = self._norms(state, like, kind, len(cohort))
        metrics = neutral_metrics(real, key)
        if settings.num_examples is None:
            given = drawn_weights(real, key, len(cohort), rng)
            self._check_share(len(cohort), len(real))
        else:
            given = [settings.num_examples] * len(cohort)
            self._check_share(sum(given), sum(weights(real, key)))
        state.vectors = self._vectors(cohort)
        synthetic = make_replies(cohort, norms, clipped, like, metrics, (key, given), state, kind)
        state.synthetic, state.played = synthetic, synthetic
        state.counted = float(norms[0]) if math.isnan(state.clip_norm) else state.clip_norm
        state.facts = dataclasses.replace(
            state.facts, present=cohort, replies=len(real) + len(cohort)
        )
        return [*replies, *synthetic]

    def rejected(self) -> str:
        """Canaries stand in for clients that were asked, or stop: the strategy failed on them."""
        self.inject = "replace" if self.inject == "auto" else "none"
        if self.inject == "replace":
            return "from the next round on canaries answer in the place of clients"
        return "no canary takes part any more"

    def state(self) -> dict[str, Any]:
        """What was found out so far, as JSON values."""
        return {name: getattr(self, name) for name in _FOUND_OUT}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Know what `state` returned."""
        for name in _FOUND_OUT:
            setattr(self, name, state[name])
        self._cohorts = self._spread(self.number)

    def _kind_of(self, like: Sequence[Answer], state: RoundState) -> ReplyKind | None:
        """What replies are; ``None`` where it makes no difference, as the model is 0."""
        if self.kind is None and np.any(state.before):
            self.kind = kind_of_replies([answer.vector for answer in like], state.before)
            if self.kind is None:
                raise ValueError(
                    "Expected replies that are clearly models or clearly differences from the"
                    " model: say which with replies='model' or replies='update'."
                )
        return self.kind

    def _norms(
        self, state: RoundState, like: Sequence[Answer], kind: ReplyKind | None, count: int
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """How long the canaries' updates are as they are sent, and which of them are clipped."""
        clipped = np.zeros(count, bool)
        if math.isnan(state.clip_norm):
            length = self._settings.canary_norm or median_norm(like, state, kind)
            return np.full(count, length), clipped
        sent = np.full(count, state.clip_norm)
        target = self._wrapped.target_clipped()
        if self._wrapped.clips_on_server or target is not None:
            # So that canaries do not move an adaptive clip norm, as many are clipped as it aims at.
            clipped = np.arange(count) < (count if target is None else round(target * count))
            sent *= np.where(clipped, FAR_ABOVE, _JUST_BELOW)
        if not self._wrapped.clips_on_server:
            sent = np.minimum(sent, state.clip_norm)
        return sent, clipped


class ClientAnswers:
    """Clients that answer with a canary whenever they are asked to train.

    Args:
        wrapped: the strategy.
        settings: of the audit.
        clients: which clients, with which canaries.
        vectors: makes the canaries.
    """

    def __init__(
        self,
        wrapped: Wrapped,
        settings: CanaryAuditSettings,
        clients: ClientCanaries,
        vectors: Vectors,
    ) -> None:
        self._wrapped, self._settings, self._clients = wrapped, settings, clients
        self._vectors = vectors
        self._ordered, self._answered = set[int](), set[int]()  # numbers of canaries
        self._refused: Counter[Acknowledgement] = Counter()  # why clients answered for themselves

    def configure(self, state: RoundState, messages: list[Message]) -> None:
        """See `ServerCanaries.configure`."""
        length = self._settings.canary_norm or 0.0
        if self._wrapped.clips_on_server and math.isfinite(state.clip_norm):
            length = FAR_ABOVE * state.clip_norm
        orders = [self._clients.order(m.metadata.dst_node_id, length) for m in messages]
        asked, most = [order for order in orders if order is not None], self._settings.max_share
        if len(asked) > most * len(messages):
            raise TooManyCanariesError(len(asked), len(messages) - len(asked), most)
        self._ordered.update(order.number for order in asked)
        for message, order in zip(messages, orders, strict=True):
            state.sent.append(message if order is None else with_order(message, order))

    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """The replies that the strategy is given; reads who answered with a canary."""
        real = readable(replies)
        played, once = dict[int, Message](), True
        for reply in real:
            answer = take_acknowledgement(reply.content)
            if answer is Acknowledgement.CANARY:
                number = self._clients.number(reply.metadata.src_node_id)
                if number is not None:
                    once = once and number not in played  # else what it adds is not known
                    played[number] = reply
            elif answer is not None:
                self._refused[answer] += 1
        mine = {id(reply) for reply in played.values()}
        others = [reply for reply in real if id(reply) not in mine]
        missing = self._missing(state, played, others)
        for number in missing:
            node = played.pop(number).metadata.src_node_id
            state.unreadable.append(f"node {node}: its answer does not hold its canary")
        self._answered.update(played)
        state.dominant = dominant_updates(self._wrapped, state, others, "model")
        state.counted = state.clip_norm if once else math.nan
        state.played = [played[number] for number in sorted(played)]
        absent = state.facts.absent + len(missing)
        state.facts = dataclasses.replace(state.facts, present=sorted(played), absent=absent)
        return replies

    def _missing(
        self, state: RoundState, played: Mapping[int, Message], others: Sequence[Message]
    ) -> list[int]:
        """Canaries that are not in the answers of the clients who say so.

        Answers that cannot be read, and all where clients' answers are noise, are believed.
        """

        def update(reply: Message) -> NDArray[np.floating]:
            key = self._wrapped.arrays_key()
            return model_record(reply, state.layout, key)[1] - state.before

        def holds(number: int, reply: Message) -> bool:
            found = update(reply)
            least = _SURELY * norm(found) / math.sqrt(len(found))
            return float(self._vectors([number])[0] @ found) > least

        try:
            missing = [number for number, reply in played.items() if not holds(number, reply)]
            noise = missing and are_noise([update(reply) for reply in others[:MOST_READ]])
        except ValueError:  # encrypted, say
            return []
        return [] if noise else missing

    def reason(self) -> str | None:
        """Why fewer canaries took part than were meant to; ``None`` if nothing is known."""
        if len(self._answered) == len(self._ordered):
            return None
        hints = [answer.hint for answer in self._refused] or ["is canary_mod installed?"]
        return (
            f"{len(self._answered)} of {len(self._ordered)} canary clients answered with their"
            f" canary; {'; '.join(hints)}"
        )

    def state(self) -> dict[str, Any]:
        """See `ServerCanaries.state`."""
        return {
            "ordered": sorted(self._ordered),
            "answered": sorted(self._answered),
            "refused": [[int(answer), count] for answer, count in self._refused.items()],
            "clients": self._clients.numbers,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Know what `state` returned."""
        self._ordered, self._answered = set(state["ordered"]), set(state["answered"])
        self._refused = Counter({Acknowledgement(int(a)): int(n) for a, n in state["refused"]})
        self._clients.restore(state["clients"])


Source = ServerCanaries | ClientAnswers
