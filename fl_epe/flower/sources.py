"""Where canaries come from: replies that the server makes, or clients that answer with one."""

import contextlib
import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import Message

from fl_epe.auditing import FaultKind
from fl_epe.checks import Booleans, Floats, Vector
from fl_epe.flower.client_canaries import (
    FAR_ABOVE,
    Acknowledgement,
    ClientCanaries,
    take_acknowledgement,
    with_order,
)
from fl_epe.flower.layout import ReplyKind, longest_norm
from fl_epe.flower.plan import spread
from fl_epe.flower.recording import Recording
from fl_epe.flower.replies import (
    MOST_READ,
    ReadableReply,
    are_noise,
    base_of,
    kind_of_replies,
    median_norm,
    model_record,
    readable,
    some_answers,
    weights,
)
from fl_epe.flower.round_state import CanaryReplies, RoundState
from fl_epe.flower.seen_clients import SeenClients
from fl_epe.flower.settings import CanaryAuditSettings
from fl_epe.flower.state import AuditState
from fl_epe.flower.synthetic_replies import CanaryUpdates, make_replies
from fl_epe.flower.wrapped import Wrapped
from fl_epe.mechanism import norm
from fl_epe.seeding import generator

_JUST_BELOW = (
    1 - 1e-4
)  # of the clip norm: not clipped, whatever the arrays' rounding
_SURELY = (
    3.0  # deviations of an answer without the canary, above which it is there
)
# Times the longest update, above which a clip norm is not what a client adds.
_FAR = 2.0
# Streams of an audit's own choices, as of its plan.
_WITHHELD = 1
_NORMS = 2
_THINNED = 3
_ROUNDING = 1e-9
_HEAVY = 2.0  # times the mean weight, above which a client is not replaced
_MOSTLY = 0.5  # of a round's clients
_GOLDEN = (math.sqrt(5) - 1) / 2  # whose multiples, modulo 1, are spread evenly


def check_share(
    canaries: float,
    real: float,
    largest_share: float,
    *,
    may_be_all: bool = False,
) -> None:
    """Raise a `ValueError` if canaries have more than that share of a round.

    Args:
        canaries: their number or weight.
        real: that of the real clients.
        largest_share: of the canaries.
        may_be_all: whether they may be without real clients.
    """
    is_too_much = canaries > largest_share * (canaries + real) + _ROUNDING
    if is_too_much or (canaries and real <= 0 and not may_be_all):
        raise ValueError(
            f"Expected canaries to be at most {largest_share:.0%} of a round, got {canaries:g}"
            f" beside {real:g} of real clients ({canaries / (canaries + real):.0%}): lower"
            " num_canaries or participations, or raise max_share."
        )


