"""What an audit does to a run, what it holds of a round under way, and its log of faults."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fl_epe.archive import one_line
from fl_epe.auditing import FaultKind, RoundFacts
from fl_epe.flower.arrays import Layout

_WARN_ABOVE = 0.1
_ROUNDING = 1e-5  # shares that differ less are equal


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


@dataclasses.dataclass(frozen=True)
class AuditPlan:
    """The audit's share of the rounds and its price.

    Attributes:
        canaries: most canaries in a round.
        clients: real clients in the first round, those that canaries replace included.
        replaced: how many of them are not asked in a round, as canaries take their place.
        left_out: names of arrays that canaries leave alone.
        reduced: which number of canaries was asked for, and why fewer take part; "" if all do.
    """

    canaries: int
    clients: int
    replaced: int = 0
    left_out: Sequence[str] = ()
    reduced: str = ""

    @property
    def share(self) -> float:
        """Canaries among the replies of a round."""
        replies = self.clients - self.replaced + self.canaries
        return self.canaries / replies if replies else 0.0

    @property
    def too_much(self) -> bool:
        """Whether canaries take so much of a round that its user must hear of it."""
        return self.share > _WARN_ABOVE or bool(self.reduced)

    def sentences(self) -> list[str]:
        """The plan in plain English."""
        lines = [
            f"Up to {self.canaries} canaries a round, beside {self.clients - self.replaced} of"
            f" {self.clients} clients: {self.share:.0%} of the replies.",
            f"Real clients have {1 - self.share:.0%} of the weight that they have without the"
            f" audit{f', as {self.replaced} of them are not asked' if self.replaced else ''}.",
        ]
        if self.reduced:
            lines.append(self.reduced)
        if self.left_out:
            lines.append(f"Canaries leave alone: {', '.join(self.left_out)}.")
        return lines


@dataclasses.dataclass
class RoundState:
    """A round from the messages that go out to the model that comes back.

    Attributes:
        index: of the round, from 0.
        arrays: the global model that is sent out.
        layout: of the model.
        clip_norm: of the round; NaN where nothing is known to clip.
        grid: by which clients can be asked.
        sent: messages that go out.
        withheld: messages that do not, as a canary answers in their place.
        synthetic: replies that the server made.
        vectors: the canaries in them, shape ``(K, dim)``.
        counted: norm that each canary has after clipping; NaN if not known.
        replies: all that the strategy is given, without an error.
        played: those with canaries, in the order of ``facts.present``.
        used: replies that the strategy used, as in `Shares`; ``None`` if it does not tell.
        facts: what the auditor is told.
        unreadable: what is wrong with replies that were looked at.
        dominant: updates that are most of the round, in sentences.
        heaviest: largest share of a real reply, and of a canary; NaN if not known.
        sits_out: whether no canary may join, and the round is the strategy's alone.
    """

    index: int
    arrays: ArrayRecord
    layout: Layout
    clip_norm: float
    grid: Grid | None = None
    sent: list[Message] = dataclasses.field(default_factory=list)
    withheld: list[Message] = dataclasses.field(default_factory=list)
    synthetic: list[Message] = dataclasses.field(default_factory=list)
    vectors: NDArray[np.float32] | None = None
    counted: float = math.nan
    replies: list[Message] = dataclasses.field(default_factory=list)
    played: list[Message] = dataclasses.field(default_factory=list)
    used: set[int] | None = None
    facts: RoundFacts = dataclasses.field(default_factory=RoundFacts)
    unreadable: list[str] = dataclasses.field(default_factory=list)
    dominant: list[str] = dataclasses.field(default_factory=list)
    heaviest: tuple[float, float] = (math.nan, math.nan)
    sits_out: bool = False

    @functools.cached_property
    def before(self) -> NDArray[np.floating]:
        """The global model as one vector, shape ``(dim,)``."""
        return self.layout.flatten(self.arrays)

    def without_canaries(self) -> None:
        """Forget the canaries of this round: nobody takes part."""
        self.synthetic, self.played, self.vectors, self.used = [], [], None, None
        self.replies = []
        self.facts = dataclasses.replace(self.facts, present=(), contribution=0.0)

    def settle(self, shares: Mapping[int, float] | None) -> int:
        """Note what each canary added to the mean; how many the strategy left out.

        Args:
            shares: of the replies, see `Aggregation.shares`; ``None`` if they are not known.
        """
        ids = [id(reply.content) for reply in self.played]
        if shares is not None:
            real = max((s for i, s in shares.items() if i not in ids), default=math.nan)
            self.heaviest = real, max((shares.get(i, 0.0) for i in ids), default=math.nan)
            kept = [i for i, number in enumerate(ids) if shares.get(number, 0.0) > 0]
        else:
            kept = [i for i, number in enumerate(ids) if self.used is None or number in self.used]
        left_out = len(ids) - len(kept)
        if not kept:
            self.facts = dataclasses.replace(self.facts, present=(), contribution=0.0)
            return left_out
        mine = np.array([math.nan if shares is None else shares[ids[i]] for i in kept])
        typical = float(np.sqrt(np.mean(mine**2)))
        equal = shares is None or bool(np.ptp(mine) <= _ROUNDING * typical)
        if left_out and self.vectors is not None:
            self.vectors = self.vectors[kept]
        self.facts = dataclasses.replace(
            self.facts,
            present=[list(self.facts.present)[i] for i in kept],
            contribution=self.counted * typical,
            weights=() if equal else (mine / typical).tolist(),
            absent=self.facts.absent + left_out,
        )
        return left_out


logger = logging.getLogger("flwr.fl_epe")  # shown where Flower's own messages are
_FAULTS_KEPT = 100


class AuditLog:
    """Counts the clients' answers, keeps the first hundred faults and warns once of each kind.

    Args:
        identity: what stays the same about a client, from its node id; the node id by default.

    Attributes:
        entries: what went wrong, with the index of the round.
        first_failure: the first part of the audit that could not be done, and why.
        heaviest: largest shares of a real client and of a canary in what was released, by round;
            NaN if not known.
    """

    def __init__(self, identity: Callable[[int], int] | None = None) -> None:
        self._identity = identity or int
        self.entries: list[tuple[int, str]] = []
        self.first_failure: str | None = None
        self.heaviest: dict[int, tuple[float, float]] = {}
        self._counts: Counter[tuple[int, str]] = Counter()  # by round and kind
        self._answered: dict[int, list[int]] = {}  # clients by round
        self._warned: set[str] = set()

    def note(self, state: RoundState, replies: Sequence[Message]) -> None:
        """Count the real replies of a round; errors and missing replies are faults."""
        # A SuperLink answers in the name of a node that died, under its own id.
        asked = {m.metadata.message_id: m.metadata.dst_node_id for m in state.sent}
        answered, heard = set(), set[str]()
        for reply in replies:
            about = reply.metadata.reply_to_message_id
            node = asked.get(about, reply.metadata.src_node_id)
            if about and about in heard:
                self.fault(state.index, f"node {node}: it answered twice", FaultKind.TWICE)
            heard.add(about)
            if reply.has_error():
                kind = FaultKind.of_error(reply.error.code)
                self.fault(state.index, f"node {node}: {reply.error.reason}", kind)
            else:
                answered.add(self._identity(node))
        self._answered.setdefault(state.index, []).extend(sorted(answered))
        silent = len(state.sent) - len(replies)
        if silent > 0:
            text = f"{silent} of {len(state.sent)} clients did not answer"
            self.fault(state.index, text, FaultKind.NO_ANSWER, silent)

    def fault(
        self, index: int, text: str, kind: FaultKind = FaultKind.OTHER, times: int = 1
    ) -> None:
        """Keep a message about the round with this index, and count it by its kind."""
        self._counts[index, str(kind)] += times
        if len(self.entries) < _FAULTS_KEPT:
            self.entries.append((index, f"round {index + 1}, {one_line(text, 400)}"))

    @property
    def faults(self) -> list[str]:
        """What went wrong, in sentences."""
        return [text for _, text in self.entries]

    @property
    def fault_counts(self) -> dict[str, int]:
        """How often each kind of fault happened."""
        total: Counter[str] = Counter()
        for (_, kind), count in self._counts.items():
            total[kind] += count
        return dict(total)

    def failed(
        self,
        index: int,
        what: str,
        why: Exception | str,
        kind: FaultKind = FaultKind.NO_AUDIT,
        times: int = 1,
    ) -> None:
        """Keep what could not be done and why; the first of its kind is also logged.

        Args:
            index: of the round, from 0.
            what: could not be done; its words are the kind.
            why: an error, or a sentence.
            kind: by which it is counted.
            times: how often.
        """
        reason = one_line(why if isinstance(why, str) else f"{type(why).__name__}: {why}")
        self.fault(index, f"{what}: {reason}", kind, times)
        self.first_failure = self.first_failure or f"round {index + 1}, {what}: {reason}"
        if what not in self._warned:
            self._warned.add(what)
            trace = why if isinstance(why, Exception) else None
            logger.warning("Audit, round %d, %s: %s", index + 1, what, reason)
            logger.debug("Where it happened", exc_info=trace)

    def participations(self) -> float | None:
        """How many rounds a client answered in, on average; ``None`` if nobody did."""
        counts = Counter(client for clients in self._answered.values() for client in clients)
        return statistics.fmean(counts.values()) if counts else None

    def state(self) -> dict[str, Any]:
        """Everything but the warnings given, as JSON values."""
        return {
            "faults": self.entries,
            "counts": [[*key, count] for key, count in self._counts.items()],
            "first_failure": self.first_failure,
            "heaviest": list(self.heaviest.items()),
            "answered": list(self._answered.items()),
        }

    def restore(self, state: Mapping[str, Any], rounds: int) -> None:
        """Put the first ``rounds`` rounds in what `state` returned before what is kept here."""
        for index, kind, count in state["counts"]:
            if index < rounds:
                self._counts[index, kind] += count
        kept = [(index, text) for index, text in state["faults"] if index < rounds]
        new = [entry for entry in self.entries if entry not in kept]
        self.entries = [*kept, *new][:_FAULTS_KEPT]
        if state["first_failure"] in self.faults:  # and not in a round that is forgotten
            self.first_failure = state["first_failure"]
        self.heaviest |= {index: tuple(m) for index, m in state["heaviest"] if index < rounds}
        self._answered = {index: ids for index, ids in state["answered"] if index < rounds}
