"""Where canaries come from: replies that the server makes, or clients that answer with one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Message

from fl_epe.auditing import FaultKind
from fl_epe.checks import Booleans, Floats, Vector
from fl_epe.flower import client_canaries
from fl_epe.flower.audit_record import noise_multipliers
from fl_epe.flower.layout import ReplyKind, longest_norm
from fl_epe.flower.plan import AuditPlan, make_plan, spread
from fl_epe.flower.replies import (
    MOST_READ,
    ReadableReply,
    are_noise,
    base_of,
    kind_of_replies,
    make_replies,
    median_norm,
    model_record,
    readable,
    some_answers,
    weights,
)
from fl_epe.flower.state import RoundState
from fl_epe.mechanism import norm
from fl_epe.schedules import ShuffledEpochs
from fl_epe.seeding import generator

if TYPE_CHECKING:
    from fl_epe.flower.audited_run import AuditedRun

_JUST_BELOW = 1 - 1e-4  # of the clip norm: not clipped, whatever the arrays' rounding
_SURELY = 3.0  # deviations of an answer without the canary, above which it is there
_FAR = (
    2.0  # times the longest update, above which a clip norm is not what a client adds
)
_WITHHELD, _NORMS, _THINNED = (
    1,
    2,
    3,
)  # streams of an audit's own choices, as of its plan
_ROUNDING = 1e-9
_HEAVY = 2.0  # times the mean weight, above which a client is not replaced
_MOSTLY = 0.5  # of a round's clients
_GOLDEN = (math.sqrt(5) - 1) / 2  # whose multiples, modulo 1, are spread evenly


def check_share(
    canaries: float, rest: float, most: float, *, alone: bool = False
) -> None:
    """Raise a `ValueError` if canaries have more than that share of a round."""
    if canaries > most * (canaries + rest) + _ROUNDING or (
        canaries and rest <= 0 and not alone
    ):
        raise ValueError(
            f"Expected canaries to be at most {most:.0%} of a round, got {canaries:g} beside"
            f" {rest:g} of real clients ({canaries / (canaries + rest):.0%}): lower num_canaries or"
            " participations, or raise max_share."
        )


class ServerCanaries:
    """Synthetic replies beside the real ones or in the place of some.

    Args:
        run: whose state tells how; what is found out is noted in it.
        rounds: of the run, over which the canaries are spread.
    """

    def __init__(self, run: AuditedRun, rounds: int) -> None:
        self._run, self._rounds = run, rounds
        ShuffledEpochs(
            rounds, run.settings.participations or 1.0
        )  # raises before the run

    def plan(self, clients: int, nodes: int | None) -> AuditPlan:
        """What the audit does to a run."""
        run = self._run
        return make_plan(run.settings, run.wrapped, self._rounds, clients, nodes)

    @functools.cached_property
    def _presence(self) -> Booleans:
        """The rounds of each canary that is planned, ``(T, k)``."""
        run, plan = self._run, self._run.plan
        replaces = run.wrapped.room(plan.clients) < 1
        return spread(
            run.settings, self._rounds, plan.number, plan.load, replaces=replaces
        )

    @property
    def _most(self) -> float:
        """The largest share of a round: twice the usual one, as clients may be fewer in it."""
        most = max(self._run.settings.largest_share, self._run.plan.most)
        return max(most, min(0.5, 2 * most))

    def _cohort(self, state: RoundState, clients: int) -> list[int]:
        """The canaries of a round in which so many clients are asked.

        Canaries of a ladder keep their share beside fewer clients than in the first round.
        """
        if state.index >= self._rounds or self._run.inject == "none":
            return []
        cohort, plan = (
            np.flatnonzero(self._presence[state.index]).tolist(),
            self._run.plan,
        )
        if plan.load is not None:
            cohort = self._thinned(cohort, clients / plan.clients, state)
        return cohort

    def _thinned(self, cohort: list[int], kept: float, state: RoundState) -> list[int]:
        """A share of the cohort, drawn at random; over some rounds as many as that share says."""
        if kept >= 1:
            return cohort
        rng = generator(self._run.settings.canary_seed, _THINNED, state.index)
        count = math.floor(kept * len(cohort) + state.index * _GOLDEN % 1)
        return sorted(rng.choice(cohort, count, replace=False).tolist())

    def _beside(self, state: RoundState, replies: int) -> list[int]:
        """The canaries that stay where so many clients replied.

        Raises:
            ValueError: if they are too many, and answer in the place of clients.
        """
        cohort = state.cohort
        if len(cohort) <= self._most * (len(cohort) + replies) + _ROUNDING:
            return cohort
        if state.withheld:
            check_share(len(cohort), replies, self._most)
        return self._thinned(cohort, replies / len(state.sent), state)

    def configure(self, state: RoundState, messages: list[Message]) -> None:
        """Decide what is sent of the strategy's ``messages``: sets ``state.sent``.

        Raises:
            ValueError: if canaries would have more than their share of the round.
        """
        state.cohort = self._cohort(state, len(messages))
        room = (
            0
            if self._run.inject == "replace"
            else self._run.wrapped.room(len(messages))
        )
        if (
            self._rounds > 1 and not self._run.seen.count
        ):  # nobody knows what a client weighs
            state.cohort = state.cohort[: int(min(room, len(state.cohort)))]
        count = len(state.cohort)
        replaced = int(min(max(count - room, 0), len(messages)))
        # A canary of a ladder that few clients leave in may be half of this round.
        most = self._most if self._run.plan.load is None else max(self._most, 0.5)
        check_share(count, len(messages) - replaced, most)
        rng = generator(self._run.settings.canary_seed, _WITHHELD, state.index)
        out = self._replaced(messages, replaced, rng)
        state.sent = [message for message in messages if id(message) not in out]
        state.withheld = [message for message in messages if id(message) in out]

    def _replaced(
        self, messages: Sequence[Message], count: int, rng: np.random.Generator
    ) -> set[int]:
        """The ``id`` of each message that is not sent, as a canary answers in its place.

        Drawn from those to all clients but the heaviest: a canary has the median weight, and
        without one of them the others would weigh much more than in other rounds. So may a client
        that never answered before, who is drawn only where most are such clients.
        """
        identity, seen = self._run.settings.identity or int, self._run.seen
        by_node = sorted(messages, key=lambda message: message.metadata.dst_node_id)
        nodes = [message.metadata.dst_node_id for message in by_node]
        weights = np.array([seen.last_weight(int(identity(node))) for node in nodes])
        unknown = np.isnan(weights)
        weights[unknown] = 1.0 if np.mean(unknown) > _MOSTLY else math.inf
        lightest = np.argsort(weights, kind="stable")
        light = int(
            np.count_nonzero(weights <= _HEAVY * weights[np.isfinite(weights)].mean())
        )
        drawn = rng.choice(lightest[: max(light, count)], count, replace=False)
        return {id(by_node[i]) for i in drawn}

    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """The replies that the strategy is given, canaries' among them; notes who takes part.

        Without a readable real reply there is no round, and no canary. A round without canaries is
        read, too, for what a client adds in it.

        Raises:
            ValueError: if a canary cannot join, with the reason.
        """
        real = readable(replies)
        if not real or self._run.inject == "none":
            return replies
        cohort = self._beside(state, len(real))
        if not cohort:
            with contextlib.suppress(
                ValueError
            ):  # what a client adds is not known, then
                self._read(state, real)
            return replies
        like, kind = self._read(state, real)
        key = self._run.wrapped.weighted_by()
        weight = self._weight(weights(real, key), len(cohort))
        norms, clipped = self._norms(state, len(cohort), like)
        state.vectors = self._run.auditor.canaries.vectors(cohort)
        state.synthetic = make_replies(
            cohort, norms, clipped, like, real, (key, weight), state, kind
        )
        state.played, state.present = state.synthetic, cohort
        return [*replies, *state.synthetic]

    def _read(
        self, state: RoundState, real: Sequence[Message]
    ) -> tuple[list[ReadableReply], ReplyKind | None]:
        """Some answers and what they are; notes the norm of a client's update.

        Raises:
            ValueError: if that is not known, with the reason.
        """
        rng = generator(self._run.settings.canary_seed, _NORMS, state.index)
        like, layout = some_answers(self._run, real, state, rng), state.layout
        kind = self._kind_of(like, state)
        self._run.choose_arrays(state, [answer.vector for answer in like], kind)
        if state.layout is not layout:  # canaries leave more arrays alone from now on
            like = [
                dataclasses.replace(answer, vector=state.layout.flatten(answer.arrays))
                for answer in like
            ]
        before = base_of(kind, state.before)
        noisy = are_noise([answer.vector for answer in like], before)
        self._run.note(state.index).noisy = noisy
        state.counted = self._length(like, state, before, noisy=noisy)
        return like, kind

    def _length(
        self,
        like: Sequence[ReadableReply],
        state: RoundState,
        before: Vector | None,
        *,
        noisy: bool,
    ) -> float:
        """The norm of a client's update after clipping, which a canary's has, too.

        That is the clip norm, unless it is far above the real updates and the noise: canaries of
        that norm alone would decide what becomes of the model.
        """
        if math.isnan(state.clip_norm):
            return self._run.settings.canary_norm or median_norm(
                like, before, noisy=noisy
            )
        noise = (noise_multipliers(self._run)[1] or 0.0) * math.sqrt(state.layout.dim)
        longest = max(norm(answer.vector, before) for answer in like)
        hidden = max(longest, noise * state.clip_norm)
        return hidden if state.clip_norm > _FAR * hidden else state.clip_norm

    def _weight(self, real: Sequence[float], count: int) -> float:
        """The weight of each of a round's canaries, of the type of the real replies'.

        That of the median reply, or less where that would be more than their share of the round.

        Args:
            real: weights of the real replies.
            count: of the canaries.

        Raises:
            ValueError: if the canaries would have more than their share at any weight.
        """
        if (given := self._run.settings.num_examples) is not None:
            check_share(given * count, sum(real), self._most)
            return given
        counted = [weight for weight in real if 0 < weight < math.inf]
        if not counted:
            raise ValueError(
                "Expected replies of positive weight, but all weights are 0."
            )
        typical = statistics.median_low(counted)
        if self._most == 1:
            return typical
        largest = self._most / (1 - self._most) * sum(counted) / count
        if typical <= largest:
            return typical
        if all(isinstance(weight, int) for weight in counted):
            largest = math.floor(largest)
        if not largest > 0:
            check_share(typical * count, sum(counted), self._most)
        return largest

    def _kind_of(
        self, like: Sequence[ReadableReply], state: RoundState
    ) -> ReplyKind | None:
        """What replies are; ``None`` where it makes no difference, as the model is 0."""
        if self._run.kind is None and np.any(state.before):
            self._run.kind = kind_of_replies(
                [answer.vector for answer in like], state.before
            )
            if self._run.kind is None:
                raise ValueError(
                    "Expected replies that are clearly models or clearly differences from the"
                    " model: say which with replies='model' or replies='update'."
                )
        return self._run.kind

    def _norms(
        self, state: RoundState, count: int, like: Sequence[ReadableReply]
    ) -> tuple[Floats, Booleans]:
        """How long the canaries' updates are as they are sent, and which of them are clipped.

        Raises:
            ValueError: if the replies' numbers cannot hold the clip norm's square.
        """
        clipped = np.zeros(count, bool)
        if math.isnan(state.clip_norm) or state.counted < state.clip_norm:
            return np.full(count, state.counted), clipped
        sent = np.full(count, state.clip_norm)
        target = self._run.wrapped.target_clipped()
        if self._run.wrapped.clips_on_server or target is not None:
            # So that canaries do not move an adaptive clip norm, as many are clipped as it aims at.
            clipped = np.arange(count) < (
                count if target is None else round(target * count)
            )
            longest = min(longest_norm(answer.arrays) for answer in like)
            if longest < state.clip_norm:
                raise ValueError(
                    f"Expected clip_norm={state.clip_norm:g} to be at most {longest:g}, as the"
                    " replies' numbers cannot hold the square of a longer update."
                )
            far_above = min(client_canaries.FAR_ABOVE * state.clip_norm, longest)
            sent = np.where(clipped, far_above, _JUST_BELOW * sent)
        if not self._run.wrapped.clips_on_server:
            sent = np.minimum(sent, state.clip_norm)
        return sent, clipped


class ClientAnswers:
    """Clients that answer with a canary whenever they are asked to train, but in the first round.

    Args:
        run: whose state tells who has which canary; what they answer is noted in it.
    """

    def __init__(self, run: AuditedRun) -> None:
        self._run = run

    @functools.cached_property
    def _clients(self) -> client_canaries.ClientCanaries:
        run = self._run
        return run.settings.client_canaries(
            run.plan.number, run.clients, run.plan.left_out
        )

    def plan(self, clients: int, nodes: int | None) -> AuditPlan:
        """See `ServerCanaries.plan`; who has a canary is known once a client is asked."""
        return AuditPlan(self._run.settings.count_of_clients(nodes or clients), clients)

    def configure(self, state: RoundState, messages: list[Message]) -> None:
        """See `ServerCanaries.configure`; no canary before replies show what they may move."""
        if not self._run.settled:
            return
        length = self._run.settings.canary_norm or 0.0
        if self._run.wrapped.clips_on_server and math.isfinite(state.clip_norm):
            length = client_canaries.FAR_ABOVE * state.clip_norm
        orders = [self._clients.order(m.metadata.dst_node_id, length) for m in messages]
        asked = [order.number for order in orders if order is not None]
        check_share(
            len(asked),
            len(messages) - len(asked),
            self._run.settings.largest_share,
            alone=True,
        )
        self._run.ordered.update(asked)
        state.sent = [
            message if order is None else client_canaries.with_order(message, order)
            for message, order in zip(messages, orders, strict=True)
        ]

    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """The replies that the strategy is given; reads who answered with a canary."""
        real, played, once = readable(replies), dict[int, Message](), True
        for reply in real:
            answer = client_canaries.take_acknowledgement(reply.content)
            if answer is client_canaries.Acknowledgement.CANARY:
                number = self._clients.number(reply.metadata.src_node_id)
                if number is not None:
                    once = (
                        once and number not in played
                    )  # else what it adds is not known
                    played[number] = reply
            elif answer is not None:
                self._run.refused.add(answer)
        mine = {id(reply) for reply in played.values()}
        others = [reply for reply in real if id(reply) not in mine]
        answers = list[Vector]()
        for reply in others[:MOST_READ]:
            with contextlib.suppress(
                ValueError
            ):  # it is encrypted, or has other arrays
                answers.append(self._vector(reply, state))
        with contextlib.suppress(ValueError):  # nobody moved the model
            self._run.choose_arrays(state, answers, "model")
        missing = self._missing(state, played, others)
        for number in missing:
            node = played.pop(number).metadata.src_node_id
            text = f"node {node}: its answer does not hold its canary"
            self._run.faults.add(state.index, FaultKind.ANSWER_REFUSED, text)
        self._run.answered.update(played)
        state.counted = state.clip_norm if once else math.nan
        state.present = sorted(played)
        state.played = [played[number] for number in state.present]
        state.absent += len(missing)
        return replies

    def _vector(self, reply: Message, state: RoundState) -> Vector:
        return model_record(reply, state.layout, self._run.wrapped.arrays_key())[1]

    def _missing(
        self,
        state: RoundState,
        played: Mapping[int, Message],
        others: Sequence[Message],
    ) -> list[int]:
        """Canaries that are not in the answers of the clients who say so.

        Answers that cannot be read, and all where clients' answers are noise, are believed.
        """
        missing = list[int]()

        def update(reply: Message) -> Vector:
            return self._vector(reply, state) - state.before

        try:
            for number, reply in played.items():
                found, canary = (
                    update(reply),
                    self._run.auditor.canaries.vectors([number])[0],
                )
                if not canary @ found > _SURELY * norm(found) / math.sqrt(len(found)):
                    missing.append(number)
            noise = missing and are_noise(
                [update(reply) for reply in others[:MOST_READ]]
            )
            return [] if noise else missing
        except ValueError:  # encrypted, say
            return []
