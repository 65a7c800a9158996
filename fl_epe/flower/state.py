"""`AuditState`: what an audit knows between two rounds, all of which a checkpoint keeps."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from numpy.typing import NDArray

from fl_epe.archive import one_line
from fl_epe.auditing import FaultKind
from fl_epe.flower.arrays import Layout
from fl_epe.flower.client_canaries import Acknowledgement
from fl_epe.flower.rounds import AuditPlan, RoundState
from fl_epe.flower.settings import ReplyKind

logger = logging.getLogger("flwr.fl_epe")  # shown where Flower's own messages are
_FAULTS_KEPT = 100


def digest(theta: NDArray[np.floating]) -> str:
    """The hash by which a model, as a flat vector, is known again."""
    return hashlib.blake2b(np.ascontiguousarray(theta).data, digest_size=16).hexdigest()


@dataclasses.dataclass
class RoundNotes:
    """What is known of one round.

    Attributes:
        faults: what went wrong, in sentences, and of which kind that is.
        counts: how often each kind of fault happened.
        failure: the first part of the audit that could not be done, and why.
        answered: clients that answered.
        loss: of the clients' training; ``None`` if nobody says.
        averaged: how the strategy averaged; ``None`` if that is not known.
        shares: largest of a real client and of a canary in what was released, NaN if not known;
            ``None`` if no canary took part.
    """

    faults: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    failure: str | None = None
    answered: list[int] = dataclasses.field(default_factory=list)
    loss: float | None = None
    averaged: str | None = None
    shares: tuple[float, float] | None = None


@dataclasses.dataclass
class AuditState:
    """An audit after some rounds.

    Attributes:
        seed: of the canaries.
        rounds: of the run, over which the canaries are spread; ``None`` if not known.
        number: how many canaries the server makes; fewer than asked for if they do not fit.
        max_share: largest share of a round's replies that canaries may have.
        kind: what replies are; ``None`` until it is found out.
        inject: "auto": canaries fill up to the number of replies that the strategy's noise is
            meant for, and replace real clients beyond that; after the strategy has failed on that
            "replace", and then "none".
        clients: number of the canary of each client that has one.
        ordered: numbers of canaries that clients were to answer with.
        answered: those that they did answer with.
        refused: why clients answered for themselves (`Acknowledgement`), and how often.
        arguments: of the audit that is kept, see `fingerprint`.
        index: how many rounds are done.
        layout: of the model; ``None`` before the first round.
        models: hash of the model after so many rounds, see `digest`, where there is a checkpoint.
        notes: of each round, by its index.
        warned: what was logged.
        plan: what the audit does to the run; ``None`` before the first round.
        resumed: after how many rounds the audit went on, each time that it was started again.
    """

    seed: int
    rounds: int | None
    number: int
    max_share: float
    kind: ReplyKind | None
    inject: str = "auto"
    clients: dict[int, int] = dataclasses.field(default_factory=dict)
    ordered: set[int] = dataclasses.field(default_factory=set)
    answered: set[int] = dataclasses.field(default_factory=set)
    refused: dict[int, int] = dataclasses.field(default_factory=dict)
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    index: int = 0
    layout: Layout | None = None
    models: dict[int, str] = dataclasses.field(default_factory=dict)
    notes: dict[int, RoundNotes] = dataclasses.field(default_factory=dict)
    warned: set[str] = dataclasses.field(default_factory=set)
    plan: AuditPlan | None = None
    resumed: tuple[int, ...] = ()

    def note(self, index: int) -> RoundNotes:
        """What is known of the round with this index."""
        return self.notes.setdefault(index, RoundNotes())

    @property
    def faults(self) -> list[str]:
        """What went wrong, in sentences: the first hundred."""
        return [text for note in self.notes.values() for _, text in note.faults]

    @property
    def fault_counts(self) -> dict[str, int]:
        """How often each kind of fault happened."""
        total: Counter[str] = Counter()
        for note in self.notes.values():
            total.update(note.counts)
        return dict(total)

    @property
    def first_failure(self) -> str | None:
        """The first part of the audit that could not be done, and why."""
        return next((note.failure for note in self.notes.values() if note.failure), None)

    def participations(self) -> float | None:
        """How many rounds a client answered in, on average; ``None`` if nobody did."""
        counts = Counter(client for note in self.notes.values() for client in note.answered)
        return statistics.fmean(counts.values()) if counts else None

    def missing(self) -> str | None:
        """Why fewer canaries took part than clients were told; ``None`` if nothing is known."""
        if len(self.answered) == len(self.ordered):
            return None
        hints = [Acknowledgement(n).hint for n in self.refused] or ["is canary_mod installed?"]
        return (
            f"{len(self.answered)} of {len(self.ordered)} canary clients answered with their"
            f" canary; {'; '.join(hints)}"
        )

    def reject(self) -> str:
        """Canaries stand in for clients that were asked, or stop: the strategy failed on them."""
        self.inject = "replace" if self.inject == "auto" else "none"
        if self.inject == "replace":
            return "from the next round on canaries answer in the place of clients"
        return "no canary takes part any more"

    def fault(
        self, index: int, text: str, kind: FaultKind = FaultKind.OTHER, times: int = 1
    ) -> None:
        """Keep a message about the round with this index, and count it by its kind."""
        note = self.note(index)
        note.counts[str(kind)] += times
        if len(self.faults) < _FAULTS_KEPT:
            note.faults.append((str(kind), f"round {index + 1}, {one_line(text, 400)}"))

    def failed(
        self,
        what: str,
        why: Exception | str,
        index: int | None = None,
        kind: FaultKind = FaultKind.NO_AUDIT,
        times: int = 1,
    ) -> None:
        """Keep what could not be done and why; the first of its kind is also logged.

        This may not end a run.

        Args:
            what: could not be done; its words are the kind.
            why: an error, or a sentence.
            index: of the round, from 0; the coming one by default.
            kind: by which it is counted.
            times: how often.
        """
        index = self.index if index is None else max(0, index)
        try:
            reason = one_line(why if isinstance(why, str) else f"{type(why).__name__}: {why}")
            self.fault(index, f"{what}: {reason}", kind, times)
            note = self.note(index)
            note.failure = note.failure or f"round {index + 1}, {what}: {reason}"
            if what not in self.warned:
                self.warned.add(what)
                logger.warning("Audit, round %d, %s: %s", index + 1, what, reason)
                trace = why if isinstance(why, Exception) else None
                logger.debug("Where it happened", exc_info=trace)
        except Exception as error:  # noqa: BLE001 - of the log itself
            text = f"{what}: {why}; it could not be logged: {error}"
            self.note(index).faults.append((str(kind), text))

    def hear(
        self, state: RoundState, replies: Sequence[Message], identity: Callable[[int], int]
    ) -> None:
        """Count the real replies of a round; errors and missing replies are faults.

        Args:
            state: of the round.
            replies: to what was sent in it.
            identity: what stays the same about a client, from its node id.
        """
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
                answered.add(int(identity(node)))
        self.note(state.index).answered += sorted(answered)
        silent = len(state.sent) - len(replies)
        if silent > 0:
            text = f"{silent} of {len(state.sent)} clients did not answer"
            self.fault(state.index, text, FaultKind.NO_ANSWER, silent)

    def round_of(self, arrays: ArrayRecord) -> int | None:
        """After how many rounds the model was this one; the last, if it stood still."""
        try:
            found = digest(self.layout.flatten(arrays)) if self.layout else ""
        except ValueError:
            return None
        return max((t for t, model in self.models.items() if model == found), default=None)

    def go_on(self, saved: AuditState, done: int) -> None:
        """Know the first ``done`` rounds of an audit that was saved, beside new faults."""
        mine, known = self.notes, set(saved.faults)
        vars(self).update(vars(saved))
        self.index, self.resumed = done, (*saved.resumed, done)
        self.models = {t: model for t, model in saved.models.items() if t <= done}
        self.notes = {t: note for t, note in saved.notes.items() if t < done}
        for index, note in mine.items():
            if new := [fault for fault in note.faults if fault[1] not in known]:
                here = self.note(index)
                here.faults += new
                here.counts.update(kind for kind, _ in new)
                here.failure = here.failure or note.failure
        if done < saved.index:
            self.fault(
                done - 1,
                f"the server went back to the model after this round: rounds {done + 1} to"
                f" {saved.index}, whose models were sent to clients, are not in the record",
            )