@dataclasses.dataclass(eq=False)
class ServerCanaries:
    """Synthetic replies beside the real ones or in the place of some.

    Attributes:
        settings: of the audit.
        wrapped: the strategy.
        state: of the audit.
        rounds: of the run, over which the canaries are spread.
    """

    settings: CanaryAuditSettings
    wrapped: Wrapped
    state: AuditState
    rounds: int

    @functools.cached_property
    def _presence(self) -> Booleans:
        """The rounds of each canary that is planned, ``(T, k)``."""
        plan = self.state.plan
        replaces = self.wrapped.room(plan.clients) < 1
        return spread(
            self.settings,
            self.rounds,
            plan.number,
            plan.load,
            replaces=replaces,
        )

    @property
    def _largest_share(self) -> float:
        """The largest share in one round: twice the planned one, as it may have fewer clients."""
        planned_share = max(
            self.settings.largest_share, self.state.plan.largest_share
        )
        return max(planned_share, min(0.5, 2 * planned_share))

    def _thinned(
        self, cohort: list[int], share: float, index: int
    ) -> list[int]:
        """A share of the cohort, drawn at random; over some rounds as many as that share says."""
        if share >= 1:
            return cohort
        rng = generator(self.settings.canary_seed, _THINNED, index)
        count = math.floor(share * len(cohort) + index * _GOLDEN % 1)
        return sorted(rng.choice(cohort, count, replace=False).tolist())

    def configure(
        self, current: RoundState, messages: list[Message], seen: SeenClients
    ) -> None:
        """Decide what is sent of the strategy's ``messages``, and which canaries take part.

        Canaries of a ladder keep their share beside fewer clients than in the first round.

        Args:
            current: the round; the decision is noted in it.
            messages: of the strategy.
            seen: which clients answered before.

        Raises:
            ValueError: if canaries would have more than their share of the round.
        """
        clients = len(messages)
        cohort: list[int] = []
        if current.index < self.rounds and self.state.inject != "none":
            cohort = np.flatnonzero(self._presence[current.index]).tolist()
            if self.state.plan.load is not None:
                share = clients / self.state.plan.clients
                cohort = self._thinned(cohort, share, current.index)
        room = self.wrapped.room(clients)
        if self.state.inject == "replace":
            room = 0
        if (
            self.rounds > 1 and not seen.count
        ):  # nobody knows what a client weighs
            cohort = cohort[: int(min(room, len(cohort)))]
        current.cohort = cohort
        replaced = int(min(max(len(cohort) - room, 0), clients))
        # A canary of a ladder that few clients leave in may be half of this round.
        largest_share = self._largest_share
        if self.state.plan.load is not None:
            largest_share = max(largest_share, 0.5)
        check_share(len(cohort), clients - replaced, largest_share)
        rng = generator(self.settings.canary_seed, _WITHHELD, current.index)
        withheld = self._replaced(messages, replaced, seen, rng)
        current.sent = [m for m in messages if id(m) not in withheld]
        current.withheld = [m for m in messages if id(m) in withheld]

    def _replaced(
        self,
        messages: Sequence[Message],
        count: int,
        seen: SeenClients,
        rng: np.random.Generator,
    ) -> set[int]:
        """The ``id`` of each message that is not sent, as a canary answers in its place.

        Drawn from those to all clients but the heaviest: a canary has the median weight, and
        without one of them the others would weigh much more than in other rounds. So may a client
        that never answered before, who is drawn only where most are such clients.
        """
        identity = self.settings.identity or int
        by_node = sorted(
            messages, key=lambda message: message.metadata.dst_node_id
        )
        nodes = [message.metadata.dst_node_id for message in by_node]
        last_weights = np.array(
            [seen.last_weight(int(identity(node))) for node in nodes]
        )
        is_new = np.isnan(last_weights)
        last_weights[is_new] = 1.0 if np.mean(is_new) > _MOSTLY else math.inf
        mean_weight = last_weights[np.isfinite(last_weights)].mean()
        light = int(np.count_nonzero(last_weights <= _HEAVY * mean_weight))
        lightest_first = np.argsort(last_weights, kind="stable")
        candidates = lightest_first[: max(light, count)]
        drawn = rng.choice(candidates, count, replace=False)
        return {id(by_node[position]) for position in drawn}

    def join(
        self, current: RoundState, replies: list[Message], recording: Recording
    ) -> list[Message]:
        """The replies that the strategy gets, canaries' among them; notes who takes part.

        Without a readable real reply there is no round, and no canary. A round without canaries is
        read, too, for what a client adds in it.

        Args:
            current: the round.
            replies: of clients.
            recording: of the run.

        Raises:
            ValueError: if a canary cannot join, with the reason.
        """
        real = readable(replies)
        if not real or self.state.inject == "none":
            return replies
        cohort = self._beside(current, len(real))
        if not cohort:
            # What a client adds may not be known.
            with contextlib.suppress(ValueError):
                self._read(current, real, recording)
            return replies
        answers, kind = self._read(current, real, recording)
        weighted_by = self.wrapped.weighted_by()
        weight = self._weight(weights(real, weighted_by), len(cohort))
        norms, clipped = self._norms(current, len(cohort), answers)
        vectors = recording.auditor.canaries.vectors(cohort)
        updates = CanaryUpdates(cohort, vectors, norms, clipped, weight)
        synthetic = make_replies(
            updates, answers, real, weighted_by, current, kind
        )
        current.canaries = CanaryReplies(cohort, synthetic, vectors)
        return [*replies, *synthetic]

    def _beside(self, current: RoundState, replies: int) -> list[int]:
        """The canaries that stay where so many clients replied.

        Raises:
            ValueError: if they are too many, and answer in the place of clients.
        """
        cohort = current.cohort
        if (
            len(cohort)
            <= self._largest_share * (len(cohort) + replies) + _ROUNDING
        ):
            return cohort
        if current.withheld:
            check_share(len(cohort), replies, self._largest_share)
        return self._thinned(cohort, replies / len(current.sent), current.index)

    def _read(
        self, current: RoundState, real: Sequence[Message], recording: Recording
    ) -> tuple[list[ReadableReply], ReplyKind | None]:
        """Some answers and what they are; notes the norm of a client's update.

        Raises:
            ValueError: if that is not known, with the reason.
        """
        state = self.state
        layout = current.layout
        refuse = functools.partial(
            recording.faults.book.add, current.index, FaultKind.ANSWER_REFUSED
        )
        answers = some_answers(
            real,
            layout,
            current.before,
            self.wrapped.arrays_key(),
            generator(self.settings.canary_seed, _NORMS, current.index),
            refuse,
        )
        vectors = [answer.vector for answer in answers]
        if state.kind is None and np.any(current.before):
            state.kind = kind_of_replies(vectors, current.before)
            if state.kind is None:
                raise ValueError(
                    "Expected replies that are clearly models or clearly differences from the"
                    " model: say which with replies='model' or replies='update'."
                )
        kind = (
            state.kind
        )  # None where it makes no difference, as the model is 0
        recording.choose_arrays(current, vectors, kind)
        if (
            current.layout is not layout
        ):  # canaries leave more arrays alone from now on
            vectors = [
                current.layout.flatten(answer.arrays) for answer in answers
            ]
            answers = [
                dataclasses.replace(answer, vector=vector)
                for answer, vector in zip(answers, vectors, strict=True)
            ]
        before = base_of(kind, current.before)
        noisy = are_noise(vectors, before)
        state.note(current.index).noisy = noisy
        if math.isnan(current.clip_norm):
            current.update_norm = self.settings.canary_norm or median_norm(
                answers, before, noisy=noisy
            )
        else:
            # Canaries of a clip norm that is far above the real updates and the noise would alone
            # decide what becomes of the model.
            multiplier = recording.noise_multipliers()[1] or 0.0
            noise = (
                multiplier * math.sqrt(current.layout.dim) * current.clip_norm
            )
            longest = max(norm(vector, before) for vector in vectors)
            hidden = max(longest, noise)
            is_far = current.clip_norm > _FAR * hidden
            current.update_norm = hidden if is_far else current.clip_norm
        return answers, kind

    def _weight(self, real: Sequence[float], count: int) -> float:
        """The weight of each of a round's canaries, of the type of the real replies'.

        That of the median reply, or less where that would be more than their share of the round.

        Args:
            real: weights of the real replies.
            count: of the canaries.

        Raises:
            ValueError: if the canaries would have more than their share at any weight.
        """
        share = self._largest_share
        if self.settings.num_examples is not None:
            check_share(self.settings.num_examples * count, sum(real), share)
            return self.settings.num_examples
        positive = [weight for weight in real if 0 < weight < math.inf]
        if not positive:
            raise ValueError(
                "Expected replies of positive weight, but all weights are 0."
            )
        typical = statistics.median_low(positive)
        if share == 1:
            return typical
        largest = share / (1 - share) * sum(positive) / count
        if typical <= largest:
            return typical
        if all(isinstance(weight, int) for weight in positive):
            largest = math.floor(largest)
        if not largest > 0:
            check_share(typical * count, sum(positive), share)
        return largest

    def _norms(
        self, current: RoundState, count: int, answers: Sequence[ReadableReply]
    ) -> tuple[Floats, Booleans]:
        """How long the canaries' updates are as they are sent, and which of them are clipped.

        Raises:
            ValueError: if the replies' numbers cannot hold the clip norm's square.
        """
        clip_norm = current.clip_norm
        clipped = np.zeros(count, bool)
        if math.isnan(clip_norm) or current.update_norm < clip_norm:
            return np.full(count, current.update_norm), clipped
        sent = np.full(count, clip_norm)
        target = self.wrapped.target_clipped()
        if self.wrapped.clips_on_server or target is not None:
            # So that canaries do not move an adaptive clip norm, as many are clipped as it aims at.
            clipped_count = count if target is None else round(target * count)
            clipped = np.arange(count) < clipped_count
            longest = min(longest_norm(answer.arrays) for answer in answers)
            if longest < clip_norm:
                raise ValueError(
                    f"Expected clip_norm={clip_norm:g} to be at most {longest:g}, as the"
                    " replies' numbers cannot hold the square of a longer update."
                )
            far_above = min(FAR_ABOVE * clip_norm, longest)
            sent = np.where(clipped, far_above, _JUST_BELOW * sent)
        if not self.wrapped.clips_on_server:
            sent = np.minimum(sent, clip_norm)
        return sent, clipped


