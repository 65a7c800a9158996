"""`ServerCanaries`: synthetic replies, beside the real ones or in the place of some."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from fl_epe.auditing import RoundFacts
from fl_epe.flower.replies import (
    Answer,
    are_noise,
    dominant_updates,
    drawn_weights,
    kind_of_replies,
    make_replies,
    neutral_metrics,
    readable,
    some_answers,
    weights,
)
from fl_epe.flower.round_state import RoundState
from fl_epe.flower.settings import CanaryAuditSettings, ReplyKind
from fl_epe.flower.source import FAR_ABOVE, AuditPlan, Source, TooManyCanariesError, Vectors
from fl_epe.flower.wrapped import Wrapped
from fl_epe.schedules import Cohort, ShuffledEpochs
from fl_epe.seeding import generator

_JUST_BELOW = 1 - 1e-4  # of the clip norm: not clipped, whatever the arrays' rounding
_SCHEDULE, _WITHHELD, _NORMS = 0, 1, 2  # streams of an audit's own choices
_FOUND_OUT = ("inject", "kind", "number", "max_share")


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


class ServerCanaries(Source):
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

    participation = "epochs"

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

    def plan(self, clients: int, dim: int, left_out: Sequence[str]) -> AuditPlan:
        """See `Source.plan`. Spreads no more canaries than fit; none if fewer than two do."""
        expected = self._wrapped.expected_replies()
        room = math.inf if expected is None else max(expected - clients, 0)
        total, rounds = sum(map(len, self._cohorts)), len(self._cohorts)
        most = canaries_that_fit(self.max_share, clients, 0 if self.inject == "replace" else room)
        reduced = ""
        if total > most * rounds:
            asked, self.number = self.number, int(most * rounds * self.number / total + 1e-9)
            enough = self._planned_share(clients, asked if self.number >= 2 else 2)
            reduced = (
                f"Of {asked} canaries {self.number} fit into {rounds} rounds with {clients}"
                f" clients, as more than {self.max_share:.0%} of replies harm the model: ask for"
                f" {f'num_canaries={self.number}, or ' * (self.number >= 2)}max_share={enough}."
            )
            self.number = self.number if self.number >= 2 else 0
            self._cohorts = self._spread(self.number)
        self.max_share = max(self.max_share, self._planned_share(clients, self.number))
        canaries = max(map(len, self._cohorts), default=0)
        replaced = self._replaced(canaries, clients)
        return AuditPlan(canaries, clients, replaced, dim, left_out, reduced)

    def _planned_share(self, clients: int, number: int) -> float:
        """Largest share of a round's replies that so many canaries have, rounded up."""
        count = max(map(len, self._spread(number)), default=0)
        replies = count + max(clients - self._replaced(count, clients), 0)
        return math.ceil(100 * count / replies - 1e-9) / 100 if count else 0.0

    def _replaced(self, num_canaries: int, clients: int) -> int:
        """How many of a round's clients are not asked, as canaries take their place."""
        expected = self._wrapped.expected_replies()
        if self.inject == "auto" and expected is None:
            return 0
        room = 0 if self.inject == "replace" or expected is None else max(expected - clients, 0)
        return min(max(num_canaries - room, 0), clients)

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
        """See `Source.configure`."""
        count = len(self._cohort(state))
        replaced = self._replaced(count, len(messages))
        self._check_share(count, max(len(messages) - replaced, 0))
        rng = generator(self._settings.seed, _WITHHELD, state.index)
        by_node = sorted(range(len(messages)), key=lambda i: messages[i].metadata.dst_node_id)
        out = {by_node[i] for i in rng.choice(len(messages), replaced, replace=False)}
        state.sent = [m for i, m in enumerate(messages) if i not in out]
        state.withheld = [messages[i] for i in sorted(out)]

    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """See `Source.join`. Without a readable real reply there is no round, and no canary."""
        real = readable(replies)
        lost = len(state.sent) - len(real)
        state.facts = RoundFacts(clip_norm=state.clip_norm, replies=len(real), absent=lost)
        cohort = self._cohort(state)
        if not real or not cohort:
            return replies
        settings, key = self._settings, self._wrapped.weighted_by()
        rng = generator(settings.seed, _NORMS, state.index)
        like = some_answers(real, state, self._wrapped.arrays_key(), rng)
        kind = self._kind_of(like, state)
        state.dominant = dominant_updates(self._wrapped, state, real, kind)
        if settings.canary_norm is None and math.isnan(state.clip_norm):
            _check_noise(like, state.before if kind == "model" else None)
        norms, clipped = self._norms(state, like, kind, len(cohort))
        metrics = neutral_metrics(real, key)
        drawn = drawn_weights(real, key, len(cohort), rng)
        asked = settings.num_examples
        given = drawn if asked is None else [asked] * len(cohort)
        state.vectors = self._vectors(cohort)
        synthetic = make_replies(cohort, norms, clipped, like, metrics, (key, given), state, kind)
        if asked is None:  # theirs are real clients'
            self._check_share(len(cohort), len(real))
        else:
            self._check_share(sum(given), sum(weights(real, key)))
        state.synthetic, state.played = synthetic, synthetic
        state.counted = float(norms[0]) if math.isnan(state.clip_norm) else state.clip_norm
        state.facts = dataclasses.replace(
            state.facts, present=cohort, replies=len(real) + len(cohort)
        )
        return [*replies, *synthetic]

    def ended(self, index: int) -> str | None:
        """See `Source.ended`."""
        if index < self._schedule.rounds:
            return None
        return (
            f"the canaries took part in {self._schedule.rounds} rounds: give CanaryAudit rounds=…,"
            " those of all its starts together"
        )

    def rejected(self) -> str:
        """See `Source.rejected`: canaries stand in for clients that were asked, or stop."""
        self.inject = "replace" if self.inject == "auto" else "none"
        if self.inject == "replace":
            return "from the next round on canaries answer in the place of clients"
        return "no canary takes part any more"

    def averages_models(self) -> None:
        """See `Source.averages_models`."""
        self.kind = self.kind or "model"

    def state(self) -> dict[str, Any]:
        """See `Source.state`."""
        return {name: getattr(self, name) for name in _FOUND_OUT}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Source.restore`."""
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
            before = state.before if kind == "model" else 0.0
            return np.full(count, self._settings.canary_norm or _median_norm(like, before)), clipped
        sent = np.full(count, state.clip_norm)
        target = self._wrapped.target_clipped()
        if self._wrapped.clips_on_server or target is not None:
            # So that canaries do not move an adaptive clip norm, as many are clipped as it aims at.
            clipped = np.arange(count) < (count if target is None else round(target * count))
            sent *= np.where(clipped, FAR_ABOVE, _JUST_BELOW)
        if not self._wrapped.clips_on_server:
            sent = np.minimum(sent, state.clip_norm)
        return sent, clipped


def _check_noise(like: Sequence[Answer], before: NDArray[np.floating] | None) -> None:
    if are_noise([answer.vector for answer in like], before):
        raise ValueError(
            "Expected updates, but what clients answer looks like noise of their own, which"
            " says nothing about how long an update is: let clients answer with canaries"
            " (clients=… and canary_mod), or pass canary_norm, the norm without the noise."
        )


def _median_norm(like: Sequence[Answer], before: NDArray[np.floating] | float) -> float:
    length = statistics.median(float(np.linalg.norm(a.vector - before)) for a in like)
    if length == 0:
        raise ValueError("Expected clients that moved the model, but half of them did not.")
    return length
