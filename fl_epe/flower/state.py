"""What an audit knows: of a round under way, and between two rounds, which a checkpoint keeps."""

from __future__ import annotations

import dataclasses
import logging
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, assert_never

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fl_epe.archive import error_text, one_line
from fl_epe.auditing import FaultBook, FaultKind, RoundFacts
from fl_epe.checks import Floats32, Vector
from fl_epe.flower.client_canaries import Acknowledgement
from fl_epe.flower.layout import Layout, ReplyKind
from fl_epe.flower.plan import AuditPlan
from fl_epe.messages import error_kind, records_of

if TYPE_CHECKING:
    from fl_epe.flower.dominance import RoundUpdates

logger = logging.getLogger("flwr.fl_epe")  # shown where Flower's own messages are
_LOSSES = ("train_loss", "train-loss", "loss")
# What `AuditState.failed` is told.
_FAILURES = (
    FaultKind.AUDIT_STOOD_BACK,
    FaultKind.CANARY_UNUSED,
    FaultKind.CHECKPOINT_NOT_WRITTEN,
)
_ROUNDING = 1e-5  # shares that differ less are equal


def _described(why: Exception | str) -> str:
    """An error's type and text, or a sentence, on one line."""
    return one_line(why if isinstance(why, str) else error_text(why))


def losses_of(metrics: Iterable[Mapping[str, object]]) -> list[float]:
    """The loss of the training in each record of metrics that has one."""
    named = (
        record.get(name) for record in metrics for name in _LOSSES if name in record
    )
    return [float(loss) for loss in named if isinstance(loss, int | float)]


@dataclasses.dataclass
class Aggregation:
    """The replies that a strategy was given, and the arrays that it made of them.

    Attributes:
        replies: those without an error.
        arrays: the strategy's result; ``None`` until it is there.
    """

    replies: Sequence[Message] = ()
    arrays: ArrayRecord | None = None

    @property
    def eps(self) -> float:
        """Machine epsilon of the coarsest floating-point array that was made."""
        arrays = (self.arrays or {}).values()
        return float(
            max(np.finfo(array.dtype).eps for array in arrays if "float" in array.dtype)
        )


@dataclasses.dataclass
class RoundState:
    """A round from the messages that go out to the model that comes back.

    Attributes:
        index: of the round, from 0.
        arrays: the global model that is sent out.
        layout: of the model.
        before: the model as one vector, shape ``(dim,)``.
        clip_norm: of the round; NaN where nothing is known to clip.
        grid: by which clients can be asked.
        sent: messages that go out.
        cohort: numbers of the canaries that are to take part.
        withheld: messages that do not, as a canary answers in their place.
        synthetic: replies that the server made.
        vectors: the canaries in them, shape ``(K, dim)``.
        counted: norm of a client's update after clipping, which a canary's has, too; NaN if not
            known. The clip norm, until replies are read.
        replies: all that the strategy is given, without an error.
        present: numbers of the canaries that take part.
        played: replies with canaries, in the order of ``present``.
        absent: clients and canaries whose update was lost.
        used: replies that the strategy used, as in `Shares`; ``None`` if it does not tell.
        seen: what the innermost strategy was given and made; ``None`` if that was not seen.
        noise_std: claimed standard deviation of the noise; ``None`` if that is not seen apart.
        clients: the client of each reply, by the ``id`` of its content.
        sits_out: whether no canary may join: the round is the strategy's alone until its canaries
            are chosen.
        updates: of the real clients, in some entries; ``None`` if they cannot be read.
        unmoved: names of arrays of the layout that no reply of the round moved: canaries leave
            them alone in it.
        moved_part: expected cosine of a canary with what is left of it in the other arrays.
    """

    index: int
    arrays: ArrayRecord
    layout: Layout
    before: Vector
    clip_norm: float
    grid: Grid
    sent: list[Message]
    cohort: list[int] = dataclasses.field(default_factory=list)
    withheld: list[Message] = dataclasses.field(default_factory=list)
    synthetic: list[Message] = dataclasses.field(default_factory=list)
    vectors: Floats32 | None = None
    counted: float = dataclasses.field(init=False)
    replies: list[Message] = dataclasses.field(default_factory=list)
    present: Sequence[int] = ()
    played: list[Message] = dataclasses.field(default_factory=list)
    absent: int = 0
    used: set[int] | None = None
    seen: Aggregation | None = None
    noise_std: float | None = None
    clients: dict[int, int] = dataclasses.field(default_factory=dict)
    sits_out: bool = True
    updates: RoundUpdates | None = None
    unmoved: Collection[str] = ()
    moved_part: float = 1.0

    def __post_init__(self) -> None:
        self.counted = self.clip_norm

    def without_canaries(self) -> None:
        """Forget the canaries of this round: nobody takes part."""
        self.synthetic, self.present, self.played, self.replies = [], (), [], []
        self.vectors = self.used = self.noise_std = None

    def settle(self, shares: Mapping[int, float] | None) -> RoundFacts:
        """What a client of median weight added to the mean, and each canary.

        Canaries that the strategy left out are absent.

        Args:
            shares: of the replies, see `shares_of`; ``None`` if they are not known.
        """
        ids = [id(reply.content) for reply in self.played]
        used = [self.used is None or i in self.used for i in ids]
        of_canaries = [shares.get(i, 0.0) for i in ids] if shares else [1.0] * len(ids)
        kept = [n for n, share in enumerate(of_canaries) if share > 0 and used[n]]
        if len(kept) < len(ids) and self.vectors is not None:
            self.vectors = self.vectors[kept]
        median = self.median_share(shares)
        weights = [of_canaries[n] / median if shares else 1.0 for n in kept]
        contribution = self.counted * median
        if math.isnan(self.clip_norm):  # no noise in arrays that nobody moved
            contribution *= self.moved_part
        else:
            weights = [weight * self.moved_part for weight in weights]
        differ = any(abs(weight - 1) > _ROUNDING for weight in weights)
        return RoundFacts(
            present=[self.present[n] for n in kept],
            contribution=contribution,
            clip_norm=self.clip_norm,
            replies=len(self.replies),
            absent=self.absent + len(ids) - len(kept),
            weights=weights if differ else (),
        )

    def median_share(self, shares: Mapping[int, float] | None) -> float:
        """The median share of the real replies that have any; NaN if not known.

        Where every reply is a canary's, that of these.
        """
        canaries = {id(reply.content) for reply in self.played}
        positive = {i: share for i, share in (shares or {}).items() if share > 0}
        real = [share for i, share in positive.items() if i not in canaries]
        return statistics.median_low(real or positive.values() or [math.nan])

    def client_weights(self, shares: Mapping[int, float] | None) -> dict[int, float]:
        """How many times the median share each client's replies had together; 1 each if unknown."""
        median = self.median_share(shares)
        weights = dict.fromkeys(self.clients.values(), 0.0)
        for number, client in self.clients.items():
            weights[client] += shares.get(number, 0.0) / median if shares else 1.0
        return weights