@dataclasses.dataclass(eq=False)
class ClientAnswers:
    """Clients that answer with a canary whenever they are asked to train, but in the first round.

    Attributes:
        settings: of the audit.
        wrapped: the strategy.
        state: of the audit, which tells who has which canary.
    """

    settings: CanaryAuditSettings
    wrapped: Wrapped
    state: AuditState

    @functools.cached_property
    def _clients(self) -> ClientCanaries:
        state = self.state
        return self.settings.client_canaries(
            state.plan.number, state.clients, state.plan.left_out
        )

    def configure(
        self, current: RoundState, messages: list[Message], seen: SeenClients
    ) -> None:
        """See `ServerCanaries.configure`; no canary before replies show what they may move."""
        state = self.state
        if not state.settled:
            return
        length = self.settings.canary_norm or 0.0
        if self.wrapped.clips_on_server and math.isfinite(current.clip_norm):
            length = FAR_ABOVE * current.clip_norm
        orders = [
            self._clients.order(m.metadata.dst_node_id, length)
            for m in messages
        ]
        cohort = [order.number for order in orders if order is not None]
        real = len(messages) - len(cohort)
        share = self.settings.largest_share
        check_share(len(cohort), real, share, may_be_all=True)
        state.ordered.update(cohort)
        current.sent = [
            message if order is None else with_order(message, order)
            for message, order in zip(messages, orders, strict=True)
        ]

    def join(
        self, current: RoundState, replies: list[Message], recording: Recording
    ) -> list[Message]:
        """See `ServerCanaries.join`; reads who answered with a canary."""
        state = self.state
        real = readable(replies)
        by_number = dict[int, Message]()
        has_duplicates = False  # then it is not known what a canary adds
        for reply in real:
            answer = take_acknowledgement(reply.content)
            if answer is Acknowledgement.CANARY:
                number = self._clients.number(reply.metadata.src_node_id)
                if number is not None:
                    has_duplicates |= number in by_number
                    by_number[number] = reply
            elif answer is not None:
                state.refused.add(answer)
        with_canary = {id(reply) for reply in by_number.values()}
        without_canary = [
            reply for reply in real if id(reply) not in with_canary
        ]
        answers = list[Vector]()
        for reply in without_canary[:MOST_READ]:
            # It may be encrypted, or have other arrays.
            with contextlib.suppress(ValueError):
                answers.append(self._vector(reply, current))
        with contextlib.suppress(ValueError):  # nobody moved the model
            recording.choose_arrays(current, answers, "model")
        missing = self._missing(current, by_number, without_canary, recording)
        for number in missing:
            node = by_number.pop(number).metadata.src_node_id
            text = f"node {node}: its answer does not hold its canary"
            recording.faults.book.add(
                current.index, FaultKind.ANSWER_REFUSED, text
            )
        state.answered.update(by_number)
        current.update_norm = math.nan if has_duplicates else current.clip_norm
        numbers = sorted(by_number)
        current.canaries = CanaryReplies(
            numbers, [by_number[n] for n in numbers]
        )
        current.absent += len(missing)
        return replies

    def _vector(self, reply: Message, current: RoundState) -> Vector:
        return model_record(reply, current.layout, self.wrapped.arrays_key())[1]

    def _missing(
        self,
        current: RoundState,
        by_number: Mapping[int, Message],
        without_canary: Sequence[Message],
        recording: Recording,
    ) -> list[int]:
        """Canaries that are not in the answers of clients that acknowledged them.

        Answers that cannot be read, and all where clients' answers are noise, are believed.
        """
        missing = list[int]()
        try:
            for number, reply in by_number.items():
                update = self._vector(reply, current) - current.before
                canary = recording.auditor.canaries.vectors([number])[0]
                least = _SURELY * norm(update) / math.sqrt(len(update))
                if not canary @ update > least:
                    missing.append(number)
            if not missing:
                return []
            updates = [
                self._vector(reply, current) - current.before
                for reply in without_canary[:MOST_READ]
            ]
            if are_noise(updates):
                return []
            return missing
        except ValueError:  # encrypted, say
            return []
