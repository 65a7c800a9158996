"""The sources of canaries: replies that the server makes, or clients that answer with one."""

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
from fl_epe.flower.layout import longest_norm
from fl_epe.flower.plan import schedule_of_load, schedule_of_number
from fl_epe.flower.recording import Recording
from fl_epe.flower.replies import (
    MAX_READ,
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

# The norm of a canary that must not be clipped, in clip norms: arrays are rounded.
_UNCLIPPED_NORM = 1 - 1e-4
# A canary is in an answer if its inner product with the update exceeds this many standard
# deviations of inner products with updates without the canary.
_MIN_DEVIATIONS = 3.0
# A clip norm above this multiple of the longest update, and of the noise's norm, is not the norm of
# a client's update.
_MAX_CLIP_NORM_RATIO = 2.0
# Streams of the audit's own random choices, besides that of its plan.
_WITHHELD_STREAM = 1
_ANSWERS_STREAM = 2
_THINNED_STREAM = 3
# A number of canaries may exceed its limit by rounding.
_ROUNDING = 1e-9
# A client whose weight is above this multiple of the mean weight is not replaced.
_MAX_REPLACED_WEIGHT = 2.0
# Clients without an earlier answer can be replaced if they are more than this share of a round.
_MIN_SHARE_OF_NEW = 0.5
_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


def check_share(
    canaries: float,
    real: float,
    largest_share: float,
    *,
    may_be_all: bool = False,
) -> None:
    """Raise a `ValueError` if canaries exceed their share of a round.

    Args:
        canaries: the number or the weight of the canaries.
        real: the number or the weight of the real clients.
        largest_share: the largest share of the canaries.
        may_be_all: whether a round may have canaries without real clients.
    """
    is_too_much = canaries > largest_share * (canaries + real) + _ROUNDING
    has_no_real = canaries > 0 and real <= 0
    if is_too_much or (has_no_real and not may_be_all):
        raise ValueError(
            f"Expected canaries to be at most {largest_share:.0%} of a round, got {canaries:g}"
            f" beside {real:g} of real clients ({canaries / (canaries + real):.0%}): lower"
            " num_canaries or participations, or raise max_share."
        )


@dataclasses.dataclass(eq=False)
class ServerCanaries:
    """Synthetic replies, which are added to the real ones or replace some of them.

    Attributes:
        settings: the settings of the audit.
        wrapped: the strategy.
        state: the state of the audit.
        rounds: the number of rounds of the run, over which the canaries are spread.
    """

    settings: CanaryAuditSettings
    wrapped: Wrapped
    state: AuditState
    rounds: int

    @functools.cached_property
    def _presence(self) -> Booleans:
        """Whether each planned canary is in each round, shape ``(T, k)``."""
        plan = self.state.plan
        skips_first_round = self.wrapped.room(plan.clients) < 1
        if plan.load is None:
            return schedule_of_number(
                self.settings,
                self.rounds,
                plan.number,
                skips_first_round=skips_first_round,
            )
        return schedule_of_load(
            self.settings,
            self.rounds,
            plan.load,
            skips_first_round=skips_first_round,
        )

    @property
    def _largest_share(self) -> float:
        """The largest share of canaries in one round.

        A round with fewer clients than planned may have up to twice the planned share, if that
        is not more than half of the round.
        """
        planned_share = max(
            self.settings.largest_share, self.state.plan.largest_share
        )
        return max(planned_share, min(0.5, 2 * planned_share))

    def _thinned(
        self, cohort: list[int], share: float, index: int
    ) -> list[int]:
        """A share of the cohort, drawn at random; over several rounds, it is exact on average."""
        if share >= 1:
            return cohort
        rng = generator(self.settings.canary_seed, _THINNED_STREAM, index)
        # The offsets are spread evenly over [0, 1), so that rounding down has no bias.
        offset = index * _GOLDEN_RATIO % 1
        count = math.floor(share * len(cohort) + offset)
        return sorted(rng.choice(cohort, count, replace=False).tolist())

    def configure(
        self, current: RoundState, messages: list[Message], seen: SeenClients
    ) -> None:
        """Decide which of the strategy's ``messages`` are sent, and which canaries take part.

        Canaries of a load keep their share if there are fewer clients than in the first round.

        Args:
            current: the round, which stores the decision.
            messages: the messages of the strategy.
            seen: the clients that answered before.

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
        if self.rounds > 1 and not seen.count:
            # As the clients' weights are not known yet, no client can be replaced.
            cohort = cohort[: int(min(room, len(cohort)))]
        current.cohort = cohort
        replaced = int(min(max(len(cohort) - room, 0), clients))
        # A load may leave one canary in a round with a single client.
        largest_share = self._largest_share
        if self.state.plan.load is not None:
            largest_share = max(largest_share, 0.5)
        check_share(len(cohort), clients - replaced, largest_share)
        rng = generator(
            self.settings.canary_seed, _WITHHELD_STREAM, current.index
        )
        withheld = self._choose_withheld(messages, replaced, seen, rng)
        current.sent = [m for m in messages if id(m) not in withheld]
        current.withheld = [m for m in messages if id(m) in withheld]

    def _choose_withheld(
        self,
        messages: Sequence[Message],
        count: int,
        seen: SeenClients,
        rng: np.random.Generator,
    ) -> set[int]:
        """The ``id`` of each message that is not sent, as a canary replaces the client.

        They are drawn at random from the messages to all clients except those with the largest
        weights. A canary has the median weight: in place of such a client, it would make the
        other clients' shares much larger than in other rounds. A client that never answered may
        have a large weight, and is only drawn if most clients never answered, or if there are too
        few others.

        Args:
            messages: the messages of the strategy.
            count: the number of clients to replace.
            seen: the clients that answered before.
            rng: the generator of the choice.
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
        are_mostly_new = np.mean(is_new) > _MIN_SHARE_OF_NEW
        last_weights[is_new] = 1.0 if are_mostly_new else math.inf
        mean_weight = last_weights[np.isfinite(last_weights)].mean()
        is_light = last_weights <= _MAX_REPLACED_WEIGHT * mean_weight
        num_light = int(np.count_nonzero(is_light))
        lightest_first = np.argsort(last_weights, kind="stable")
        candidates = lightest_first[: max(num_light, count)]
        drawn = rng.choice(candidates, count, replace=False)
        return {id(by_node[position]) for position in drawn}

    def join(
        self, current: RoundState, replies: list[Message], recording: Recording
    ) -> list[Message]:
        """The replies for the strategy, including the canaries', which the round stores.

        Without a readable real reply, there are no canaries. The replies of a round without
        canaries are also read, for the norm of a client's update.

        Args:
            current: the round.
            replies: the replies of clients.
            recording: the recording of the run.

        Raises:
            ValueError: if a canary cannot join, with the reason.
        """
        real = readable(replies)
        if not real or self.state.inject == "none":
            return replies
        cohort = self._fitting_cohort(current, len(real))
        if not cohort:
            # If the norm of a client's update is not known, no canary needs it.
            with contextlib.suppress(ValueError):
                self._read(current, real, recording)
            return replies
        answers = self._read(current, real, recording)
        weighted_by = self.wrapped.weighted_by()
        weight = self._weight(weights(real, weighted_by), len(cohort))
        norms, clipped = self._norms(current, len(cohort), answers)
        vectors = recording.auditor.canaries.vectors(cohort)
        updates = CanaryUpdates(cohort, vectors, norms, clipped, weight)
        synthetic = make_replies(
            updates, answers, real, weighted_by, current, self.state.kind
        )
        current.canaries = CanaryReplies(cohort, synthetic, vectors)
        return [*replies, *synthetic]

    def _fitting_cohort(self, current: RoundState, replies: int) -> list[int]:
        """The canaries that can join ``replies`` replies of clients.

        If there are too many for the clients that replied, they are thinned to the share of the
        asked clients that replied.

        Raises:
            ValueError: if there are too many, and they replace clients.
        """
        cohort = current.cohort
        largest = self._largest_share * (len(cohort) + replies)
        if len(cohort) <= largest + _ROUNDING:
            return cohort
        if current.withheld:
            check_share(len(cohort), replies, self._largest_share)
        return self._thinned(cohort, replies / len(current.sent), current.index)

    def _read(
        self, current: RoundState, real: Sequence[Message], recording: Recording
    ) -> list[ReadableReply]:
        """Read some answers, and store what canaries need to join them.

        This is the kind of the replies, the arrays that canaries move, whether clients' updates
        look like noise, and the norm of a canary's update.

        Raises:
            ValueError: if the norm or the kind is not known, with the reason.
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
            generator(
                self.settings.canary_seed, _ANSWERS_STREAM, current.index
            ),
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
        # The kind stays unknown while the model is 0, where kinds do not differ.
        recording.choose_arrays(current, vectors, state.kind)
        if current.layout is not layout:
            # The replies have shown that canaries must not move some of the arrays.
            answers = [answer.in_layout(current.layout) for answer in answers]
            vectors = [answer.vector for answer in answers]
        noisy = are_noise(vectors, base_of(state.kind, current.before))
        state.notes_on(current.index).noisy = noisy
        current.update_norm = self._update_norm(
            current, answers, recording, noisy=noisy
        )
        return answers

    def _update_norm(
        self,
        current: RoundState,
        answers: Sequence[ReadableReply],
        recording: Recording,
        *,
        noisy: bool,
    ) -> float:
        """The norm of a canary's update, which is that of a client's.

        Args:
            current: the round.
            answers: some of the clients' answers.
            recording: the recording of the run.
            noisy: whether the answers are noise, as with local DP.

        Raises:
            ValueError: if it is not known.
        """
        before = base_of(self.state.kind, current.before)
        if math.isnan(current.clip_norm):
            return self.settings.canary_norm or median_norm(
                answers, before, noisy=noisy
            )
        # If the clip norm is far above the real updates and the noise, canaries of that norm
        # would determine the model.
        _, sum_multiplier = recording.noise_multipliers()
        multiplier = sum_multiplier or 0.0
        noise_norm = (
            multiplier * math.sqrt(current.layout.dim) * current.clip_norm
        )
        longest = max(norm(answer.vector, before) for answer in answers)
        hiding_norm = max(longest, noise_norm)
        if current.clip_norm > _MAX_CLIP_NORM_RATIO * hiding_norm:
            return hiding_norm
        return current.clip_norm

    def _weight(self, real: Sequence[float], count: int) -> float:
        """The weight of each canary in a round, of the type of the real replies' weights.

        It is the median reply's weight, or less if the canaries would exceed their share.

        Args:
            real: the weights of the real replies.
            count: the number of canaries.

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
        """The norms of the canaries' updates in replies, and whether each will be clipped.

        Raises:
            ValueError: if the number type of the replies cannot hold the clip norm's square.
        """
        clip_norm = current.clip_norm
        clipped = np.zeros(count, bool)
        if math.isnan(clip_norm) or current.update_norm < clip_norm:
            return np.full(count, current.update_norm), clipped
        sent = np.full(count, clip_norm)
        target = self.wrapped.target_clipped()
        if self.wrapped.clips_on_server or target is not None:
            # The share of clipped canaries is the target of an adaptive clip norm, so that
            # canaries do not move it.
            clipped_count = count if target is None else round(target * count)
            clipped = np.arange(count) < clipped_count
            longest = min(longest_norm(answer.arrays) for answer in answers)
            if longest < clip_norm:
                raise ValueError(
                    f"Expected clip_norm={clip_norm:g} to be at most {longest:g}, as the"
                    " replies' numbers cannot hold the square of a longer update."
                )
            far_above = min(FAR_ABOVE * clip_norm, longest)
            sent = np.where(clipped, far_above, _UNCLIPPED_NORM * sent)
        if not self.wrapped.clips_on_server:
            sent = np.minimum(sent, clip_norm)
        return sent, clipped


@dataclasses.dataclass(eq=False)
class ClientAnswers:
    """Clients that answer with a canary whenever they are asked to train after the first round.

    Attributes:
        settings: the settings of the audit.
        wrapped: the strategy.
        state: the state of the audit, which has the canary of each client.
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
        """See `ServerCanaries.configure`.

        No canary is ordered before replies have shown which arrays canaries move.
        """
        state = self.state
        if not state.settled:
            return
        length = self.settings.canary_norm or 0.0
        if self.wrapped.clips_on_server and math.isfinite(current.clip_norm):
            length = FAR_ABOVE * current.clip_norm
        orders = [
            self._clients.order(message.metadata.dst_node_id, length)
            for message in messages
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
        """See `ServerCanaries.join`; the canaries are in the replies already."""
        state = self.state
        real = readable(replies)
        by_number = dict[int, Message]()
        has_duplicates = False
        for reply in real:
            answer = take_acknowledgement(reply.content)
            if answer is Acknowledgement.CANARY:
                number = self._clients.number(reply.metadata.src_node_id)
                if number is not None:
                    if number in by_number:
                        has_duplicates = True
                    by_number[number] = reply
            elif answer is not None:
                state.refused.add(answer)
        with_canary = {id(reply) for reply in by_number.values()}
        without_canary = [
            reply for reply in real if id(reply) not in with_canary
        ]
        answers = list[Vector]()
        for reply in without_canary[:MAX_READ]:
            # A reply may be encrypted, or have other arrays.
            with contextlib.suppress(ValueError):
                answers.append(self._vector(reply, current))
        # There may be no answer, or no answer that moved the model.
        with contextlib.suppress(ValueError):
            recording.choose_arrays(current, answers, "model")
        missing = self._missing(
            current, by_number, without_canary[:MAX_READ], recording
        )
        for number in missing:
            node = by_number.pop(number).metadata.src_node_id
            text = f"node {node}: its answer does not hold its canary"
            recording.faults.book.add(
                current.index, FaultKind.ANSWER_REFUSED, text
            )
        state.answered.update(by_number)
        # If two replies have the same canary, its contribution is not known.
        current.update_norm = math.nan if has_duplicates else current.clip_norm
        numbers = sorted(by_number)
        current.canaries = CanaryReplies(
            numbers, [by_number[number] for number in numbers]
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
        """The canaries that are not in the answers of clients that acknowledged them.

        None is missing if such an answer cannot be read, or if the other clients' updates are
        noise, which hides canaries.

        Args:
            current: the round.
            by_number: the replies that acknowledge a canary, by the canary's number.
            without_canary: the replies of some of the other clients.
            recording: the recording of the run.
        """
        missing = list[int]()
        try:
            for number, reply in by_number.items():
                update = self._vector(reply, current) - current.before
                canary = recording.auditor.canaries.vectors([number])[0]
                standard_deviation = norm(update) / math.sqrt(len(update))
                threshold = _MIN_DEVIATIONS * standard_deviation
                if not canary @ update > threshold:
                    missing.append(number)
            if not missing:
                return []
            # These vectors have the arrays that the first round chose a moment ago.
            answers = [self._vector(reply, current) for reply in without_canary]
        except ValueError:
            # An answer may be encrypted.
            return []
        if are_noise(answers, current.before):
            return []
        return missing
