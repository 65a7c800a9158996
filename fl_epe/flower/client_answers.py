"""`ClientAnswers`: clients that answer with a canary through `canary_mod`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from flwr.app import Message

from fl_epe.auditing import RoundFacts
from fl_epe.flower.client_canaries import (
    Acknowledgement,
    ClientCanaries,
    take_acknowledgement,
    with_order,
)
from fl_epe.flower.replies import dominant_updates, readable
from fl_epe.flower.round_state import RoundState
from fl_epe.flower.settings import CanaryAuditSettings
from fl_epe.flower.source import FAR_ABOVE, Source, TooManyCanariesError
from fl_epe.flower.wrapped import Wrapped


class ClientAnswers(Source):
    """Clients that answer with a canary whenever they are asked to train.

    Args:
        wrapped: the strategy.
        settings: of the audit.
        clients: which clients, with which canaries.
    """

    participation = "deployment"

    def __init__(
        self, wrapped: Wrapped, settings: CanaryAuditSettings, clients: ClientCanaries
    ) -> None:
        self._wrapped, self._settings, self._clients = wrapped, settings, clients
        self._ordered, self._answered = set[int](), set[int]()  # numbers of canaries
        self._refused: Counter[Acknowledgement] = Counter()  # why clients answered for themselves

    def configure(self, state: RoundState, messages: list[Message]) -> None:
        """See `Source.configure`."""
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
        """See `Source.join`. Reads who answered with a canary, and nothing else of the replies."""
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
        self._answered.update(played)
        mine = {id(reply) for reply in played.values()}
        others = [reply for reply in real if id(reply) not in mine]
        state.dominant = dominant_updates(self._wrapped, state, others, "model")
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
        if len(self._answered) == len(self._ordered):
            return None
        hints = [answer.hint for answer in self._refused] or ["is canary_mod installed?"]
        return (
            f"{len(self._answered)} of {len(self._ordered)} canary clients answered with their"
            f" canary; {'; '.join(hints)}"
        )

    def state(self) -> dict[str, Any]:
        """See `Source.state`."""
        return {
            "ordered": sorted(self._ordered),
            "answered": sorted(self._answered),
            "refused": [[int(answer), count] for answer, count in self._refused.items()],
            "clients": self._clients.numbers,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Source.restore`."""
        self._ordered, self._answered = set(state["ordered"]), set(state["answered"])
        self._refused = Counter({Acknowledgement(int(a)): int(n) for a, n in state["refused"]})
        self._clients.restore(state["clients"])