@dataclasses.dataclass
class RoundNotes:
    """What is known of one round.

    Attributes:
        loss: of the clients' training; ``None`` if nobody says.
        seconds: that the audit took, the strategy's own calls left out.
        canary_bytes: of memory for the canaries' updates and replies.
        averaged: how the strategy averaged; "" if that is not known, ``None`` if no canary took
            part.
        noisy: whether clients' updates look like noise; ``None`` if they were not looked at.
    """

    loss: float | None = None
    seconds: float = 0.0
    canary_bytes: int = 0
    averaged: str | None = None
    noisy: bool | None = None


@dataclasses.dataclass(eq=False, repr=False)  # the seed is a secret
class AuditState:
    """An audit after some rounds.

    Attributes:
        seed: of the canaries.
        rounds: of the run, over which the canaries are spread; ``None`` if not known.
        kind: what replies are; ``None`` until it is found out.
        inject: "auto": canaries fill up to the number of replies that the strategy's noise is
            meant for, and replace real clients beyond that; after the strategy has failed on that
            "replace", and then "none".
        clients: number of the canary of each client that has one.
        ordered: numbers of canaries that clients were to answer with.
        answered: those that they did answer with.
        refused: why clients answered for themselves.
        arguments: of the audit that is kept, see `fingerprint`.
        index: how many rounds are done.
        layout: of the model; ``None`` before the first round.
        unmoved: names of arrays that canaries left alone in some later rounds, see `RoundState`.
        settled: whether replies have shown which arrays of it canaries leave alone for good.
        whole: the layout before that, in which models are known again.
        models: hash of the model after so many rounds, where there is a checkpoint.
        blocks: names of the checkpoint's files with the scores of earlier rounds, in order.
        kept_rows: how many rows of each array are in them.
        notes: of each round, by its index.
        warned: what was logged.
        plan: what the audit does to the run; nothing before the first round.
        resumed: after how many rounds the audit went on, each time that it was started again.
    """

    __pydantic_config__: ClassVar = {
        "ser_json_inf_nan": "constants"
    }  # a loss may be NaN

    seed: int
    rounds: int | None
    kind: ReplyKind | None
    inject: Literal["auto", "replace", "none"] = "auto"
    clients: dict[int, int] = dataclasses.field(default_factory=dict)
    ordered: set[int] = dataclasses.field(default_factory=set)
    answered: set[int] = dataclasses.field(default_factory=set)
    refused: set[Acknowledgement] = dataclasses.field(default_factory=set)
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    index: int = 0
    layout: Layout | None = None
    settled: bool = False
    unmoved: set[str] = dataclasses.field(default_factory=set)
    whole: Layout | None = None
    models: dict[int, str] = dataclasses.field(default_factory=dict)
    blocks: list[str] = dataclasses.field(default_factory=list)
    kept_rows: dict[str, int] = dataclasses.field(default_factory=dict)
    notes: dict[int, RoundNotes] = dataclasses.field(default_factory=dict)
    warned: set[str] = dataclasses.field(default_factory=set)
    plan: AuditPlan = dataclasses.field(default_factory=AuditPlan)
    resumed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.faults = FaultBook()  # which `RunAuditor.state` keeps

    def note(self, index: int) -> RoundNotes:
        """What is known of the round with this index."""
        return self.notes.setdefault(index, RoundNotes())

    @property
    def first_failure(self) -> str | None:
        """The first part of the audit that could not be done, and why."""
        return self.faults.first(*_FAILURES)

    def reject(self, failure: Exception | str) -> None:
        """Canaries stand in for clients that were asked, or stop: the strategy failed on them."""
        match self.inject:
            case "auto":
                self.inject = "replace"
                then = "from the next round on canaries answer in the place of clients"
            case "replace" | "none":
                self.inject = "none"
                then = "no canary takes part any more"
            case _:
                assert_never(self.inject)
        self.failed(f"the strategy fails on canaries ({then})", failure)

    def failed(
        self,
        what: str,
        why: Exception | str,
        index: int | None = None,
        kind: FaultKind = FaultKind.AUDIT_STOOD_BACK,
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
        reason = _described(why)
        self.faults.add(index, kind, f"{what}: {reason}", times)
        if what in self.warned:
            return
        self.warned.add(what)
        try:
            logger.warning("Audit, round %d, %s: %s", index + 1, what, reason)
            logger.debug(
                "Where it happened",
                exc_info=why if isinstance(why, Exception) else None,
            )
        except Exception as error:  # noqa: BLE001 - of the log itself
            text = f"{what}: {reason}; it could not be logged: {_described(error)}"
            self.faults.add(index, kind, text)

    def hear(
        self,
        state: RoundState,
        replies: Sequence[Message],
        identity: Callable[[int], int],
    ) -> dict[int, int]:
        """The client of each reply that is no error, by the ``id`` of the reply's content.

        Errors, missing replies and losses that are not finite are faults.

        Args:
            state: of the round.
            replies: to what was sent in it.
            identity: what stays the same about a client, from its node id.
        """
        # A SuperLink answers in the name of a node that died, under its own id.
        asked = {m.metadata.message_id: m.metadata.dst_node_id for m in state.sent}
        answered, heard = dict[int, int](), set[str]()
        for reply in replies:
            about = reply.metadata.reply_to_message_id
            node = asked.get(about, reply.metadata.src_node_id)
            if about and about in heard:
                self.faults.add(
                    state.index,
                    FaultKind.ANSWERED_TWICE,
                    f"node {node}: it answered twice",
                )
            heard.add(about)
            if reply.has_error():
                kind = error_kind(reply.error)
                self.faults.add(state.index, kind, f"node {node}: {reply.error.reason}")
            else:
                answered[id(reply.content)] = int(identity(node))
                for loss in losses_of(records_of(reply.content, MetricRecord).values()):
                    if not math.isfinite(loss):
                        text = f"node {node}: the loss of its training is {loss}"
                        self.faults.add(state.index, FaultKind.LOSS_NOT_FINITE, text)
        silent = len(state.sent) - len(replies)
        if silent > 0:
            missing = [
                f"node {node}" for about, node in asked.items() if about not in heard
            ]
            who = f": {', '.join(missing)}" if len(missing) == silent else ""
            text = f"{silent} of {len(state.sent)} clients did not answer{who}"
            self.faults.add(state.index, FaultKind.NO_ANSWER, text, silent)
        return answered

    def go_on(self, saved: AuditState, done: int) -> None:
        """Know the first ``done`` rounds of an audit that was saved."""
        vars(self).update(vars(saved) | {"warned": self.warned, "faults": self.faults})
        self.index, self.resumed = done, (*saved.resumed, done)
        self.models = {t: model for t, model in saved.models.items() if t <= done}
        self.notes = {t: note for t, note in saved.notes.items() if t < done}
        if done < saved.index:
            self.blocks, self.kept_rows = [], {}
            self.faults.add(
                done - 1,
                FaultKind.ROUNDS_REPEATED,
                f"the server went back to the model after this round: rounds {done + 1} to"
                f" {saved.index}, whose models were sent to clients, are not in the record",
            )
